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
[0, rows], and a standard deviation is at least 1 % of the range.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.objectives.private_objective import PrivateObjective
from flower_fedcon.objectives.rows import LinearModel
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.tables.encoding import WIDE, codes
from flower_fedcon.tables.noisy_quality import NOISY_BINS, bins_of, noisy_counts
from flower_fedcon.tables.packed_text import packed_text, unpacked_text
from flower_fedcon.tables.preparation import LARGEST, Preparation
from flower_fedcon.tables.schema import COMMON, LOG_LINK, Feature, Schema
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
        own = {field.name: getattr(table, field.name) for field in fields(Table)}
        if not memory:
            told: dict[str, str] = {}
            memory = {"note": lambda question: told.get(question, ""), "keep": told.__setitem__}
        return cls(**own, privacy=privacy, ledger=ledger, **memory)

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
        found = np.clip(sums[p : 2 * p], -observed, observed) * half + observed * middle
        answer: dict[str, Any] = {"rows": m}
        if schema.outcomes:
            answer["outcomes"] = np.clip(np.rint(sums[2 * p :]), 0.0, m)
        if schema.loss in LOG_LINK:
            answer["level"] = np.zeros(3)  # nothing is sent: the run starts from 0
        return answer | {"observed": observed, "sums": found, "categories": packed_text({})}

    def _classes(self, rows: Any) -> Array:
        """Return each row's class, as 0 or 1 in columns of `Schema.outcomes`."""
        own = self.outcome[rows]
        if self.schema.loss == "multinomial":
            each: Array = own[:, None] == np.arange(len(self.schema.classes))
            return each
        found = [own < 0, own > 0] if self.schema.loss == "logistic" else [own > 0]
        return np.stack(found, axis=1)

    def _spread(self, rows: Any, down: dict[str, Any], least: int) -> dict[str, Any]:
        schema, m = self.schema, float(len(rows))
        agreed = unpacked_text(down["categories"])
        limits = np.array([bounds(f) for f in schema.numeric]).reshape(-1, 2)
        width = np.diff(limits, axis=1)[:, 0]
        means = np.clip(np.asarray(down["means"], np.float64), limits[:, 0], limits[:, 1])
        parts = [np.nan_to_num(((self.numeric[rows] - means) / width) ** 2)]
        for feature, column in zip(schema.categorical, self.categories[rows].T, strict=True):
            known = tuple(feature.categories)
            if tuple(agreed.get(feature.name, ())) != known:
                raise ConfigError(
                    f"the server asks about other categories of {feature.name!r} than the schema's"
                )
            parts.append(codes(column, known)[:, None] == np.arange(len(known)))
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
        known = self.note(key)
        if known:
            return np.array(json.loads(known), np.float64)
        self.ledger.spend(1.0, grid.distance(entries))
        found = release()
        self.keep(key, json.dumps(found.tolist()))
        return found

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
        plain = super().objective(preparation)
        plain.rows_key = digest(self)  # type: ignore[attr-defined]
        found = PrivateObjective(plain, self.privacy, self.ledger)
        found.noisy_quality = lambda x: self._quality(preparation, x)
        return found

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
        if self.schema.loss != "logistic" or not len(held):
            raise RefusedError(
                "refused: noisy counts need a logistic loss and held-out rows: give the schema a "
                "test_fraction"
            )
        f = self._loss(self.matrix(preparation)[held], self.targets[held], held)
        assert isinstance(f, LinearModel)  # noqa: S101
        noise, model = rule.noise_multiplier, np.asarray(x, np.float64)
        grid = Grid(1.0, noise, len(held))
        question = digest(["quality", model.tobytes().hex(), digest(preparation)])

        def tell() -> Array:
            return noisy_counts(bins_of(f, model), grid).reshape(-1)

        counts = self._once(question, 2 * NOISY_BINS, grid, tell)
        known = np.array([float(len(held)), noise])
        return {"noisy": counts.reshape(2, NOISY_BINS), "known": known}


def bounds(feature: Feature) -> tuple[float, float]:
    """Return the smallest and the largest allowed value of a numeric column, after its transform.

    >>> bounds(Feature("dose", range=(-2.0, 1.0), transform="square"))
    (0.0, 4.0)
    """
    ends = np.array(feature.range)
    if feature.transform == "square":
        low, high = sorted(ends * ends)
        return (0.0 if ends[0] < 0 < ends[1] else float(low)), float(high)
    if feature.transform != "none":
        ends = getattr(np, feature.transform)(ends)
    return float(ends[0]), float(ends[1])


def check_public(schema: Schema) -> None:
    """Raise unless a schema states all that must be public for private rows.

    Raises
    ------
    ConfigError
    """
    problems = []
    if schema.sparse:
        problems.append('features = "all" does not describe the columns: name them in [features]')
    if schema.loss == "cox":
        problems.append('loss = "cox" compares rows with each other: use another loss')
    if schema.loss == "negative_binomial":
        problems.append(f'loss = "{schema.loss}" also fits alpha: use loss = "poisson"')
    if schema.complete_cases:
        problems.append(
            "no noise protects the number of rows that complete_cases leaves: let missing values "
            "be filled in"
        )
    if schema.design:
        problems.append(
            "no noise protects what nodes agree on for terms, medians and indicators of missing "
            "values: leave them out"
        )
    if schema.offsets:
        problems.append(
            f"the effect of {', '.join(map(repr, schema.offsets))} on gradients is unbounded: "
            f"leave offset and exposure out"
        )
    if schema.weight:
        problems.append(
            f"the sum of the weights in {schema.weight!r} changes with every row: leave weight out"
        )
    if any(not feature.range for feature in schema.numeric):
        names = [feature.name for feature in schema.numeric if not feature.range]
        problems.append(
            f"the range of {', '.join(map(repr, names))} is not public: write "
            f'{names[0]} = {{type = "numeric", range = [0, 120]}}, from knowledge other than '
            "the data"
        )
    for feature in schema.numeric:
        with np.errstate(all="ignore"):
            usable = not feature.range or bool(np.isfinite(bounds(feature)).all())
        if not usable:
            problems.append(
                f"range = {list(feature.range)} of {feature.name!r} is infinite after transform = "
                f"{feature.transform!r}: give a range within the transform's domain"
            )
    for feature in schema.categorical:
        if not feature.categories:
            problems.append(
                f"the categories of {feature.name!r} are not public: list them, "
                f'{feature.name} = {{type = "categorical", categories = ["a", "b"]}}'
            )
        elif len(feature.categories) > WIDE:
            problems.append(f"{feature.name!r} has more than {WIDE} categories: give fewer")
    if problems:
        raise ConfigError(
            "with ExampleDP a table needs a schema that states what is public: "
            + "; ".join(problems)
        )
