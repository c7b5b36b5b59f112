"""The columns of terms: the agreement of nodes, and their computation from a table's columns.

If a schema has `terms`, or features whose missing values become more than means, further exchanges
follow those of `tables.preparation`. Each is of sums over a node's training rows. With K columns:

    5. (twice) for each feature whose knots or median are quantiles, the rows in intervals, by
       groups of `min_rows`, see `tables.quantiles`
    6. for each orthogonal `poly(x, d)` the sums of (x - mean)^k / spread^k, k = 0 to 2 d
    7. for each column the number of its rows, and their sum (2 K numbers)
    8. for each column the sum of (value - mean)^2 (K numbers)

Missing values are filled in first, and terms use the filled-in values. The levels of a category
that have columns within a term depend on the other terms, as in patsy: see `codings`.

If a combination of a term's categories occurs on a node, but in fewer rows than its policy's
`min_rows`, the node sends nothing about the term's columns, and replaces them by their means over
all nodes. The same holds for a column that is constant in all but a few rows, or in all but a few
rows with one combination; and for a column of a polynomial or spline if it and those before it
have a combination that is 0 in all but a few rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.tables.encoding import (
    OTHER,
    check_shares,
    codes,
    dummies,
    hidden_places,
    is_wide,
    level_block,
)
from flower_fedcon.tables.packed_text import packed_text, unpacked_text
from flower_fedcon.tables.quantiles import (
    INTERVALS,
    first_ends,
    quantiles,
    second_ends,
    told_counts,
)
from flower_fedcon.tables.schema import INDICATOR, MEDIAN, NUMERIC, Feature, Schema
from flower_fedcon.tables.site_rows import SiteRows
from flower_fedcon.tables.small_cells import all_but_few_alike, effective_counts, is_few
from flower_fedcon.tables.terms import MISSING, PLAIN, POLYNOMIAL, QUANTILES, SPLINE, Factor, Term
from flower_fedcon.validation import Array

Ask = Callable[[str, dict[str, Any], dict[str, int]], list[dict[str, Any]]]
INTERVALS_OF, POWERS, SUMS, SQUARES = OF_TERMS = (
    "quantiles", "powers", "term sums", "term squares",
)  # fmt: skip


class Part(NamedTuple):
    """One factor of a column."""

    factor: Factor
    place: int  # a basis's function, or a category's level; else 0
    name: str  # as in R and statsmodels


@dataclass(frozen=True, eq=False)
class Design:
    """The nodes' agreement on the columns of a schema's terms.

    Parameters
    ----------
    fill : dict of float
        For each numeric feature: the value that replaces a missing one.
    shares : dict of tuple of float
        For each categorical feature: the value in each level's column that replaces a missing one.
    knots : dict of tuple of float
        The knots of each spline, by its text.
    powers : dict of tuple
        For each orthogonal polynomial: mean and spread of x, and the coefficients of the powers of
        (x - mean) / spread, from 0 up, for each degree.
    """

    fill: Mapping[str, float]
    shares: Mapping[str, tuple[float, ...]]
    knots: Mapping[str, tuple[float, ...]]
    powers: Mapping[str, tuple[float, float, tuple[tuple[float, ...], ...]]]

    @property
    def stated(self) -> dict[str, Any]:
        """All fields in the form of JSON."""
        return {
            "fill": dict(self.fill),
            "shares": {name: list(values) for name, values in self.shares.items()},
            "knots": {name: list(values) for name, values in self.knots.items()},
            "powers": {
                name: [mean, spread, [list(one) for one in rows]]
                for name, (mean, spread, rows) in self.powers.items()
            },
        }

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> Design:
        """Return the design from its `stated` form.

        Raises
        ------
        ConfigError
            If the form is another, or a share is outside [0, 1].
        """
        try:
            powers = {
                str(name): (
                    float(mean), float(spread), tuple(tuple(map(float, one)) for one in rows)
                )
                for name, (mean, spread, rows) in stated["powers"].items()
            }  # fmt: skip
            lists = {
                kind: {str(name): tuple(map(float, parts)) for name, parts in stated[kind].items()}
                for kind in ("shares", "knots")
            }
            fill = {str(name): float(value) for name, value in stated["fill"].items()}
            for shares in lists["shares"].values():
                check_shares(np.array(shares))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"a preparation whose terms are in another form ({error!r}): run one version of "
                f"flower-fedcon: run one version of "
                f"flower-fedcon"
            ) from None
        return cls(fill, lists["shares"], lists["knots"], powers)


# --- which columns there are ---------------------------------------------------------------------


def codings(schema: Schema) -> dict[frozenset[Factor], list[dict[Factor, bool]]]:
    """Return the blocks of columns of each term: which categories have all their levels in each.

    The rule is patsy's. A term stands for the products of contrasts of all subsets of its
    categories. Products that smaller terms (with the same numeric factors) contain are left out.
    The others are joined in pairs: a category's contrasts together with 1 give all its levels.

    Examples
    --------
    >>> features = {"u": "categorical", "v": "categorical", "x": "numeric"}
    >>> found = codings(Schema("y", features, terms=["u:v", "x:u"]))
    >>> [[{f.text: full for f, full in own.items()} for own in blocks] for blocks in found.values()]
    [[{'v': False}, {'u': False, 'v': True}], [{'u': True}]]
    """
    marks = {feature.name for feature in schema.categorical}
    used: dict[frozenset[Factor], set[frozenset[Factor]]] = {}
    by_term = {}
    order = sorted(schema.design, key=_in_turn)
    for term in order:
        kinds = [f for f in term.factors if f.feature in marks and f.basis == PLAIN]
        numbers = term.key - set(kinds)
        covered = used.setdefault(numbers, set() if numbers else {frozenset()})
        subsets = [
            frozenset(chosen)
            for size in range(len(kinds) + 1)
            for chosen in itertools.combinations(kinds, size)
        ]
        blocks = [dict.fromkeys(chosen, False) for chosen in subsets if chosen not in covered]
        covered |= set(subsets)
        linear = frozenset(_linear(factor) for factor in numbers)
        used.setdefault(linear, set()).update(subsets)
        while joined := _joined(blocks):
            blocks = joined
        ordered = [{f: chosen[f] for f in kinds if f in chosen} for chosen in blocks]
        by_term[term.key] = sorted(ordered, key=len)
    return {term.key: by_term[term.key] for term in schema.design}


def _in_turn(term: Term) -> Any:
    """Return a key that sorts terms by size, and bases before the features that they contain."""
    bases = sum(factor.basis in (SPLINE, POLYNOMIAL) for factor in term.factors)
    return len(term.factors), -bases, sorted(factor.text for factor in term.factors)


def _linear(factor: Factor) -> Factor:
    """Return a basis's feature, which is one of its columns or a combination of them."""
    return Factor(factor.feature) if factor.basis in (SPLINE, POLYNOMIAL) else factor


