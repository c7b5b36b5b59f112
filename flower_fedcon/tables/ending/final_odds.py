"""The exchange after a run with ordered outcomes: whether odds are proportional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.runs.final_sums import total_sums
from flower_fedcon.tables.ending.score_lines import lines_of_test, terms_of, write_test
from flower_fedcon.tables.row_weights import NO_SCORE_TESTS, SAMPLING
from flower_fedcon.tables.statistics.by_threshold import shapes_by_threshold, tested_odds
from flower_fedcon.tables.statistics.score_tests import ScoreTest

_DOUBTFUL = 0.001  # a p-value below which the order of levels is asked about


@dataclass(frozen=True)
class Odds:
    """What sites report about odds at each threshold.

    Attributes
    ----------
    test : ScoreTest or str
        The test that coefficients are the same at all thresholds; or why it is not known.
    terms : dict of list of int
        By feature or term with several columns: their places in the test.
    """

    test: ScoreTest | str
    terms: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The lines of a report on it."""
        lines = [*lines_of_test("test of proportional odds", self.test, self.terms)]
        if isinstance(self.test, ScoreTest) and self.test.global_pvalue < _DOUBTFUL:
            lines.append(
                "  so coefficients differ between thresholds, and those here are between them: are "
                "the levels in their order?"
            )
        return lines

    def write(self, folder: Path) -> None:
        """Write the test into a run's folder, if it is known."""
        if isinstance(self.test, ScoreTest):
            write_test(folder, self.test, self.terms)


def final_odds(server: Server, engine: Engine) -> Odds | None:
    """Return the test of proportional odds; None with two classes.

    This is not part of a round: no state changes.
    """
    prepared = server.setup.preparation
    assert prepared is not None  # noqa: S101  (of a run on tables)
    schema = prepared.stated
    thresholds = len(server.x) - len(prepared.names)
    if thresholds < 2:
        return None
    test: ScoreTest | str
    try:
        if schema is not None and schema.weight_kind == SAMPLING:
            raise ConfigError(NO_SCORE_TESTS)
        shapes = shapes_by_threshold(len(prepared.names), thresholds)
        test = tested_odds(prepared.names, total_sums(server, engine, "by_threshold", shapes))
    except FedConError as error:  # it must not end a finished run
        test = str(error)
    return Odds(test, terms_of(prepared))
