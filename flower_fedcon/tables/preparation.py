"""The nodes' agreement before round 1: categories, means and scales of their columns.

It takes two exchanges, each of sums over a node's training rows. With p numeric and q categorical
features, c_1, ..., c_q their categories, and n the rows:

    1. up    n; for each numeric column the number of its values, and their sum (2 p + 1 numbers);
             if the schema names a `weight`, the sum of the rows' weights (one number), and for
             weights of sampling their effective number, (sum w)^2 / sum w^2 (one number);
             with a schema of complete cases, the number of rows left out (one number);
             for each categorical column without listed categories, their names;
             for an outcome with classes the rows of each (for events one number);
             for a loss with a log link the weighted sums of outcomes, exposures and squared
             outcomes (3 numbers), which give the null model at which a run starts
       down  the p means over all nodes, and the names of all categories, sorted
    2. up    for each numeric column the sum of (value - mean)^2 (p numbers); for each category the
             number of its rows (c_1 + ... + c_q numbers)
       down  with every later message: mean and scale of each column of the model

If the schema has `curve_times`, one more exchange asks for events and rows at risk in the intervals
between them (2 numbers for each time and arm), see `flower_fedcon.tables.risk_counts`. A node's
policy must list it. So does that of `describe_by`, see `flower_fedcon.tables.by_level`.

A node sends nothing based on fewer rows than its policy's `min_rows`: such a column counts as not
observed, such a category as absent, and the outcome's sums are left out. Of a category without
rows, or with too few, the number sent is NaN. If a class has no row at any node, no model can be
fitted, and the run ends. `tables.checks.conspicuous` reports conspicuous values at nodes,
from these sums. What a node uses of its rows then is in `flower_fedcon.tables.small_cells`.

The rows' weights count only in the model's loss: in means, scales and shares rows count equally, as
in SimpleImputer and StandardScaler without `sample_weight`. The sum of a node's weights is its part
of the pooled loss, sum_i w_i loss_i / sum_i w_i, where clients are weighted by examples.

A categorical feature has a column, 0 or 1, for each category but the reference. A missing value
becomes the column's mean over all nodes, of a numeric column or of these 0s and 1s. The variance is
computed after this step, as by scikit-learn's SimpleImputer and StandardScaler on pooled rows. A
column without values, or with only one value, is left out of the model.

A feature with more than 200 categories is wide. It has an additional column, "feature=(other)", for
rows without a value, or with a category that no node sends. With a wide feature the rows are
sparse, see `flower_fedcon.tables.encoded_rows`.

SVMlight files have numbered columns, and no missing values: 1. up rows and columns, down the most
columns;
2. up the sum of squares of each column. Columns are divided by their root mean square, and never
centred, so that they stay sparse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, first_few
from flower_fedcon.regularizers import WithIntercept
from flower_fedcon.tables.by_level import ByLevel
from flower_fedcon.tables.descriptives import Descriptives
from flower_fedcon.tables.design import (
    Agreement,
    Ask,
    Design,
    agree_on_terms,
    is_rest,
    name_of,
    term_columns,
    wide_columns,
)
from flower_fedcon.tables.encoding import OTHER, WIDE, dummies, is_wide
from flower_fedcon.tables.families import Family, family_of
from flower_fedcon.tables.families.base import DISPERSION as DISPERSION
from flower_fedcon.tables.families.base import INTERCEPT as INTERCEPT
from flower_fedcon.tables.marks import number_in
from flower_fedcon.tables.packed_text import packed_text, unpacked_text
from flower_fedcon.tables.risk_counts import Curves
from flower_fedcon.tables.row_weights import (
    SAMPLING,
    effective_number,
    in_words,
    kind_in_words,
    of_sites,
)
from flower_fedcon.tables.schema import COMMON, OWN, RANDOM, Schema
from flower_fedcon.validation import Array
from flower_fedcon.wire.digests import LATER
from flower_fedcon.wire.payloads import Payload, payload_bytes

WEIGHTS = 1e-100, 1e100  # bounds on the sum of a node's weights
LARGEST = 1e100  # the largest number that a node may send before round 1
LEAST = 1e-50  # the least scale: below it, an overflow would reveal something of its row


@dataclass(frozen=True, eq=False)
class Preparation:
    """The nodes' agreement.

    Parameters
    ----------
    schema : str
        The digest of the schema.
    names : tuple of str
        The names of the model's columns: "feature", "log(feature)" with a transform, or
        "feature=category".
    groups : tuple of int
        For each column the number of its feature.
    means, scales : array, shape (columns,)
        Over the training rows of all nodes; a scale is 1 without standardisation.
    kept : array of int, shape (columns,)
        The places of the model's columns among the encoded ones.
    categories : dict
        For each categorical feature the categories of all nodes.
    left_out : dict
        The columns left out, and why: "empty" or "constant".
    rows : tuple of int
        Each client's number of training rows.
    weights : tuple of float
        For each client the sum of the weights of these rows; without weights their number.
    effective : tuple of float
        With weights of sampling: for each client the effective number of these rows.
    width : int
        Columns of SVMlight files; 0 for others.
    numeric : int
        The number of numeric columns among the encoded ones; they come first.
    standardized : bool
    loss : str
        The schema's loss.
    classes : tuple of str
        The schema's classes, for a multinomial loss.
    held_out : tuple of str
        The names of the metrics on held-out rows; empty without such rows.
    uplink_bytes, downlink_bytes : int
        The bytes of the two exchanges, and of that of curves, over all clients.
    stated : Schema, optional
        The schema itself, if known.
    curves : Curves, optional
        Events and rows at risk at the schema's `curve_times`.
    seen : dict of tuple of float
        For each numeric feature the mean and the standard deviation of its values, after its
        transform.
    imputed : dict of int
        For each feature the number of missing values that are filled in.
    incomplete : tuple of float
        With a schema of complete cases: for each client the number of rows left out; NaN if it does
        not send it, since they are few.
    design : Design, optional
        What the columns of terms consist of, if the schema has terms.
    level : tuple of float
        For a loss with a log link the sums of outcomes, exposures and squared outcomes over all
        clients.
    by_level : ByLevel, optional
        The columns by the levels of the schema's `describe_by`.
    outcomes : tuple of tuple of float
        For each client the number of training rows with each of `Schema.outcomes`; NaN if it does
        not send them, since they are few.
    described : Descriptives, optional
        The description of the clients' columns.
    remarks : tuple of str
        Conspicuous values and columns, one sentence each.
    site_effects : {"common", "own", "random"}
        Whether the model has an intercept, or each site has its own and never sends it. "random"
        means a common intercept in the rounds and normal intercepts about it afterwards, see
        `flower_fedcon.tables.ending.final_intercepts`; nodes need not know it.
    """

    schema: str
    names: tuple[str, ...]
    groups: tuple[int, ...]
    means: Array
    scales: Array
    kept: Any
    categories: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, str]
    rows: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    width: int = 0
    numeric: int = 0
    standardized: bool = True
    loss: str = ""
    classes: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    stated: Schema | None = None
    curves: Curves | None = None
    level: tuple[float, ...] = ()
    site_effects: str = field(default=COMMON, metadata={LATER: True})
    seen: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    imputed: Mapping[str, int] = field(default_factory=dict)
    incomplete: tuple[float, ...] = ()
    design: Design | None = None
    outcomes: tuple[tuple[float, ...], ...] = ()
    described: Descriptives | None = None
    by_level: ByLevel | None = field(default=None, metadata={LATER: True})
    remarks: tuple[str, ...] = field(default=(), metadata={LATER: True})
    effective: tuple[float, ...] = field(default=(), metadata={LATER: True})

    @property
    def weighing(self) -> str:
        """What the rows' weights mean and add up to, in words."""
        stated = None if self.stated is None else self.stated.weight_kind
        doubt = of_sites([""] * len(self.rows), self.weights, self.rows)
        kind = kind_in_words(stated, doubt)
        effective = effective_number(self.weights, self.effective) if self.effective else math.nan
        return in_words(kind, sum(self.rows), math.fsum(self.weights), effective)

    @property
    def start(self) -> Array | None:
        """The start of a run if zeros are far away: the null model of a loss with a log link.

        From 0 a Newton step overshoots if counts are in thousands, and hardly moves if outcomes are
        far below 1.
        """
        if self.stated is None or not self.level or min(self.level[:2]) <= 0:
            return None
        if self.site_effects == OWN:
            return None  # sites fit their own intercepts
        outcomes, exposures, squares = self.level
        start = np.zeros(self.stated.model_shape(len(self.names)))
        columns, mean = len(self.names), outcomes / exposures
        start[columns] = math.log(mean)
        if self.stated.family.dispersed:
            n = math.fsum(self.weights)
            mean, square = outcomes / n, squares / n
            start[-1] = self.stated.family.start(mean, square - mean * mean)
        return start

    @property
    def family(self) -> Family:
        """The loss's record."""
        return family_of(self.loss)

    def of_schema(self, schema: Schema) -> Preparation:
        """Return the agreement, completed from a node's own schema."""
        return replace(
            self, numeric=len(schema.numeric), standardized=schema.standardize, stated=schema
        )

    @property
    def centers(self) -> Array:
        """What is subtracted from each column: its mean, or 0 for columns that are not centred.

        Without standardisation numeric columns are still centred, but not scaled: with an intercept
        that changes no coefficient, and a column far from 0 keeps its digits.
        """
        if self.design is not None:
            wide = self._wide
            return self.means if wide is None else np.where(wide, 0.0, self.means)
        if self.width or not (
            self.standardized and not any(map(is_wide, self.categories.values()))
        ):
            return np.where(self.kept < self.numeric, self.means, 0.0)
        return self.means

    @cached_property
    def _wide(self) -> Array | None:
        if not any(map(is_wide, self.categories.values())):
            return None
        assert self.stated is not None  # noqa: S101  (it has a design)
        return wide_columns(self.stated, self.categories)[self.kept]  # type: ignore[no-any-return]

    def check_method(self, strategy: Any) -> None:
        """Raise if a strategy leaves an intercept free that the model does not have.

        Raises
        ------
        ConfigError
        """
        psi = getattr(strategy, "regularizer", None)
        if isinstance(psi, WithIntercept) and self.site_effects == OWN:
            raise ConfigError(
                f"{psi!r} leaves the last entry of a model free, and with "
                f"site_effects={self.site_effects!r} this entry is a column, not an intercept: "
                f"give the inner penalty without WithIntercept"
            )

    def told_of_share(self, name: str, percent: float) -> str:
        """Return what the log says of a site with most rows, where nothing is wrong."""
        return (
            f"site {name} holds {percent:.1f}% of the rows. Each row counts alike, as in pooled "
            f"data, so the estimates follow this site most"
        )

    def asked_at_the_end(self, inference: str) -> str:
        """Return the argument by which the server asks for sums at the end."""
        if self.site_effects == RANDOM:
            return f"site_effects={RANDOM!r}"
        if self.stated is not None and not self.stated.stratified:
            return "stratified=False of a schema"
        return f"inference={inference!r}"

    def entries(self, shape: tuple[int, ...]) -> list[str]:
        """Return the names of a model's entries, flattened: its columns, and the intercept."""
        more = () if self.stated is None else self.family.more(self.stated)
        rows = [*self.names, INTERCEPT, *more][: shape[0]]
        if len(shape) == 1:
            return rows
        return [f"{row} [{mark}]" for row in rows for mark in self.classes]

    def in_units(self, x: Array) -> Array:
        """Return a model with columns in their own units, and its intercept for rows of zeros.

        Parameters
        ----------
        x : array, shape (entries,) or (entries, classes)
            The coefficients of prepared columns, with or without an intercept.
        """
        columns, model = len(self.names), np.array(x, dtype=np.float64)
        table = model.reshape(len(model), -1)
        table[:columns] /= self.scales[:, None]
        if len(table) > columns:
            for k, column in enumerate(table[:columns].T):
                table[columns, k] -= math.fsum((column * self.centers).tolist())
        return model

    @cached_property
    def payload(self) -> Payload:
        """The part that a node needs, sent with each message."""
        about: dict[str, Any] = {
            "schema": self.schema,
            "categories": {k: list(v) for k, v in self.categories.items()},
        }
        if self.site_effects == OWN:
            about["site_effects"] = OWN
        if self.design is not None:
            about["design"] = self.design.stated
        return {
            "means": self.means,
            "scales": self.scales,
            "kept": np.asarray(self.kept, dtype=np.int64),
            "about": packed_text(about),
        }

    @property
    def nbytes(self) -> int:
        """The bytes of `payload`, added to each message."""
        return payload_bytes(self.payload)

    @classmethod
    def from_payload(cls, payload: Payload) -> Preparation:
        """Return the preparation in a server's message.

        Raises
        ------
        ConfigError
            If the message has another form.
        """
        try:
            about = unpacked_text(payload["about"])
            means, scales, kept = payload["means"], payload["scales"], payload["kept"]
            categories = {str(k): tuple(map(str, v)) for k, v in about["categories"].items()}
            schema, effects = str(about["schema"]), about.get("site_effects", COMMON)
            design = about.get("design")
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"a preparation in another form ({error!r}): run one version of flower-fedcon: run "
                f"one version of flower-fedcon"
            ) from None
        if means.ndim != 1 or means.shape != scales.shape or kept.shape != means.shape:
            raise ConfigError(
                "a preparation with different numbers of means and scales: run one "
                "version of flower-fedcon"
            )
        if not (np.isfinite(means).all() and np.isfinite(scales).all() and (scales >= LEAST).all()):
            raise ConfigError("a preparation with unusable means or scales")
        if effects not in (COMMON, OWN):
            raise ConfigError(
                f"a preparation with site_effects = {effects!r}: run one version of flower-fedcon"
            )
        more: dict[str, Any] = {"site_effects": effects}
        more["width"] = 0 if kept.size and kept[0] >= 0 else len(means)
        if design is not None:
            more["design"] = Design.of(design)
        return cls(schema, ("",) * len(means), (), means, scales, kept, categories, {}, **more)