def _joined(blocks: list[dict[Factor, bool]]) -> list[dict[Factor, bool]]:
    """Return blocks with one pair joined, if one of the two is the other plus one category.

    Of several such pairs the one with the most factors is joined.
    """
    for short, long in itertools.product(sorted(blocks, key=len), sorted(blocks, key=len)):
        more = [factor for factor in long if factor not in short]
        alike = all(long.get(factor) == full for factor, full in short.items())
        if alike and len(more) == 1 and not long[more[0]]:
            rest = [block for block in blocks if block is not short and block is not long]
            return [*rest, {**long, more[0]: True}]
    return []


def _parts_of(
    term: Term,
    blocks: Sequence[Mapping[Factor, bool]],
    schema: Schema,
    categories: Mapping[str, tuple[str, ...]],
) -> list[tuple[Part, ...]]:
    """Return a term's columns, each as parts; the first factor varies fastest, as in R."""
    by_name, columns = {feature.name: feature for feature in schema.features}, []
    for block in blocks:
        each = []
        for factor in term.factors:
            feature = by_name[factor.feature]
            if factor.basis == MISSING:
                each.append([Part(factor, 0, factor.text)])
            elif feature.type == NUMERIC:
                each.append(_basis(factor, feature))
            elif factor in block:
                marks = categories[feature.name]
                each.append(_levels(factor, feature, marks, schema, block[factor]))
        columns += [tuple(reversed(one)) for one in itertools.product(*reversed(each))]
    return columns


