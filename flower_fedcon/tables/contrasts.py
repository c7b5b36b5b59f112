"""Effects between rows of values: linear combinations of a model's coefficients, with errors.

The difference between the linear predictors of two rows is d'b, where d is the difference of the
two rows of the design; its variance is d'Vd. Splines, polynomials, products and standardised
columns therefore need no special rules. Values that both rows share cancel, unless a product
multiplies them by values that differ: the effect then depends on them, and they must be given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, first_few, nearest
from flower_fedcon.tables.encoding import is_wide
from flower_fedcon.tables.marks import canonical, text_of
from flower_fedcon.tables.own_files import CONTRASTS
from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.statistics import Estimates
from flower_fedcon.tables.statistics.summary_text import Summary, estimates_table
from flower_fedcon.validation import Array

_ROUNDING = 1e-12  # a variance that counts as 0, relative
By = str | Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Contrasts(Estimates):
    """Linear combinations of a model's coefficients, with errors; they print as a table.

    `values`, `bse`, `statistics`, `pvalues`, `conf_int` and `joint_test` are those of `Estimates`,
    whose other attributes are the model's own.

    Parameters
    ----------
    ratio : str
        The name of a line's exponential, such as "odds ratio"; "" if it has no meaning.
    at : tuple of str
        The values of `by` at which each line's effect is taken; empty without `by`.
    """

    ratio: str = ""
    at: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        fit: Estimates,
        rows: Array,
        names: Sequence[str],
        ratio: str,
        at: Sequence[str] = (),
    ) -> Contrasts:
        """Return combinations of a fit's parameters.

        Parameters
        ----------
        fit : Estimates
        rows : array, shape (combinations, parameters)
        names : sequence of str
            The combinations' names.
        ratio, at : see `Contrasts`

        Raises
        ------
        ConfigError
            If a combination has no parameter.
        """
        if empty := [name for name, row in zip(names, rows, strict=True) if not row.any()]:
            raise ConfigError(
                f"{empty[0]}: the model has no column that tells them apart, so that nothing is "
                "compared: the rows are alike, or the columns were left out (the report says which)"
            )
        mapped = fit.mapped(rows, names)
        entries = {field.name: getattr(mapped, field.name) for field in fields(Estimates)}
        return cls(**entries, ratio=ratio, at=tuple(at))

    def differences(self) -> Contrasts:
        """Return the differences of effects at several values from the effect at the first.

        The `joint_test` of all its lines tests the interaction.

        Raises
        ------
        ConfigError
            If effects are not at several values, or are equal because no term multiplies the two.
        """
        several = len(dict.fromkeys(self.at))
        if several < 2:
            raise ConfigError("differences are between effects at several values: name them by by=")
        signs = np.hstack([-np.ones((several - 1, 1)), np.eye(several - 1)])
        blocks = len(self.names) // several
        effects = [name.removesuffix(f" at {self.at[0]}") for name in self.names[::several]]
        names = [
            f"{effect} at {at} less {self.at[0]}" if blocks > 1 else f"{at} less {self.at[0]}"
            for effect in effects
            for at in self.at[1:several]
        ]
        ratio = f"ratio of {self.ratio}s" if self.ratio else ""
        mapped = self.mapped(np.kron(np.eye(blocks), signs), names)
        if (np.diag(mapped.covariance) <= _ROUNDING * np.diag(self.covariance).max()).any():
            raise ConfigError(
                f"the effect is the same at {' and '.join(self.at[:2])} by the model, which has no "
                "term with the product of the two: a product in terms lets it differ"
            )
        return Contrasts.of(self, np.kron(np.eye(blocks), signs), names, ratio)

    def columns_of(self, alpha: float = 0.05) -> dict[str, list[Any]]:
        """Return a table's columns by name, for pandas or a file; intervals cover 1 - alpha."""
        low, high = self.conf_int(alpha).T.tolist()
        each = [self.names, self.values.tolist(), self.bse.tolist()]
        columns = dict(zip(CONTRASTS, map(list, each), strict=True)) | {
            self.letter: self.statistics.tolist(),
            "p_value": self.pvalues.tolist(),
            "lower": low,
            "upper": high,
        }
        if self.ratio:
            name = self.ratio.replace(" ", "_")
            triples = zip(("", "_lower", "_upper"), (self.values.tolist(), low, high), strict=True)
            columns |= {f"{name}{end}": [_exp(v) for v in column] for end, column in triples}
        return columns

    def summary(self, alpha: float = 0.05) -> Summary:
        """Return the printed table, with intervals of coverage 1 - alpha.

        The intervals are those of the ratio, if it has a meaning; `columns_of` has both.
        """
        table = estimates_table(self, alpha, self.ratio, of_ratio=True)
        rule = max(map(len, table))
        lines = ["=" * rule, table[0], "-" * rule, *table[1:], "=" * rule]
        return Summary("\n".join([*lines, *(f"note: {note}" for note in self.notes)]))

    def __str__(self) -> str:
        return str(self.summary())


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True)
class Pair:
    """Two rows whose linear predictors are compared.

    Attributes
    ----------
    what, at : str
        The comparison, and the values of `by` at which it is made.
    first, second : dict
        The value of each feature; None if it cancels.
    """

    what: str
    at: str
    first: Mapping[str, Any]
    second: Mapping[str, Any]