# --- on the server -------------------------------------------------------------------------------


def expected(schema: Schema, first: Agreed | None) -> dict[str, int | None]:
    """Return the names of arrays that nodes must send, and their sizes; None for any size."""
    if first is not None and schema.sparse:
        return {"squares": first.width}
    p = len(schema.numeric)
    if first is None:
        sizes: dict[str, int | None] = {"rows": 1}
        if schema.weight:
            sizes["weight"] = 1
        if schema.weight_kind == SAMPLING:
            sizes["effective"] = 1
        if schema.complete_cases:
            sizes["left_out"] = 1
        if schema.outcomes:
            sizes["outcomes"] = len(schema.outcomes)
        if schema.family.log_link:
            sizes["level"] = 3
        if schema.sparse:
            return sizes | {"width": 1}
        return sizes | {"observed": p, "sums": p, "categories": None}
    return {"squares": p, "counts": sum(map(len, first.categories.values()))}


@dataclass(frozen=True, eq=False)
class Agreed:
    """The result of the first exchange."""

    rows: tuple[int, ...]
    weights: tuple[float, ...]
    observed: Array
    means: Array
    categories: dict[str, tuple[str, ...]]
    width: int
    level: tuple[float, ...] = ()
    incomplete: tuple[float, ...] = ()
    outcomes: tuple[tuple[float, ...], ...] = ()
    effective: tuple[float, ...] = ()

    @property
    def payload(self) -> Payload:
        """The part that is sent to nodes."""
        if self.width:
            return {"width": float(self.width)}
        names = {name: list(marks) for name, marks in self.categories.items()}
        return {"means": self.means, "categories": packed_text(names)}


