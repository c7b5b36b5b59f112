"""The rows of one node: its sums before round 1, and its objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flower_fedcon.core.wings import later
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import Objective, Profiled, WithOffset
from flower_fedcon.tables.by_level import LEVELS, told_by_level
from flower_fedcon.tables.checks.conspicuous import level_of
from flower_fedcon.tables.design import OF_TERMS, matrix, told_of_terms
from flower_fedcon.tables.encoded_rows import encoded
from flower_fedcon.tables.encoding import codes, is_wide
from flower_fedcon.tables.held_out import HeldOut
from flower_fedcon.tables.misfits import DataError, Misfit
from flower_fedcon.tables.numbers_at_risk import numbers_at_risk
from flower_fedcon.tables.packed_text import packed_text, unpacked_text
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.risk_counts import risk_counts
from flower_fedcon.tables.row_weights import SAMPLING
from flower_fedcon.tables.schema import OWN
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.tables.small_cells import effective_counts, is_few, of_enough_rows
from flower_fedcon.tables.statistics.site_sums import set_clusters
from flower_fedcon.validation import Array

SUMMARY, SPREAD, CURVES = "summary", "spread", "curves"


@dataclass(frozen=True, eq=False)
class Table(SiteRows):
    """One node's rows, read and checked, before the nodes' agreement; see `SiteRows`."""

    at_node: ClassVar[Any] = later("flower_fedcon.tables.at_node:TableAtNode")
    """What stands for it on a node; see `flower_fedcon.core.agreement`."""

    # --- sums before round 1 ---------------------------------------------------

    def answer(
        self, stage: str, down: dict[str, Any], least: int = 1, cell: int = 1
    ) -> dict[str, Any]:
        """Return the sums for the server, over the training rows.

        Parameters
        ----------
        stage : str
            "summary", "spread", "curves", "levels", or one of `flower_fedcon.tables.design`.
        down : dict
            The server's message: empty, or the agreed means and categories.
        least : int
            Nothing based on fewer rows leaves the node: a column with fewer values, or a category
            with fewer rows, counts as absent.
        cell : int
            Counts in intervals rest on no fewer rows, either.
        """
        rows = self._split[0]
        if stage == SUMMARY:
            return self._summary(rows, least)
        if stage == SPREAD:
            return self._spread(rows, down, least)
        if stage == CURVES and self.schema.curve_times:
            return self._curves(rows, down, least)
        if stage == LEVELS and self.schema.describe_by:
            return told_by_level(self, down, least, cell)
        if stage in OF_TERMS and self.schema.design:
            sums: dict[str, Any] = told_of_terms(self, stage, down, least, cell)
            return sums
        raise ConfigError(
            f"the server asks for the unknown preparation step {stage!r}: run one "
            f"version of flower-fedcon"
        )

    def _summary(self, rows: Any, least: int) -> dict[str, Any]:
        answer: dict[str, Any] = {"rows": float(len(rows))}
        if self.schema.complete_cases:
            few = 0 < self.left_out < least
            answer["left_out"] = math.nan if few else float(self.left_out)
        if self.schema.weight:
            answer["weight"] = self.total_weight
        if self.schema.weight_kind == SAMPLING:
            answer["effective"] = self.effective_rows
        if self.schema.outcomes:
            answer["outcomes"] = self._outcomes(rows, least)
        if self.schema.family.log_link:
            answer["level"] = self._level(rows, least)
        if self.sparse is not None:
            return answer | {"width": float(self.sparse.shape[1])}
        observed, sums = [], []
        for column in self.known_numbers(least)[rows].T:
            present = column[~np.isnan(column)]
            observed.append(float(len(present)))
            sums.append(math.fsum(present))
        seen = {}
        for feature, (marks, _) in zip(
            self.schema.categorical, self.known_categories(least), strict=True
        ):
            if not feature.categories:
                seen[feature.name] = [mark for mark in np.unique(marks[rows]).tolist() if mark]
        return answer | {
            "observed": np.array(observed),
            "sums": np.array(sums),
            "categories": packed_text(seen),
        }

    def _outcomes(self, rows: Any, least: int) -> Array:
        """Return how many rows each class has; NaN for all if one class, or the rest, has few."""
        counted = self.schema.family.counted(self.outcome[rows], self.schema)
        counts = counted.sum(axis=0)
        each = counted.argmax(axis=1) if len(counts) > 1 else counted[:, 0].astype(np.intp)
        weights = None if self.weights is None else self.weights[rows]
        by_class = effective_counts(each, max(2, len(counts)), weights)
        told = least == 1 or by_class.min() >= least
        return counts.astype(np.float64) if told else np.full(len(counts), np.nan)

    def _level(self, rows: Any, least: int) -> Array:
        """Return the weighted sums of outcomes, exposures and squared outcomes."""
        if is_few(self.weights, rows, least):
            return np.zeros(3)
        offset = None if self.offset is None else self.offset[rows]
        w = np.ones(len(rows)) if self.weights is None else self.weights[rows]
        return level_of(self.targets[rows], offset, w)

    def _spread(self, rows: Any, down: dict[str, Any], least: int) -> dict[str, Any]:
        if self.sparse is not None:
            part = of_enough_rows(self._widened(int(down["width"])), rows, least)[rows]
            return {"squares": np.asarray(part.multiply(part).sum(axis=0)).reshape(-1)}
        squares, counts = [], []
        for column, mean in zip(self.known_numbers(least)[rows].T, down["means"], strict=True):
            known = column[~np.isnan(column)] - mean
            squares.append(math.fsum(known * known))
        agreed = unpacked_text(down["categories"])
        own_marks = zip(self.schema.categorical, self.known_categories(least), strict=True)
        for feature, (marks, _) in own_marks:
            known = tuple(agreed[feature.name])
            places = codes(marks[rows], known)
            by_mark = np.bincount(places[places >= 0], minlength=len(known)).astype(np.float64)
            if least > 1 and not is_wide(known):
                by_mark[by_mark == 0] = math.nan  # none, or a few
            counts.append(by_mark)
        return {"squares": np.array(squares), "counts": np.concatenate([[], *counts])}

    def _curves(self, rows: Any, down: dict[str, Any], least: int) -> dict[str, Any]:
        schema, arm, own, agreed = self.schema, np.zeros(len(rows), np.intp), ("",), ("",)
        if schema.curve_by:
            place = [feature.name for feature in schema.categorical].index(schema.curve_by)
            agreed = tuple(unpacked_text(down["categories"])[schema.curve_by])
            # Intervals are merged for all arms of this node, whatever arms the server requests:
            # otherwise two answers could reveal another.
            marks = self.known_categories(least)[place][0][rows]
            own = tuple(mark for mark in np.unique(marks).tolist() if mark)
            arm = codes(marks, own)
        time, event, *more = self.targets[rows].T
        size, times = max(1, len(own)), np.array(schema.curve_times)
        w = None if self.weights is None else self.weights[rows]
        entry = more[0] if schema.entry else None
        told = risk_counts(time, event == 1, arm, size, times, least, w, entry)
        from_0 = np.append(0.0, times[times > 0])
        left = numbers_at_risk(time, event == 1, arm, size, from_0, least, w, entry)
        left = left[np.append(0, np.searchsorted(from_0, times))]
        parts = []
        for counted in (*told, left):
            columns = dict(zip(own, counted.T, strict=False))  # without any arm, one without rows
            none = np.zeros(len(counted))
            wanted = [columns.get(mark, none) for mark in agreed]
            parts.append(np.stack(wanted, axis=1).astype(float).ravel())
        return dict(zip(("at_risk", "events", "left"), parts, strict=True))

    # --- the objective ---------------------------------------------------------------------------

    def objective(self, preparation: Preparation, least: int = 1) -> Objective:
        """Return this node's objective, with the metrics of held-out rows.

        Raises
        ------
        ConfigError
            If the preparation belongs to another schema.
        DataError
            If the rows do not fit the loss.
        """
        if preparation.schema != self.schema.digest:
            raise ConfigError(
                "the server prepares tables with another schema than this node's: give both the "
                "same schema"
            )
        A = self.matrix(preparation, least)
        train, test = self._split
        objective = self._loss(A[train], self.targets[train], train)
        profile = None
        if preparation.site_effects == OWN:
            profile, objective = Profiled(objective), Profiled(objective)
        if self.clusters is not None:
            set_clusters(objective, self.clusters[train])
        if self.schema.test_fraction:
            kind, offset = self.schema.loss, self.offset
            offsets = None if offset is None else offset[test]
            w = None if self.weights is None else self.weights[test]
            held = HeldOut(kind, A[test], self.targets[test], least, offsets, profile, weights=w)
            objective.metrics = held  # type: ignore[attr-defined]
        return objective

    def matrix(self, preparation: Preparation, least: int = 1) -> Any:
        """Return the prepared rows, shape (m, columns).

        A column with fewer than `least` rows is replaced by its mean over all nodes; see
        `tables.encoded_rows`.
        """
        if self.sparse is not None:
            from scipy import sparse

            inverse = sparse.diags_array(1.0 / preparation.scales)
            rows = of_enough_rows(self._widened(preparation.width), self.training_rows, least)
            return sparse.csr_array(rows @ inverse)
        made = preparation.of_schema(self.schema)
        if made.design is not None:
            categories = {name: tuple(marks) for name, marks in made.categories.items()}
            return matrix(self, made.design, categories, made.kept, made.means, made.scales, least)
        return encoded(self, made, least)

    def _widened(self, width: int) -> Any:
        if self.sparse.shape[1] > width:
            raise ConfigError("the server knows fewer columns than this node's file has")
        from scipy import sparse

        A = self.sparse
        return sparse.csr_array((A.data, A.indices, A.indptr), shape=(A.shape[0], width))

    def _loss(self, A: Any, y: Array, rows: Any) -> Objective:
        offset = None if self.offset is None else self.offset[rows]
        weights = None if self.weights is None else self.weights[rows]
        family = self.schema.family

        def kind(A: Any) -> Any:
            return family.loss(A, y, self.schema, intercept=True, sample_weight=weights)

        try:
            loss = kind(A) if offset is None else WithOffset(kind, A, offset)
            if family.compares:
                core: Any = loss.loss if isinstance(loss, WithOffset) else loss
                core.stratum_names = self.stratum_names
            objective: Objective = family.completed(loss)
            return objective
        except ConfigError as error:
            misfit = Misfit(self.schema.target, 0, str(error), f"a {self.schema.loss} loss",
                            "choose another")  # fmt: skip
            raise DataError.of(self.file, [misfit]) from None
