"""What a run on tables adds to its rounds: further exchanges after the last one, and a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Setup
from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.hooks import Playing, RunHook
from flower_fedcon.runs.plan import Plan
from flower_fedcon.tables.ending.coefficients import check_counts, check_inference
from flower_fedcon.tables.ending.final_baseline import has_common_baseline
from flower_fedcon.tables.ending.final_exchanges import FinalAnswers, final_exchanges
from flower_fedcon.tables.ending.table_report import Report, fitted_model
from flower_fedcon.tables.statistics import METHODS
from flower_fedcon.tables.statistics.estimates import DEBIASED
from flower_fedcon.tables.wing import RISK_SETS
from flower_fedcon.validation import choice


class TableHook(RunHook):
    """The final exchanges and the report of a run on tables.

    Parameters
    ----------
    inference : str, optional
        The method for standard errors.
    common : bool
        Whether the run ends with one baseline hazard for all sites.
    """

    name = "tables"
    arguments = "inference", "heterogeneity"

    def __init__(self, inference: str | None, *, common: bool) -> None:
        self._inference, self.asks = inference, RISK_SETS if common else inference
        self._ending: FinalAnswers | None = None

    @classmethod
    def check(cls, plan: Plan) -> None:
        """Refuse methods that do not exist.

        Raises
        ------
        ConfigError
        """
        if plan.inference is not None:
            choice("inference", plan.inference, (*METHODS, DEBIASED))
        if not isinstance(plan.heterogeneity, bool):
            raise ConfigError(f"heterogeneity must be True or False, got {plan.heterogeneity!r}")
        if plan.heterogeneity and plan.inference is None:
            raise ConfigError(
                'heterogeneity compares clients with pooled estimates: give inference="model", too'
            )

    @classmethod
    def of(cls, plan: Plan, strategy: Method[Any], setup: Setup) -> TableHook | None:
        """Return the hook of a run on tables; None for others.

        Raises
        ------
        ConfigError
            If the run cannot have such estimates, or is private and its tables tell counts.
        """
        inference = check_inference(plan, strategy, setup)
        check_counts(strategy, setup)
        prepared = setup.preparation
        return None if prepared is None else cls(inference, common=has_common_baseline(prepared))

    def conclude(self, run: Playing, *, whole: bool) -> None:
        """Ask the clients about the model, and make the report."""
        server, history = run.server, run.history
        ending = FinalAnswers(server.x, history.rows[-1] if history.rows else {})
        if whole and server.round:
            ending = final_exchanges(
                server, run.engine, run.start, ending.record, inference=self._inference,
                alone=run.plan.heterogeneity, covered=run.recorder.covered,
            )  # fmt: skip
        run.hooks.writing(run)  # noisy counts of private rows spend privacy, too
        history.x = server.setup.layout.unpack(ending.x)
        history.report, self._ending = Report.of(server, ending), ending

    def ended(self, run: Playing) -> None:
        """Write the report, and the model with named columns."""
        report = run.history.report
        if run.plan.run_dir is not None and report is not None and self._ending is not None:
            folder = Path(run.plan.run_dir)
            report.write(folder)
            fitted_model(run.server, self._ending, report).write(folder)

    def doubts(self, run: Playing) -> Iterator[str]:
        """Yield whether the rounds have converged, and which columns are doubtful."""
        report = run.history.report
        if report is None:
            return
        reached = report.reached
        if reached is not None and (reached.separated or not reached.converged):
            yield reached.text
        yield from report.doubts