def agree(schema: Schema, answers: Sequence[Payload]) -> Agreed:
    """Return the result of the first exchange, with answers in client order.

    Raises
    ------
    ConfigError
        If a node's categories are in an unusable form.
    """
    rows = tuple(int(answer["rows"]) for answer in answers)
    counted = "weight" if schema.weight else "rows"
    weights = tuple(float(answer[counted]) for answer in answers)
    level = tuple(_total(answers, "level").tolist()) if schema.family.log_link else ()
    counts = answers if schema.outcomes else []
    outcomes = tuple(tuple(np.asarray(one["outcomes"]).tolist()) for one in counts)
    sampled = answers if schema.weight_kind == SAMPLING else []
    effective = tuple(float(one["effective"]) for one in sampled)
    if schema.sparse:
        width = int(max(answer["width"] for answer in answers))
        none = np.empty(0)
        return Agreed(rows, weights, none, none, {}, width, level, (), outcomes, effective)
    observed = _total(answers, "observed")
    means = _total(answers, "sums") / np.maximum(observed, 1.0)
    told = [categories_of(answer["categories"], schema) for answer in answers]
    categories = {}
    for feature in schema.categorical:
        marks = {mark for one in told for mark in one.get(feature.name, ())}
        every = feature.categories or tuple(sorted(marks, key=_in_order))
        categories[feature.name] = (*every, OTHER) if len(every) > WIDE else every
    telling = answers if schema.complete_cases else []
    incomplete = tuple(float(answer["left_out"]) for answer in telling)
    return Agreed(rows, weights, observed, means, categories, 0, level, incomplete, outcomes,
                  effective)  # fmt: skip