def _basis(factor: Factor, feature: Feature) -> list[Part]:
    plain = feature.transform == "none"
    name = feature.name if plain else f"{feature.transform}({feature.name})"
    if factor.basis == PLAIN:
        return [Part(factor, 0, name)]
    if factor.basis == SPLINE:  # rms calls them x, x', x''
        return [Part(factor, j, name + "'" * j) for j in range(factor.number - 1)]
    prefix = f"poly({name}, {factor.number}{', raw=True' if factor.raw else ''})"
    return [Part(factor, j, f"{prefix}{j + 1}") for j in range(factor.number)]


def _levels(
    factor: Factor, feature: Feature, known: tuple[str, ...], schema: Schema, full: bool
) -> list[Part]:
    having = set(known if full else dummies(feature, known))
    pattern = "{}={}" if not schema.terms else "{}[{}]" if full else "{}[T.{}]"
    return [
        Part(factor, place, pattern.format(feature.name, mark or "(other)"))
        for place, mark in enumerate(known)
        if mark in having
    ]


def term_columns(schema: Schema, categories: Mapping[str, tuple[str, ...]]) -> list[Any]:
    """Return the columns of a schema's terms, each with its term's number and its parts.

    Raises
    ------
    ConfigError
        If a term multiplies a feature of more than 200 categories.
    """
    columns, coded = [], codings(schema)
    for number, term in enumerate(schema.design):
        wide = [
            f.feature
            for f in term.factors
            if f.basis == PLAIN and is_wide(categories.get(f.feature, ()))
        ]
        if wide and len(term.factors) > 1:
            raise ConfigError(
                f"{term.text}: {wide[0]!r} has more than 200 categories, which stand alone in a "
                "model: leave the product out, or list fewer categories in the schema"
            )
        of_term = _parts_of(term, coded[term.key], schema, categories)
        columns += [(number, parts) for parts in of_term]
    return columns


def name_of(parts: Sequence[Part]) -> str:
    """Return a column's name."""
    return ":".join(part.name for part in parts)


def described(parts: Sequence[Part], schema: Schema, design: Design, known: Any) -> list[Any]:
    """Return a description of a column's factors, for programs without this package.

    Parameters
    ----------
    parts : sequence of Part
    schema : Schema
    design : Design
    known : dict
        The categories.
    """
    by_name = {feature.name: feature for feature in schema.features}
    factors = []
    for factor, place, _ in parts:
        entry: dict[str, Any] = {"feature": factor.feature}
        if factor.basis != MISSING and by_name[factor.feature].type != NUMERIC:
            factors.append(entry | {"category": known[factor.feature][place] or None})
            continue
        if factor.basis != MISSING:
            entry["transform"] = by_name[factor.feature].transform
        if factor.basis == SPLINE:
            entry |= {"knots": list(design.knots[factor.text]), "function": place}
        elif factor.basis == POLYNOMIAL and factor.raw:
            entry["power"] = place + 1
        elif factor.basis == POLYNOMIAL:
            mean, spread, rows = design.powers[factor.text]
            entry |= {"mean": mean, "spread": spread, "coefficients": list(rows[place])}
        factors.append(entry | ({"basis": factor.basis} if factor.basis else {}))
    return factors