def pairs(
    schema: Schema,
    categories: Mapping[str, tuple[str, ...]],
    values: Mapping[str, Any],
    against: Mapping[str, Any],
    by: By | None,
) -> list[Pair]:
    """Return the pairs of rows whose linear predictors give the requested effects.

    Parameters
    ----------
    schema : Schema
    categories : dict
        The model's categories, by feature.
    values, against, by
        See `flower_fedcon.tables.fitted.FittedModel.contrast`.

    Raises
    ------
    ConfigError
        If a feature or category is unknown, or the effect depends on a feature that is not named.
    """
    if not schema.names:
        raise ConfigError(
            "SVMlight files have columns without names: take combination, of coefficients"
        )
    at = _levels(schema, categories, by)
    for given, what in ((values, "values"), (against, "against"), (at, "by")):
        if not isinstance(given, Mapping):
            raise ConfigError(
                f'{what} must be a dict of values by feature, such as {{"age": 70}}, got {given!r}'
            )
        _expect_features(schema, given)
    if not values or values.keys() != against.keys():
        lone = sorted(values.keys() ^ against.keys())
        which = f", and {lone[0]!r} is in one alone" if lone else ""
        raise ConfigError(
            f"both rows must have values of the same features, at least of one{which}: such as "
            'contrast({"age": 70}, {"age": 50}), or --against age=50'
        )
    if twice := sorted(values.keys() & at.keys()):
        raise ConfigError(f"{twice[0]!r} is compared, so that effects are not by it: leave by out")
    collected = []
    for first in _combined(values):
        for beside in _combined(at):
            second = {name: _one(name, value) for name, value in against.items()}
            _expect_categories(schema, categories, [first, second, beside])
            apart = [name for name in first if _mark(first[name]) != _mark(second[name])]
            _expect_named(schema, apart, {*first, *beside})
            what = f"{_said(first)} against {_said(second)}"
            nothing = {**_nothing(schema), **beside}
            collected.append(Pair(what, _said(beside), {**nothing, **first}, {**nothing, **second}))
    return collected


def between(
    fit: Estimates, apart: Array, known: Sequence[Pair], classes: Sequence[str]
) -> Contrasts:
    """Return the effects between pairs of rows; with classes, for each class against the first.

    Parameters
    ----------
    fit : Estimates
    apart : array, shape (pairs, columns)
        The first row of each pair in the design, minus the second.
    known : sequence of Pair
        The pairs, effect by effect, each at all values of `by`.
    classes : sequence of str
        The classes of a multinomial loss.

    Raises
    ------
    ConfigError
        If no column of the model differs between the rows of a pair.
    """
    several = len(dict.fromkeys(pair.at for pair in known))
    weights, names, at = [], [], []
    for first in range(0, len(known), several):
        for k in range(1, len(classes)) if classes else (0,):
            by_class = np.eye(len(classes))[k] - np.eye(len(classes))[0] if classes else np.ones(1)
            of = f" [{classes[k]} against {classes[0]}]" if classes else ""
            for place in range(first, first + several):
                row = np.kron(apart[place], by_class)
                weights.append(np.pad(row, (0, len(fit.names) - len(row))))
                pair = known[place]
                names.append(pair.what + of + (f" at {pair.at}" if pair.at else ""))
                at.append(pair.at)
    return Contrasts.of(fit, np.array(weights), names, fit.family.ratio, at)