def conclude(
    schema: Schema, first: Agreed, answers: Sequence[Payload], ask: Ask | None = None
) -> Preparation:
    """Return the preparation that follows from both exchanges.

    Parameters
    ----------
    schema : Schema
    first : Agreed
    answers : sequence of dict
        The answers of the second exchange.
    ask : callable, optional
        For the exchanges of a schema's terms: see `flower_fedcon.tables.design.agree_on_terms`.

    Raises
    ------
    ConfigError
        If no column has two values, or terms cannot be made.
    """
    total = float(sum(first.rows))
    squares = _total(answers, "squares")
    said: dict[str, Any] = {
        "rows": first.rows,
        "weights": first.weights,
        "effective": first.effective,
        "outcomes": first.outcomes,
        "numeric": len(schema.numeric),
        "standardized": schema.standardize,
        "loss": schema.loss,
        "classes": schema.classes,
        "held_out": schema.family.held_out if schema.test_fraction else (),
        "stated": schema,
        "level": first.level,
        "incomplete": first.incomplete,
        "seen": {
            feature.name: (float(mean), math.sqrt(square / max(n, 1.0)))
            for feature, mean, square, n in zip(
                schema.numeric, first.means, squares, first.observed, strict=False
            )
        },
    }
    if schema.sparse:
        scales = np.sqrt(squares / total)
        scales[(scales == 0) | (not schema.standardize)] = 1.0
        names = tuple(str(j + 1) for j in range(first.width))
        kept = np.full(first.width, -1)
        zeros = np.zeros(first.width)
        groups = tuple(range(first.width))
        return Preparation(
            schema.digest, names, groups, zeros, scales, kept, {}, {}, width=first.width, **said
        )
    names_, groups_, means, variances, observed = [], [], [], [], []
    unused = set()  # columns of wide features that no row needs
    for j, feature in enumerate(schema.numeric):
        plain = feature.transform == "none"
        names_.append(feature.name if plain else f"{feature.transform}({feature.name})")
        groups_.append(schema.names.index(feature.name))
        means.append(float(first.means[j]))
        variances.append(float(squares[j]) / total)
        observed.append(float(first.observed[j]))
    counts, place = _total(answers, "counts"), 0
    absent = {f.name: total - n for f, n in zip(schema.numeric, first.observed, strict=True)}
    shares = {}
    for feature in schema.categorical:
        marks = first.categories[feature.name]
        by_mark = dict(zip(marks, counts[place : place + len(marks)].tolist(), strict=True))
        place += len(marks)
        n = math.fsum(by_mark.values())
        shares[feature.name] = tuple(by_mark[mark] / n if n else 0.0 for mark in marks)
        if not is_wide(marks):
            absent[feature.name] = total - n
        for category in dummies(feature, marks):
            if category == OTHER and not by_mark[category]:
                unused.add(len(names_))
            share = by_mark[category] / n if n else 0.0
            names_.append(f"{feature.name}={category or '(other)'}")
            groups_.append(schema.names.index(feature.name))
            means.append(share)
            spread = by_mark[category] * (1 - share) ** 2 + (n - by_mark[category]) * share**2
            variances.append(spread / total)
            observed.append(n)
    said["imputed"] = {name: int(cells) for name, cells in absent.items() if cells}
    if schema.design:
        return _of_terms(schema, first, shares, said, ask)
    why, used = {}, []
    for j, name in enumerate(names_):
        if observed[j] == 0:
            why[name] = "empty"
        elif j in unused:
            continue
        elif _is_constant(variances[j], means[j], total):
            why[name] = "constant"
        else:
            used.append(j)
    kept = np.array(used, dtype=np.int64)
    if not kept.size:
        raise ConfigError(f"no column has two values over all nodes: {left_out_in_words(why)}")
    expect_distinct([names_[j] for j in used])
    return Preparation(
        schema=schema.digest,
        names=tuple(names_[j] for j in kept),
        groups=tuple(groups_[j] for j in kept),
        means=np.array(means)[kept],
        scales=np.sqrt(np.array(variances)[kept]) if schema.standardize else np.ones(len(kept)),
        kept=kept,
        categories=first.categories,
        left_out=why,
        **said,
    )