def wide_columns(schema: Schema, categories: Mapping[str, tuple[str, ...]]) -> Array:
    """Return which columns belong to features with more than 200 categories and stay sparse."""
    wide = [_is_wide([parts], categories) for _, parts in term_columns(schema, categories)]
    return np.array(wide, dtype=bool)


# --- rows ----------------------------------------------------------------------------------------


class Rows:
    """A table's rows with missing values filled in, from which terms are computed.

    Parameters
    ----------
    table : SiteRows
    design : Design
        The design, or the part agreed on so far.
    categories : dict
    least : int
    """

    def __init__(
        self,
        table: SiteRows,
        design: Design,
        categories: Mapping[str, tuple[str, ...]],
        least: int,
    ) -> None:
        self._table, self._design, self._categories = table, design, categories
        self._least = least
        schema, numbers = table.schema, table.known_numbers(least)
        self._absent: dict[str, Array] = {}
        self._values: dict[str, Array] = {}
        self._places: dict[str, Any] = {}
        self._classes: dict[str, Any] = {}  # of each row, before a server's categories
        self._rare: dict[str, AbstractSet[str]] = {}
        for j, feature in enumerate(schema.numeric):
            self._absent[feature.name] = np.isnan(table.numeric[:, j])
            column = numbers[:, j]
            self._values[feature.name] = np.where(
                np.isnan(column), design.fill[feature.name], column
            )
        pairs = zip(schema.categorical, table.known_categories(least), strict=True)
        for feature, (marks, self._rare[feature.name]) in pairs:
            self._absent[feature.name] = marks == ""
            self._places[feature.name] = codes(marks, categories[feature.name])
            self._classes[feature.name] = marks

    def values(self, feature: str) -> Array:
        """Return a numeric column, filled in."""
        return self._values[feature]

    def term(self, columns: Sequence[Sequence[Part]]) -> Array:
        """Return a term's columns, shape (m, columns); NaN where a column is unknown here."""
        factors = list(dict.fromkeys(part.factor for parts in columns for part in parts))
        blocks = {factor: self._block(factor) for factor in factors}
        values = np.stack([self._product(parts, blocks) for parts in columns], axis=1)
        if self._least > 1:
            cells = self._cells(factors)
            few = effective_counts(cells, int(cells.max(initial=-1)) + 1, self._weights)
            if (few < self._least).any() and len(few) > 1:
                return np.full_like(values, np.nan)
            shown = {factor: self.shown(factor, cells) for factor in factors}
            hidden: dict[tuple[Part, ...], bool] = {}
            for place, parts in enumerate(columns):
                numbers = tuple(part for part in parts if not self._is_mark(part.factor))
                if numbers not in hidden:
                    alone = self._product(numbers, blocks)[self._table.training_rows]
                    tells = any(part.place >= shown[part.factor] for part in numbers)
                    hidden[numbers] = tells or self._alike(alone, cells)
                if hidden[numbers]:
                    values[:, place] = np.nan
        return values

    def levels(self, columns: Sequence[Sequence[Part]]) -> tuple[Any, Any]:
        """Return categories of a wide feature: each row's, and the columns'."""
        places = [parts[0].place for parts in columns]
        return self._places[columns[0][0].factor.feature], np.array(places)

    def shown(self, factor: Factor, cells: Any = None) -> int:
        """Return how many columns of a polynomial or spline tell no few rows apart.

        With q of them, and the intercept, a function can vanish at q values, and a natural spline
        below its last two knots, above its first two ones, or but between five.

        Parameters
        ----------
        factor : Factor
        cells : array of int, shape (training rows,), optional
            Within each of these cells.
        """
        if self._least <= 1 or factor.basis not in (SPLINE, POLYNOMIAL):
            return 2**31  # all
        x = self._values[factor.feature][self._table.training_rows]
        cells = np.zeros(len(x), np.intp) if cells is None else cells
        most = factor.number - (factor.basis == SPLINE)
        if factor.basis == SPLINE:
            t = self._design.knots[factor.text]
            ends = [(-np.inf, t[2]), (t[-3], np.inf), *zip(t, t[4:], strict=False)]
            for inside in (cells == cell for cell in range(int(cells.max(initial=-1)) + 1)):
                tails = [inside & (x > low) & (x < high) for low, high in ends]
                if any(is_few(self._weights, rows, self._least) for rows in tails):
                    return 1
        return next((q - 1 for q in range(2, most + 1) if self._alike(x, cells, q)), most)

    @property
    def _weights(self) -> Array | None:
        weights = self._table.weights
        return None if weights is None else weights[self._table.training_rows]

    def _alike(self, x: Array, cells: Any, most: int = 1) -> bool:
        """Return whether in a cell all but a few training rows have one value, or `most`."""
        masks, w = [cells == cell for cell in range(int(cells.max(initial=-1)) + 1)], self._weights
        return any(
            all_but_few_alike(x[rows], None if w is None else w[rows], self._least, most)
            for rows in masks
        )

    def _is_mark(self, factor: Factor) -> bool:
        return factor.feature in self._places and factor.basis == PLAIN

    def _product(self, parts: Sequence[Part], blocks: Mapping[Factor, Array]) -> Array:
        product = np.ones(len(self._table.targets))
        for part in parts:
            product = product * blocks[part.factor][:, part.place]
        return product

    def _block(self, factor: Factor) -> Array:
        """Return the columns of one factor, by the place of its parts."""
        name, text = factor.feature, factor.text
        if factor.basis == MISSING:
            return self._absent[name][:, None].astype(np.float64)
        if name in self._places:
            return self._dummies(factor)
        x = self._values[name]
        if factor.basis == PLAIN:
            return x[:, None]
        if factor.basis == SPLINE:
            return spline(x, self._design.knots[text])
        if factor.raw:
            return np.stack([x**k for k in range(1, factor.number + 1)], axis=1)
        mean, spread, rows = self._design.powers[text]
        z = (x - mean) / spread
        whole: Array = np.polynomial.polynomial.polyval(z, np.array(rows).T).T
        return whole

    def _dummies(self, factor: Factor) -> Array:
        name = factor.feature
        marks, places = self._categories[name], self._places[name]
        block: Array = (places[:, None] == np.arange(len(marks))).astype(np.float64)
        shares = np.array(self._design.shares[name])
        block[places < 0] = shares
        hidden = hidden_places(marks, self._rare[name])
        block[:, hidden] = shares[hidden]
        return block

    def _cells(self, factors: Sequence[Factor]) -> Any:
        """Return the combination of a term's categories of each training row, by number."""
        rows = self._table.training_rows
        kinds = [
            np.unique(self._classes[factor.feature][rows], return_inverse=True)[1]
            for factor in factors
            if self._is_mark(factor)
        ]
        if not kinds:
            return np.zeros(len(rows), np.intp)
        return np.unique(np.stack(kinds, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def spline(x: Array, knots: Sequence[float]) -> Array:
    """Return Harrell's restricted cubic spline, shape (m, knots - 1): linear beyond the ends.

    The columns are x itself and, for each knot t_j except the last two,

        ((x - t_j)+^3 - (x - t_k-1)+^3 (t_k - t_j) / (t_k - t_k-1)
         + (x - t_k)+^3 (t_k-1 - t_j) / (t_k - t_k-1)) / (t_k - t_1)^2,

    where (u)+ is the positive part of u.

    >>> spline(np.array([1.0, 2.0, 4.0]), [0.0, 1.0, 3.0])[:, 1].round(6).tolist()
    [0.111111, 0.722222, 2.666667]
    """
    t = np.asarray(knots)
    last, before = t[-1], t[-2]

    def cubed(knot: float) -> Array:
        cube: Array = np.maximum((x - knot) / (last - t[0]), 0.0) ** 2 * np.maximum(x - knot, 0.0)
        return cube

    columns = [x]
    for knot in t[:-2]:
        share = (last - knot) / (last - before)
        columns.append(cubed(knot) - cubed(before) * share + cubed(last) * (share - 1.0))
    return np.stack(columns, axis=1)


def told_of_terms(
    table: SiteRows, stage: str, down: Mapping[str, Any], least: int, cell: int = 1
) -> Any:
    """Return a node's answer in an exchange of terms; see the module.

    Parameters
    ----------
    table : SiteRows
    stage : {"quantiles", "powers", "term sums", "term squares"}
    down : dict
        "about": the design and categories so far; "ends" of intervals, or "means" of columns.
    least : int
    cell : int
        Intervals hold groups of as many rows, too.
    """
    schema, rows, about = table.schema, table.training_rows, unpacked_text(down["about"])
    design = Design.of(about["design"])
    if stage == INTERVALS_OF:
        names = [feature.name for feature in schema.numeric]
        ends = np.asarray(down["ends"], dtype=np.float64).reshape(-1, INTERVALS)
        told, numbers, w = [], table.known_numbers(least)[rows], table.weights
        for name, own in zip(of_quantiles(schema), ends, strict=True):
            column = numbers[:, names.index(name)]
            there = ~np.isnan(column)
            weights = None if w is None else w[rows][there]
            told.append(told_counts(column[there], own, max(least, cell), weights))
        return {"counts": np.concatenate(told)}
    categories = {name: tuple(own) for name, own in about["categories"].items()}
    made = Rows(table, design, categories, least)
    if stage == POWERS:
        sums = []
        for factor in orthogonal(schema):
            mean, spread, _ = design.powers[factor.text]
            z = (made.values(factor.feature)[rows] - mean) / spread
            powers = range(2 * factor.number + 1)
            few = is_few(table.weights, rows, least) or made.shown(factor) < factor.number
            sums += [0.0 if few else math.fsum((z**k).tolist()) for k in powers]
        return {"sums": np.array(sums)}
    columns, n = term_columns(schema, categories), float(len(rows))
    observed, totals = np.zeros(len(columns)), np.zeros(len(columns))
    means = np.asarray(down["means"]) if stage == SQUARES else totals
    few = is_few(table.weights, rows, least)
    for places, parts in _by_term(columns) if not few else ():
        if _is_wide(parts, categories):
            levels, own = made.levels(parts)
            counts = np.bincount(levels[rows], minlength=int(own.max()) + 1)[own].astype(float)
            at = means[places]
            spread = counts * (1.0 - at) ** 2 + (n - counts) * at**2
            observed[places] = n
            totals[places] = spread if stage == SQUARES else counts
            continue
        for place, column in zip(places, made.term(parts)[rows].T, strict=True):
            if np.isnan(column).any():
                continue
            observed[place] = n
            each = np.square(column - means[place]) if stage == SQUARES else column
            totals[place] = math.fsum(each.tolist())
    return {"squares": totals} if stage == SQUARES else {"observed": observed, "sums": totals}


def matrix(
    table: SiteRows,
    design: Design,
    categories: Mapping[str, tuple[str, ...]],
    kept: Any,
    means: Array,
    scales: Array,
    least: int,
) -> Any:
    """Return the prepared rows, shape (m, columns), as an array or a sparse matrix.

    Parameters
    ----------
    table : SiteRows
    design : Design
    categories : dict
    kept : array of int, shape (columns,)
        The terms' columns that the model has.
    means, scales : array, shape (columns,)
    least : int
    """
    made, blocks = Rows(table, design, categories, least), []
    there = {int(place): k for k, place in enumerate(kept)}
    for places, parts in _by_term(term_columns(table.schema, categories)):
        used = [j for j, place in enumerate(places) if place in there]
        if not used:
            continue
        at = [there[places[j]] for j in used]
        if _is_wide(parts, categories):
            levels, of = made.levels(parts)
            blocks.append(level_block(levels, of[used], (), means[at], scales[at]))
            continue
        whole = made.term(parts)[:, used]
        blocks.append((np.where(np.isnan(whole), means[at], whole) - means[at]) / scales[at])
    if all(isinstance(block, np.ndarray) for block in blocks):
        return np.concatenate(blocks, axis=1)
    from scipy import sparse

    return sparse.csr_array(sparse.hstack(list(map(sparse.csr_array, blocks)), format="csr"))


def _by_term(columns: Sequence[Any]) -> Any:
    """Yield the places of each term's columns, and their parts."""
    for _, group in itertools.groupby(enumerate(columns), key=lambda pair: pair[1][0]):
        members = list(group)
        yield [place for place, _ in members], [parts for _, (_, parts) in members]


def is_rest(parts: Sequence[Part], categories: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether a column marks a wide feature's rows in no named category."""
    part = parts[0]
    return _is_wide([parts], categories) and categories[part.factor.feature][part.place] == OTHER


def _is_wide(columns: Sequence[Sequence[Part]], categories: Mapping[str, tuple[str, ...]]) -> bool:
    factor = columns[0][0].factor
    return factor.basis == PLAIN and is_wide(categories.get(factor.feature, ()))


# --- on the server -------------------------------------------------------------------------------


def of_quantiles(schema: Schema) -> list[str]:
    """Return the features whose quantiles are needed, for knots or a median."""
    names = [f.feature for f in _splines(schema) if not f.knots]
    names += [feature.name for feature in schema.numeric if feature.impute == MEDIAN]
    return list(dict.fromkeys(names))


def orthogonal(schema: Schema) -> list[Factor]:
    """Return the polynomials whose moments are needed."""
    factors = [f for term in schema.design for f in term.factors if f.basis == POLYNOMIAL]
    return [factor for factor in dict.fromkeys(factors) if not factor.raw]


def _splines(schema: Schema) -> list[Factor]:
    factors = [f for term in schema.design for f in term.factors if f.basis == SPLINE]
    return list(dict.fromkeys(factors))


class Agreement(NamedTuple):
    """The result of the exchanges of terms."""

    design: Design
    observed: Array  # the number of rows behind each column
    means: Array
    squares: Array


def agree_on_terms(
    schema: Schema,
    seen: Mapping[str, tuple[float, float]],
    shares: Mapping[str, tuple[float, ...]],
    categories: Mapping[str, tuple[str, ...]],
    ask: Ask,
) -> Agreement:
    """Run the exchanges of a schema's terms.

    Parameters
    ----------
    schema : Schema
    seen : dict
        Mean and spread of each numeric feature.
    shares : dict
        The share of each category, by categorical feature.
    categories : dict
    ask : callable
        (stage, message, expected size of each array) -> the clients' answers.

    Raises
    ------
    ConfigError
        If knots coincide.
    """
    for feature in schema.categorical:
        if feature.impute == INDICATOR:
            shares = {**shares, feature.name: (0.0,) * len(shares[feature.name])}
    fill = {name: mean for name, (mean, _) in seen.items()}
    design = Design(fill, shares, {}, {})

    def asked(stage: str, known: Design, expected: dict[str, int], **more: Any) -> dict[str, Array]:
        marks = {name: list(own) for name, own in categories.items()}
        about = packed_text({"design": known.stated, "categories": marks})
        told = ask(stage, {"about": about, **more}, expected)
        return {
            name: np.array([math.fsum(c) for c in np.stack([o[name] for o in told], 1).tolist()])
            for name in expected
        }

    names = of_quantiles(schema)
    knots = {f.text: f.knots for f in _splines(schema) if f.knots}
    if names:
        ends = np.stack([first_ends(*seen[name]) for name in names])
        size = {"counts": len(names) * (INTERVALS + 1)}
        counts = asked(INTERVALS_OF, design, size, ends=ends.ravel())["counts"]
        counts = counts.reshape(len(names), -1)
        empty = [name for name, own in zip(names, counts, strict=True) if not own.any()]
        if empty:
            raise ConfigError(
                f"no quantile of {empty[0]!r} is known, since it has no values, or no node has "
                f"min_rows of them: leave it out"
            )
        ends = np.stack([second_ends(*pair) for pair in zip(counts, ends, strict=True)])
        counts = asked(INTERVALS_OF, design, size, ends=ends.ravel())["counts"]
        known = dict(
            zip(names, zip(counts.reshape(len(names), -1), ends, strict=True), strict=True)
        )
        for factor in _splines(schema):
            if not factor.knots:
                values = quantiles(*known[factor.feature], QUANTILES[factor.number])
                knots[factor.text] = _apart(factor, values)
        fill |= {
            f.name: quantiles(*known[f.name], [0.5])[0]
            for f in schema.numeric
            if f.impute == MEDIAN
        }
        design = Design(fill, shares, knots, {})
    design = Design(fill, shares, knots, {})
    polynomials = orthogonal(schema)
    if polynomials:
        none: tuple[tuple[float, ...], ...] = ()
        powers = {f.text: (*_unit(seen[f.feature]), none) for f in polynomials}
        sizes = [2 * f.number + 1 for f in polynomials]
        sums = asked(POWERS, Design(fill, shares, knots, powers), {"sums": sum(sizes)})["sums"]
        each = np.split(sums, np.cumsum(sizes)[:-1])
        for factor, moments in zip(polynomials, each, strict=True):
            mean, spread, _ = powers[factor.text]
            powers[factor.text] = (mean, spread, _orthonormal(factor, moments))
        design = Design(fill, shares, knots, powers)
    count = len(term_columns(schema, categories))
    first = asked(SUMS, design, {"observed": count, "sums": count})
    means = first["sums"] / np.maximum(first["observed"], 1.0)
    squares = asked(SQUARES, design, {"squares": count}, means=means)["squares"]
    return Agreement(design, first["observed"], means, squares)


def _unit(seen: tuple[float, float]) -> tuple[float, float]:
    return seen[0], seen[1] or 1.0


def _apart(factor: Factor, knots: Sequence[float]) -> tuple[float, ...]:
    """Return knots after a check that they differ.

    Raises
    ------
    ConfigError
    """
    if len(set(knots)) < len(knots):
        said = ", ".join(f"{knot:.6g}" for knot in knots)
        raise ConfigError(
            f"{factor.text}: knots coincide, at {said}: use fewer knots, or give them, such as "
            f"rcs({factor.feature}, [1, 2, 3])"
        )
    return tuple(knots)


def _orthonormal(factor: Factor, moments: Array) -> tuple[tuple[float, ...], ...]:
    """Return the coefficients of polynomials that are orthonormal over all rows, from moments.

    Raises
    ------
    ConfigError
        If the feature has no more values than the degree.

    Examples
    --------
    >>> z = np.array([-1.0, 0.0, 1.0])
    >>> found = _orthonormal(Factor("z", POLYNOMIAL, 2), np.array([(z**k).sum() for k in range(5)]))
    >>> np.round(np.array(found) @ np.stack([z**k for k in range(3)]), 4).tolist()
    [[-0.7071, 0.0, 0.7071], [0.4082, -0.8165, 0.4082]]
    """
    size = factor.number + 1
    places = np.arange(size)
    hankel = moments[places[:, None] + places]
    lengths = np.sqrt(np.maximum(np.diag(hankel), np.finfo(float).tiny))
    try:
        lower = np.linalg.cholesky(hankel / lengths / lengths[:, None])
        enough = float(np.diag(lower).min()) > 1e-6
    except np.linalg.LinAlgError:
        enough = False
    if not enough:
        raise ConfigError(
            f"{factor.text}: {factor.feature!r} has too few values over all nodes for this degree: "
            f"use a lower degree"
        )
    rows = np.linalg.inv(lower) / lengths
    return tuple(tuple(row) for row in rows[1:].tolist())
