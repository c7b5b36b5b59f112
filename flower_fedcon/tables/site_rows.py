"""The rows of one node, read and checked, and which of them train the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.small_cells import Marks, effective_rows, known_marks, known_numbers
from flower_fedcon.validation import Array
from flower_fedcon.wire.digests import LATER, digest


@dataclass(frozen=True, eq=False)
class SiteRows:
    """One node's rows, read and checked, before the nodes' agreement.

    Parameters
    ----------
    file : str
        For messages on this node.
    schema : Schema
    targets : array, shape (m,), or (m, 2) for "cox": time and event
        With strata or late entries (m, 4): also the time of entry, and the stratum's number.
    weights : array, shape (m,), optional
    numeric : array, shape (m, numeric features)
        NaN where a value is missing.
    categories : array of str, shape (m, categorical features)
        "" where a value is missing.
    sparse : scipy.sparse.csr_array, shape (m, columns), optional
        The features of an SVMlight file.
    clusters : array of int, shape (m,), optional
        Each row's cluster, if the schema names a column of clusters.
    cluster_names : sequence of str
        The column's name for each of these clusters.
    stratum_names : sequence of str
        The same for strata.
    offset : array, shape (m,), optional
        Added to the rows' linear predictors: the schema's offset, and the logarithm of its
        exposure.
    rows_digest : str
        A digest of the file's content, by which earlier versions recognised the rows; "" for rows
        without a file.
    places : array of int, optional
        Where rows are left out, as incomplete or of weight 0: each row's number, from 0, among all
        rows of the node.
    left_out : int
        With a schema of complete cases the number of rows left out.
    notes : callable
        Returns remarks on the rows, for readers who may see cells. A node logs them once in a run.
    digest_of_cells : callable, optional
        Returns the digest of these rows in the file, of all its columns; see `tables.cell_digests`.
    """

    file: str
    schema: Schema
    targets: Array
    weights: Array | None
    numeric: Array
    categories: np.ndarray[Any, Any]
    sparse: Any = None
    notes: Callable[[], Sequence[str]] = tuple
    clusters: Array | None = None
    offset: Array | None = None
    rows_digest: str = field(default="", metadata={LATER: True})
    places: Any = field(default=None, metadata={LATER: True})
    left_out: int = field(default=0, metadata={LATER: True})
    cluster_names: Sequence[str] = field(default=(), metadata={LATER: True})
    stratum_names: Sequence[str] = field(default=("",), metadata={LATER: True})
    digest_of_cells: Callable[[], str] | None = field(default=None, metadata={LATER: True})

    @cached_property
    def _split(self) -> tuple[Any, Any]:
        """The training rows, and the held-out rows; each in the file's order."""
        m, fraction = len(self.targets), self.schema.test_fraction
        held = np.zeros(m, dtype=bool)
        rng = np.random.default_rng([self.schema.split_seed, m])
        held[rng.permutation(m)[: min(round(fraction * m), m - 1)]] = True
        return np.flatnonzero(~held), np.flatnonzero(held)

    @cached_property
    def resume_key(self) -> str:
        """A digest of all rows and of the schema; not of the file's name."""
        A = self.sparse
        parts = None if A is None else (A.shape, A.data, A.indices, A.indptr)
        content = (self.targets, self.weights, self.numeric, self.categories, parts)
        more = tuple(column for column in (self.clusters, self.offset) if column is not None)
        return digest((self.schema.digest, *content, *more))

    @property
    def told_digest(self) -> str:
        """The digest by which a server recognises the rows."""
        return self.resume_key

    @property
    def outcome(self) -> Array:
        """The target of each row; in a Cox model whether the event was observed."""
        return self.targets[:, 1] if self.targets.ndim > 1 else self.targets

    def of_rows(self, rows: Any) -> Self:
        """Return some of the rows."""
        return replace(
            self,
            targets=self.targets[rows],
            weights=None if self.weights is None else self.weights[rows],
            numeric=self.numeric[rows],
            categories=self.categories[rows],
            sparse=None if self.sparse is None else self.sparse[rows],
            clusters=None if self.clusters is None else self.clusters[rows],
            offset=None if self.offset is None else self.offset[rows],
            places=None if self.places is None else self.places[rows],
        )

    def numbers_of(self, rows: Any) -> Any:
        """Return the numbers of rows, from 1, among all rows of the node."""
        return (rows if self.places is None else self.places[rows]) + 1

    @property
    def incomplete(self) -> Any:
        """Whether each row lacks a value of some feature, shape (m,)."""
        return np.isnan(self.numeric).any(axis=1) | (self.categories == "").any(axis=1)

    @property
    def training_rows(self) -> Any:
        """The training rows, by number from 0."""
        return self._split[0]

    @property
    def held_out_rows(self) -> Any:
        """The held-out rows, by number from 0."""
        return self._split[1]

    @property
    def num_examples(self) -> int:
        """The number of training rows."""
        return len(self._split[0])

    @property
    def effective_rows(self) -> float:
        """The effective number of training rows by weight: (sum w)^2 / sum w^2."""
        return effective_rows(self.weights, self.training_rows)

    def known_numbers(self, least: int) -> Array:
        """Return the numeric columns, without those unknown here; see `tables.small_cells`."""
        return known_numbers(self.numeric, self.training_rows, self.weights, least)

    def known_categories(self, least: int) -> list[tuple[Marks, AbstractSet[str]]]:
        """Return of each categorical feature the rows' categories, and those unknown here."""
        return [
            known_marks(marks, self.training_rows, self.weights, least)
            for marks in self.categories.T
        ]

    @property
    def total_weight(self) -> float:
        """The sum of the training rows' weights, or their number without weights."""
        given = self.weights
        return float(self.num_examples) if given is None else math.fsum(given[self.training_rows])