def expect_distinct(names: Sequence[str], remedy: str = "rename one of them") -> None:
    """Raise if two columns of a model have one name, by which coefficients are found.

    Raises
    ------
    ConfigError

    Examples
    --------
    >>> expect_distinct(["age", "sex=m"])
    """
    every = [*names, INTERCEPT, DISPERSION]
    if len(set(every)) < len(every):
        twice = max(every, key=every.count)
        made = "a category's column is 'feature=category'; the rarest share '(other)'"
        if twice in (INTERCEPT, DISPERSION):
            made = "one of them is the model's own"
        raise ConfigError(
            f"two columns of the model have the name {twice!r}, and coefficients are found by "
            f"their names ({made}): {remedy}"
        )


def _of_terms(
    schema: Schema, first: Agreed, shares: Mapping[str, Any], said: dict[str, Any], ask: Ask | None
) -> Preparation:
    """Return the preparation of a schema's terms, by further exchanges."""
    if ask is None:
        raise ConfigError("the schema has terms, which need further exchanges with nodes")
    categories, total = first.categories, float(sum(first.rows))
    agreed: Agreement = agree_on_terms(schema, said["seen"], shares, categories, ask)
    columns = term_columns(schema, categories)
    names = [name_of(parts) for _, parts in columns]
    variances, why, used = agreed.squares / total, {}, []
    for j, name in enumerate(names):
        if not agreed.observed[j]:
            why[name] = "empty"
        elif not agreed.means[j] and is_rest(columns[j][1], categories):
            continue
        elif _is_constant(float(variances[j]), float(agreed.means[j]), total):
            why[name] = "constant"
        else:
            used.append(j)
    if not used:
        raise ConfigError(f"no column has two values over all nodes: {left_out_in_words(why)}")
    kept = np.array(used, dtype=np.int64)
    expect_distinct([names[j] for j in used], "leave one of the terms out, or rename a feature")
    return Preparation(
        schema=schema.digest,
        names=tuple(names[j] for j in used),
        groups=tuple(columns[j][0] for j in used),
        means=agreed.means[kept],
        scales=np.sqrt(variances[kept]) if schema.standardize else np.ones(len(kept)),
        kept=kept,
        categories=categories,
        left_out=why,
        design=agreed.design,
        **said,
    )