def weights_of(combinations: Any, names: Sequence[str]) -> Array:
    """Return combinations of coefficients as rows, shape (combinations, coefficients).

    Parameters
    ----------
    combinations : sequence of dict
        The weight of each coefficient, by its name.
    names : sequence of str
        The names of all coefficients.

    Raises
    ------
    ConfigError
        If a coefficient is unknown, or a weight is not a finite number.
    """
    rows = np.zeros((len(combinations), len(names)))
    places = {name: place for place, name in enumerate(names)}
    for row, combination in zip(rows, combinations, strict=True):
        for name, weight in combination.items():
            if name not in places:
                raise ConfigError(f"no coefficient is called {name!r}: {nearest(name, names)}")
            try:
                row[places[name]] = float(weight)
            except (TypeError, ValueError):
                row[places[name]] = math.nan
            if not math.isfinite(row[places[name]]):
                raise ConfigError(f"the weight of {name!r} must be a finite number, got {weight!r}")
    return rows


def _levels(schema: Schema, categories: Mapping[str, tuple[str, ...]], by: Any) -> Any:
    """Return the values at which separate effects are computed, by feature."""
    if by is None:
        return {}
    stated = by if isinstance(by, Mapping) else dict.fromkeys([by] if isinstance(by, str) else by)
    levels: dict[str, Any] = {}
    for name, values in stated.items():
        _expect_features(schema, [name])
        marks = categories.get(name, ())
        if values is None and (not marks or is_wide(marks)):
            raise ConfigError(
                f"by = {name!r} names no values, and the feature "
                + ("has more than 200 categories" if marks else "is numeric")
                + f': say at which, such as by = {{"{name}": [...]}} (--by {name}=VALUE, repeated)'
            )
        levels[name] = list(marks) if values is None else values
    return levels


def _expect_features(schema: Schema, given: Any) -> None:
    for name in given:
        if name in schema.offsets:
            raise ConfigError(
                f"{name!r} is the offset or the exposure, which effects do not depend on: leave it "
                "out"
            )
        if name not in schema.names:
            raise ConfigError(f"no feature is called {name!r}: {nearest(str(name), schema.names)}")


def _expect_categories(
    schema: Schema, categories: Mapping[str, tuple[str, ...]], rows: Sequence[Mapping[str, Any]]
) -> None:
    kinds = {feature.name for feature in schema.categorical}
    for row in rows:
        for name, value in row.items():
            if value is None and schema.complete_cases:
                raise ConfigError(
                    f"{name!r} has no value, and the run left such rows out: name a value"
                )
            marks = categories.get(name, ())
            if name in kinds and value is not None and not is_wide(marks):
                mark = _mark(value)
                if mark not in marks:
                    raise ConfigError(
                        f"{name!r} has no category {mark!r} in the model: {nearest(mark, marks)}"
                    )


def _expect_named(schema: Schema, apart: Sequence[str], named: set[str]) -> None:
    """Refuse an effect that depends on features that are not given."""
    for term in schema.design:
        used = {factor.feature for factor in term.factors}
        lacking = sorted(used - named)
        if used & {*apart} and lacking:
            raise ConfigError(
                f"the effect of {first_few(sorted(used & {*apart}))} depends on {lacking[0]!r}, by "
                f"the term {term.text}: say at which value, in both rows, or effects at each by "
                f"by = {lacking[0]!r} (--by {lacking[0]})"
            )


def _nothing(schema: Schema) -> dict[str, Any]:
    """Return a row without values, with count 0 and exposure 1."""
    row: dict[str, Any] = dict.fromkeys(schema.names)
    if schema.offset:
        row[schema.offset] = 0.0
    if schema.exposure:
        row[schema.exposure] = 1.0
    return row


def _combined(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of values; the last feature's varies fastest."""
    each = [_several(given) for given in values.values()]
    if empty := [name for name, given in zip(values, each, strict=True) if not given]:
        raise ConfigError(f"{empty[0]!r} has no value")
    for combination in itertools.product(*each):
        yield dict(zip(values, combination, strict=True))


def _several(value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        return [value]
    return list(value)


def _one(name: str, value: Any) -> Any:
    each = _several(value)
    if len(each) != 1:
        raise ConfigError(f"against has one value of {name!r}, got {len(each)}: ask for each apart")
    return each[0]


def _mark(value: Any) -> str:
    """Return a value as text, in the form of a category."""
    text = text_of(value)
    return "" if text is None else canonical(text)


def _shown(value: Any) -> str:
    return (
        "(missing)"
        if value is None
        else f"{value:.12g}"
        if isinstance(value, float)
        else str(value)
    )


def _said(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in row.items())
