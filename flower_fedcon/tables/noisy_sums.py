"""A table whose rows are private from the start: noisy sums, then noisy gradients.

The exchanges of `tables.preparation` need sums over rows, so each is a release like that of a
gradient (`flower_fedcon.privacy.ExampleDP`). A row's part is a vector of numbers in [-1, 1], one
for each quantity. The schema alone bounds its norm. The parts and the noise are added in whole
steps of one grid. With p numeric and q categorical features:

    1. for each numeric column whether the row has a value, and (value - middle) / half its range;
       for an outcome with classes the row's class: a norm of at most sqrt(2 p + 1)
    2. for each numeric column ((value - mean) / range)^2; for each categorical one the row's
       category: a norm of at most sqrt(p + q)

Each exchange counts in the ledger as one gradient over all rows, with the same noise multiplier.
A repeated question gets the same answer at no cost. The schema must state ranges and categories;
the number of rows is public. Post-processing of noisy sums costs nothing: counts are rounded into
[0, rows], and a standard deviation is at least 1 % of the range. A row without an
outcome (NaN) is in no class and no bin, and has no gradient.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.objectives.private_objective import PrivateObjective
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.tables.encoding import codes
from flower_fedcon.tables.noisy_quality import NOISY_BINS, bins_of, noisy_counts
from flower_fedcon.tables.packed_text import packed_text, unpacked_text
from flower_fedcon.tables.preparation import LARGEST, Preparation
from flower_fedcon.tables.public import bounds, check_public
from flower_fedcon.tables.schema import COMMON
from flower_fedcon.tables.table import SUMMARY, Table
from flower_fedcon.validation import Array
from flower_fedcon.wire.digests import digest
from flower_fedcon.wire.payloads import Payload

_LEAST_SPREAD = 1e-2  # the least standard deviation of a column, relative to its range


@dataclass(frozen=True, eq=False)
class PrivateTable(Table):
    """One node's rows; only noisy sums and gradients leave the node.

    Parameters
    ----------
    privacy : ExampleDP
    ledger : Ledger
        The ledger of these rows, which also counts what they spend before round 1.
    note, keep : callable
        A function that returns the earlier answer to a question by its digest ("" for none), and
        one that keeps an answer.

    Raises
    ------
    ConfigError
        If the schema does not state all that must be public, or its loss has no gradients of rows.
    """

    privacy: ExampleDP | None = None
    ledger: Ledger | None = None
    note: Callable[[str], str] = str
    keep: Callable[[str, str], None] = lambda question, answer: None

    @classmethod
    def of(cls, table: Table, privacy: ExampleDP, ledger: Ledger, **memory: Any) -> PrivateTable:
        """Return a table whose rows are private."""
        check_public(table.schema)
        entries = {field.name: getattr(table, field.name) for field in fields(Table)}
        if not memory:
            told: dict[str, str] = {}
            memory = {"note": lambda question: told.get(question, ""), "keep": told.__setitem__}
        return cls(**entries, privacy=privacy, ledger=ledger, **memory)

    @property
    def told_digest(self) -> str:
        """The digest for the server, which reveals nothing of the rows."""
        return ""

    def _summary(self, rows: Any, least: int) -> dict[str, Any]:
        schema, m = self.schema, float(len(rows))
        limits = np.array([bounds(f) for f in schema.numeric]).reshape(-1, 2)
        middle, half = limits.mean(axis=1), np.diff(limits, axis=1)[:, 0] / 2
        values = self.numeric[rows]
        there = ~np.isnan(values)
        parts = [there, np.where(there, (values - middle) / half, 0.0)]
        most = 2.0 * len(middle)
        if schema.outcomes:
            parts.append(self._classes(rows))
            most += 1
        sums = self._released(SUMMARY, parts, most)
        p = len(middle)
        observed = np.clip(np.rint(sums[:p]), 0.0, m)
        observed[observed < least] = 0.0
        totals = np.clip(sums[p : 2 * p], -observed, observed) * half + observed * middle
        answer: dict[str, Any] = {"rows": m}
        if schema.outcomes:
            answer["outcomes"] = np.clip(np.rint(sums[2 * p :]), 0.0, m)
        if schema.family.log_link:
            answer["level"] = np.zeros(3)  # nothing is sent: the run starts from 0
        return answer | {"observed": observed, "sums": totals, "categories": packed_text({})}

    def _classes(self, rows: Any) -> Array:
        """Return each row's class, as 0 or 1 in columns of `Schema.outcomes`."""
        return self.schema.family.counted(self.outcome[rows], self.schema)

    def _spread(self, rows: Any, down: dict[str, Any], least: int) -> dict[str, Any]:
        schema, m = self.schema, float(len(rows))
        agreed = unpacked_text(down["categories"])
        limits = np.array([bounds(f) for f in schema.numeric]).reshape(-1, 2)
        width = np.diff(limits, axis=1)[:, 0]
        means = np.clip(np.asarray(down["means"], np.float64), limits[:, 0], limits[:, 1])
        parts = [np.nan_to_num(((self.numeric[rows] - means) / width) ** 2)]
        for feature, column in zip(schema.categorical, self.categories[rows].T, strict=True):
            marks = tuple(feature.categories)
            if tuple(agreed.get(feature.name, ())) != marks:
                raise ConfigError(
                    f"the server asks about other categories of {feature.name!r} than the schema's"
                )
            parts.append(codes(column, marks)[:, None] == np.arange(len(marks)))
        question = digest(["spread", [float(mean).hex() for mean in means.tolist()]])
        sums = self._released(question, parts, len(width) + len(schema.categorical))
        p = len(width)
        squares = np.clip(sums[:p], m * _LEAST_SPREAD**2, m) * width**2
        counts = np.clip(np.rint(sums[p:]), 0.0, m)
        return {"squares": squares, "counts": np.where(counts >= least, counts, 0.0)}

    def _released(self, question: str, parts: list[Array], squared: float) -> Array:
        """Return noisy sums of each row's numbers, whose squares sum to at most `squared`."""
        assert self.privacy is not None  # noqa: S101  (`of` gives it)
        each = np.concatenate([np.asarray(part, np.float64) for part in parts], axis=1)
        entries = each.shape[1]
        if not entries:
            return np.zeros(0)
        clip = math.sqrt(squared) * (1 + 1e-6)  # so that rounding to the grid never clips
        grid = Grid(clip, self.privacy.noise_multiplier * clip, len(each))
        return self._once(
            question, entries, grid, lambda: grid.release(grid.steps(each).sum(axis=0))
        )

    def _once(self, question: str, entries: int, grid: Grid, release: Callable[[], Array]) -> Array:
        """Return a release and count it, or return the earlier answer to the same question."""
        assert self.privacy is not None  # noqa: S101  (`of` gives it)
        assert self.ledger is not None  # noqa: S101
        key = digest([self.resume_key, question, self.privacy.noise_multiplier, entries])
        earlier = self.note(key)
        if earlier:
            return np.array(json.loads(earlier), np.float64)
        self.ledger.spend(1.0, grid.distance(entries))
        answer = release()
        self.keep(key, json.dumps(answer.tolist()))
        return answer

    def objective(self, preparation: Preparation, least: int = 1) -> Any:
        """Return this node's objective, whose gradients are noisy.

        Columns of few rows stay known: hiding them would reveal that they are few, and noise
        protects them.
        """
        assert self.privacy is not None  # noqa: S101
        if preparation.site_effects != COMMON:
            raise ConfigError(
                f"site_effects = {preparation.site_effects!r} cannot be used with ExampleDP: a "
                f"site's own intercept follows from all its rows, so no row's part of a gradient "
                f'can be bounded. Use site_effects = "common"'
            )
        self._check_units(preparation)
        plain = Table.objective(self._with_outcomes, preparation)
        plain.rows_key = digest(self)  # type: ignore[attr-defined]
        counted = ~np.isnan(self.targets[self.training_rows])
        private = PrivateObjective(plain, self.privacy, self.ledger, counting=counted)
        private.noisy_quality = lambda x: self._quality(preparation, x)
        return private

    @property
    def _with_outcomes(self) -> PrivateTable:
        """The same table with 1 for each outcome that is not there, of rows that do not count."""
        return replace(self, targets=np.where(np.isnan(self.targets), 1.0, self.targets))

    def _check_units(self, preparation: Preparation) -> None:
        """Raise if values that the schema allows overflow in the server's means and scales.

        Otherwise an overflow would reveal that a row exists, without noise.

        Raises
        ------
        ConfigError
        """
        made = preparation.of_schema(self.schema)
        p, kept = len(self.schema.numeric), np.asarray(made.kept)
        ends = np.tile([0.0, 1.0], (len(kept), 1))  # for a category's column
        for place in np.flatnonzero(kept < p).tolist():
            ends[place] = bounds(self.schema.numeric[kept[place]])
        with np.errstate(over="ignore", invalid="ignore"):
            reach = np.column_stack([ends, made.means]) - made.centers[:, None]
            usable = (np.abs(reach) / made.scales[:, None] <= LARGEST).all()
        if not usable:
            raise ConfigError(
                f"the server's means and scales put values within the schema's ranges beyond "
                f"{LARGEST:g}: let the server send what its preparation gives"
            )

    def _quality(self, preparation: Preparation, x: Array) -> Payload:
        """Return the answer on a model's held-out rows; see `tables.noisy_quality`.

        Raises
        ------
        RefusedError
            If this node sends no such answer, or the budget is spent.
        """
        held, rule = self.held_out_rows, self.privacy
        assert rule is not None  # noqa: S101
        if not rule.quality:
            raise RefusedError(
                "refused: this node's examples are private, and so are held-out rows: "
                "privacy.quality = true on this node sends noisy counts of them"
            )
        if not self.schema.family.binary or not len(held):
            raise RefusedError(
                "refused: noisy counts need a logistic loss and held-out rows: give the schema a "
                "test_fraction"
            )
        targets, known = self._with_outcomes.targets[held], ~np.isnan(self.targets[held])
        f = self._loss(self.matrix(preparation)[held], targets, held)
        assert isinstance(f, LinearModel)  # noqa: S101
        noise, model = rule.noise_multiplier, np.asarray(x, np.float64)
        grid = Grid(1.0, noise, len(held))
        question = digest(["quality", model.tobytes().hex(), digest(preparation)])

        def tell() -> Array:
            return noisy_counts(bins_of(f, model)[known], grid).reshape(-1)

        counts = self._once(question, 2 * NOISY_BINS, grid, tell)
        known = np.array([float(len(held)), noise])
        return {"noisy": counts.reshape(2, NOISY_BINS), "known": known}