def left_out_in_words(left_out: Mapping[str, str]) -> str:
    """Return a text with the first columns left out, and why.

    >>> left_out_in_words({"a": "empty", "b": "constant"})
    'a (empty), b (constant)'
    """
    return first_few([f"{name} ({why})" for name, why in left_out.items()], 20)


def categories_of(packed: Any, schema: Schema) -> dict[str, list[str]]:
    """Return a node's categories, for features of the schema.

    Raises
    ------
    ConfigError
        If they have another form.
    """
    told = unpacked_text(packed)
    names = {feature.name for feature in schema.categorical}
    if not isinstance(told, dict) or not told.keys() <= names:
        raise ConfigError("its categories belong to other columns than the schema's")
    for marks in told.values():
        if not isinstance(marks, list) or not all(isinstance(m, str) and m for m in marks):
            raise ConfigError("its categories are not lists of names")
    return told


def _total(answers: Sequence[Payload], name: str) -> Array:
    """Return the sum over the clients of what they tell, rounded once: the same in any order."""
    columns = np.stack([answer[name] for answer in answers], axis=1)
    columns = np.where(np.isnan(columns), 0.0, columns)  # few rows count as none
    return np.array([math.fsum(column) for column in columns.tolist()])


def _is_constant(variance: float, mean: float, rows: float) -> bool:
    """Return whether a variance is 0 up to rounding, by scikit-learn's rule."""
    eps = float(np.finfo(np.float64).eps)
    return variance <= rows * eps * variance + (rows * mean * eps) ** 2


def _in_order(mark: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers before words, and numbers by value."""
    number = number_in(mark)
    return (True, 0.0, mark) if number is None else (False, number, mark)
