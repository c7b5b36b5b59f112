"""The meaning of a table's columns: one schema that all nodes share."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from flower_fedcon.errors import ConfigError, nearest, toml_remedy
from flower_fedcon.objectives.survival import TIES
from flower_fedcon.tables.families import Family, families, family_of, names_of
from flower_fedcon.tables.marks import canonical
from flower_fedcon.tables.row_weights import KINDS as WEIGHT_KINDS
from flower_fedcon.tables.terms import (
    MISSING,
    Factor,
    Term,
    check_terms,
    formula_terms,
    terms_of,
)
from flower_fedcon.validation import choice, count

NUMERIC, CATEGORICAL = KINDS = "numeric", "categorical"
MEAN, MEDIAN, INDICATOR = IMPUTED = "mean", "median", "indicator"
TRANSFORMS = ("none", "log", "log1p", "sqrt", "square")
COMMON, OWN, RANDOM = SITE_EFFECTS = "common", "own", "random"
"""One intercept for all sites; each site's own, which stays there; or normal ones."""
_MISSING = ("", "?", "NA", "NaN", "nan")


@dataclass(frozen=True)
class Feature:
    """A column of the table that the model uses.

    Parameters
    ----------
    name : str
    type : {"numeric", "categorical"}
    categories : sequence, optional
        The categories in their order; by default the nodes agree before round 1 on those that
        occur, sorted. They are text without surrounding blanks: "01067" is not "1067", and "M" is
        not "m"; only "1" and "1.0" are the same.
    reference : str, optional
        The category without a column; by default the first.
    missing : sequence, or {"mean", "median", "indicator"}, optional
        Marks of a missing value in this column, in addition to the schema's; or a value of
        `impute`.
    impute : {"mean", "median", "indicator"} (default: "mean")
        What replaces a missing value: "mean", the mean over all nodes, for categories the share of
        each; "median", for numeric columns (`flower_fedcon.tables.quantiles`); or "indicator", the
        mean (0 for each category) and an additional column that is 1 in such rows.
    range : [least, largest], optional
        Of a numeric column's values.
    transform : {"none", "log", "log1p", "sqrt", "square"}
        Of a numeric column's values.
    label : str, optional
        What tables for papers and reports call the column, such as "Age (years)".
    labels : dict of str, optional
        What they call its categories, such as ``{"1" = "male"}``.

    Raises
    ------
    ConfigError
        If a value is not one of these, or does not match the type.

    Examples
    --------
    >>> features = {"age": {"type": "numeric", "range": [18, 120]}, "sex": "categorical"}
    >>> Schema("ill", features, positive=["yes"]).numeric[0].range
    (18.0, 120.0)
    """

    name: str
    type: str = NUMERIC
    categories: tuple[str, ...] = ()
    reference: str = ""
    missing: tuple[str, ...] = ()
    range: tuple[float, ...] = ()
    transform: str = "none"
    impute: str = MEAN
    label: str = ""
    labels: Any = ()

    def __post_init__(self) -> None:
        choice("type", self.type, KINDS)
        given: object = self.missing
        if isinstance(given, str):
            object.__setattr__(self, "impute", choice("missing", given, IMPUTED))
            object.__setattr__(self, "missing", ())
        if choice("impute", self.impute, IMPUTED) == MEDIAN and self.type == CATEGORICAL:
            raise ConfigError(
                'impute = "median" is for numeric features: use "mean", which gives each category '
                'its share, or "indicator"'
            )
        choice("transform", self.transform, TRANSFORMS)
        for name in ("categories", "missing"):
            marks = tuple(map(canonical, _listed(name, getattr(self, name))))
            object.__setattr__(self, name, marks)
        object.__setattr__(self, "reference", canonical(self.reference))
        texts = dict(self.labels) if isinstance(self.labels, Mapping | tuple) else None
        if texts is None or not all(isinstance(t, str) for t in (self.label, *texts.values())):
            raise ConfigError(
                'label must be a text, and labels a table of texts, such as {"1" = "male"}'
            )
        object.__setattr__(self, "labels", tuple((canonical(k), v) for k, v in texts.items()))
        _expect_different("labels", {f"category {mark!r}": text for mark, text in self.labels})
        if len(set(self.categories)) != len(self.categories):
            raise ConfigError(f"categories must differ, got {list(self.categories)}")
        if self.categories and self.reference and self.reference not in self.categories:
            raise ConfigError(
                f"reference must be one of the categories {list(self.categories)}, got "
                f"{self.reference!r}"
            )
        limits = _listed("range", self.range)
        if limits and not (len(limits) == 2 and all(map(_is_number, limits)) and
                           limits[0] < limits[1]):  # fmt: skip
            raise ConfigError(f"range must be [least, largest], got {self.range!r}")
        object.__setattr__(self, "range", tuple(map(float, limits)))
        wrong: tuple[str, ...] = ("range", "transform")
        if self.type == NUMERIC:
            wrong = ("categories", "reference", "labels")
        for name in wrong:
            if getattr(self, name) not in ((), "", "none"):
                raise ConfigError(f"{name} is not for a {self.type} column: leave it out")


@dataclass(frozen=True)
class Schema:
    """The schema of a table: its outcome, its features, and how they are treated.

    Parameters
    ----------
    target : str
        The column of the outcome (for "cox" the time).
    features : dict, or "all"
        By column name, "numeric", "categorical", or a dict of arguments of `Feature`. Other columns
        of a file are not read. "all" is for SVMlight files, whose columns have numbers as names.
    terms : sequence of str, optional
        The model's terms, by default the features: "age", "age:sex", "rcs(bmi, 4)", "poly(dose,
        2)", "missing(bmi)"; see `flower_fedcon.tables.terms`. Features in no term are not read.
    formula : str, optional
        A formula instead of `terms`, such as "age * sex + rcs(bmi, 4)"; needs the extra `formula`.
    loss : str, optional
        "squared", "huber", "logistic", "multinomial", "poisson", "negative_binomial" (counts of
        variance mu + alpha mu^2, whose alpha is fitted, too), "gamma" (amounts > 0, with a log
        link), "cox" or "ordinal" (proportional odds). By default "logistic" with `positive`,
        "multinomial" with `classes`, "ordinal" with `levels`, "cox" with `event`, and "squared".
    positive, negative : sequence, optional
        In a logistic regression the target's values that count as 1 (`positive`), and those that
        count as 0 (`negative`). Without `negative` all others count as 0; values that differ from a
        positive one only in case or signs are refused. If the given values mean true and false
        ("yes" and "no", 1 and 0, "T" and "F", ...), any such spelling is accepted, in any case. The
        same holds for `event_values`.
    classes : sequence, optional
        The target's values in a multinomial regression, in their order.
    levels : sequence, optional
        The target's values in an ordinal regression, three or more, the lowest first.
    event : str, optional
        For "cox": the column that says whether the event was observed.
    event_values : [not seen, seen] (default: 0, 1)
        The values without and with an event, such as ``[1, 2]`` if 2 stands for the event.
    ties : {"breslow", "efron"} (default: "breslow")
        For "cox": the treatment of tied events, see `flower_fedcon.objectives.CoxRegression`.
    entry : str, optional
        For "cox": the column of the times after which rows are at risk, for rows that enter late
        (left truncation), and for several rows of one person, whose features change.
    strata : str, optional
        For "cox": a column, not a feature, by whose values the baseline hazard differs.
    stratified : bool (default: True)
        For "cox": whether each client is a stratum, with its own baseline hazard. If not, all
        clients have one, as in a fit of the pooled rows, which costs exchanges of sums over rows at
        risk after the rounds. Sums at the time of each event reveal single rows, so a node must
        allow them (the word "risk_sets" in its policy), or there is a grid:
    baseline_times : sequence of float, optional
        With ``stratified = false``: ascending times of a grid on which nodes send these sums. Each
        node merges small counts; see `flower_fedcon.tables.statistics.risk_sums`.
    curve_times : sequence of float, optional
        For "cox": ascending times at which nodes count events and rows at risk before round 1. The
        run's report then has Kaplan-Meier curves. A node's policy must allow it;
        `flower_fedcon.tables.risk_counts` says what is counted.
    curve_by : str, optional
        The categorical feature whose categories get a curve each, and are compared.
    describe_by : str, optional
        The categorical feature by whose categories, such as the arms of a trial, all columns are
        described and compared before round 1 (`flower_fedcon.tables.by_level`). A node's policy
        must allow it.
    weight : str, optional
        The column of the rows' weights, >= 0. They count in the model's loss, like scikit-learn's
        `sample_weight`; in means, scales and metrics of held-out rows all rows count equally.
        Rows of weight 0 are left out.
    weight_kind : {"frequency", "sampling"}, optional
        What a weight means for errors: a number of equal rows, or how many rows of a population a
        row stands for; see `flower_fedcon.tables.row_weights`. Whole numbers are frequencies by
        default; others must be told.
    offset : str, optional
        A column that is added to the linear predictor without a coefficient; not for "multinomial".
        Predictions need it, too.
    exposure : str, optional
        With a log link: the column of exposures (years, inhabitants), > 0. Its logarithm is added
        to the linear predictor, in addition to any offset.
    cluster : str, optional
        The column of clusters (patients, practices), for inference = "cluster" and site_effects =
        "random". Clusters lie within a client. The column's values never leave the node.
    complete_cases : bool (default: False)
        Whether to leave out rows with a missing value in any column of the schema, the outcome's
        included, like R's ``na.omit``; their number is reported for each node. Otherwise missing
        values of features are filled in, and other columns must have none.
    missing : sequence (default: "", "?", "NA", "NaN", "nan")
        Marks of a missing value. A null in a Parquet file is missing without a mark.
    standardize : bool (default: True)
        Whether columns have mean 0 and variance 1, over the rows of all nodes.
    test_fraction : float (default: 0)
        In [0, 1): the share of each node's rows that is held out for evaluation; at least one row
        is for training.
    split_seed : int (default: 0)
        Together with the number of a node's rows it determines the held-out rows.

    Raises
    ------
    ConfigError
        If an entry is unknown or out of range.

    Examples
    --------
    >>> schema = Schema("ill", {"age": "numeric", "sex": "categorical"}, positive=["yes"])
    >>> schema.loss, [feature.name for feature in schema.numeric]
    ('logistic', ['age'])
    """

    target: str
    features: Any
    loss: str = ""
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    event: str = ""
    event_values: tuple[str, ...] = ("0", "1")
    ties: str = TIES[0]
    entry: str = ""
    strata: str = ""
    stratified: bool = True
    baseline_times: tuple[float, ...] = ()
    curve_times: tuple[float, ...] = ()
    curve_by: str = ""
    describe_by: str = ""
    weight: str = ""
    weight_kind: str = ""
    cluster: str = ""
    offset: str = ""
    exposure: str = ""
    terms: tuple[str, ...] = ()
    formula: str = ""
    complete_cases: bool = False
    missing: tuple[str, ...] = _MISSING
    standardize: bool = True
    test_fraction: float = 0.0
    split_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("positive", "negative", "classes", "levels", "event_values", "missing"):
            marks = tuple(map(canonical, _listed(name, getattr(self, name))))
            object.__setattr__(self, name, marks)
        object.__setattr__(self, "features", _features(self.features))
        _expect_labels(self.features)
        loss = choice("loss", self.loss or self._default_loss, tuple(names_of()))
        object.__setattr__(self, "loss", loss)
        for family in families():
            key = family.needs
            if key and (self.family is family) != bool(given := getattr(self, key)):
                raise ConfigError(
                    f'loss = "{self.loss}" and {key} = {given!r} contradict: {key} is for '
                    f'loss = "{family.name}", which needs it: leave one of them out'
                )
        if self.levels and (len(self.levels) < 3 or len(set(self.levels)) < len(self.levels)):
            raise ConfigError(
                f"levels must be three different values or more, the lowest first, got "
                f"{list(self.levels)!r}: of two values list the higher in positive"
            )
        both = set(self.positive) & set(self.negative)
        if both:
            raise ConfigError(f"positive and negative must differ, both hold {min(both)!r}")
        if len(set(self.event_values)) != 2 or len(self.event_values) != 2:
            raise ConfigError(
                f"event_values must be two values, without and with an event, such as [0, 1], got "
                f"{list(self.event_values)!r}"
            )
        if self.event_values != ("0", "1") and not self.event:
            raise ConfigError("event_values describes the column that event names: give event, too")
        if choice("ties", self.ties, TIES) != TIES[0] and not self.event:
            raise ConfigError(
                f'ties = "{self.ties}" is for loss = "cox": name the column of the event, or leave '
                "ties out"
            )
        if self.weight_kind:
            choice("weight_kind", self.weight_kind, WEIGHT_KINDS)
            if not self.weight:
                raise ConfigError(
                    f'weight_kind = "{self.weight_kind}" describes the column that weight names: '
                    f"give weight, too"
                )
        self._check_curves()
        self._check_strata()
        for name in ("standardize", "complete_cases", "stratified"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if not _is_number(self.test_fraction) or not 0 <= self.test_fraction < 1:
            raise ConfigError(f"test_fraction must be in [0, 1), got {self.test_fraction!r}")
        count("split_seed", self.split_seed, minimum=0)
        self._check_offset()
        self._set_terms()
        self._check_complete_cases()
        for name in (
            "target", "event", "entry", "strata", "weight", "cluster", "offset", "exposure",
        ):  # fmt: skip
            column = getattr(self, name)
            if not isinstance(column, str) or (name == "target" and not column):
                raise ConfigError(f"{name} must be the name of a column, got {column!r}")
            if column in self.names:
                raise ConfigError(
                    f"{column!r} is the {name} and cannot be a feature, too: leave "
                    f"it out of the features"
                )
        roles = self._roles
        if len(set(roles)) != len(roles):
            raise ConfigError(
                f"target, event, entry, strata, weight, cluster, offset and exposure must be "
                f"different columns, got {', '.join(roles)}"
            )

    def _set_terms(self) -> None:
        """Bring terms, from a list or a formula, into one form; keep only features in them."""
        if self.formula and self.terms:
            raise ConfigError("terms and formula both define the model: give one of them")
        listed = _listed("terms", self.terms)
        terms = formula_terms(self.formula, self.target) if self.formula else terms_of(listed)
        what = f"formula = {self.formula!r}" if self.formula else "terms"
        object.__setattr__(self, "terms", tuple(term.text for term in terms))
        object.__setattr__(self, "formula", "")
        if not terms:
            return
        if self.sparse:
            raise ConfigError(f'{what} needs named features, and features = "all" has none')
        check_terms(terms, [f.name for f in self.numeric], [f.name for f in self.categorical], what)
        used = {factor.feature for term in terms for factor in term.factors}
        used |= {self.curve_by, self.describe_by}
        kept = tuple(feature for feature in self.features if feature.name in used)
        object.__setattr__(self, "features", kept)

    @cached_property
    def design(self) -> tuple[Term, ...]:
        """The model's terms if they are more than its features; else none."""
        indicated = [
            Term((Factor(feature.name, MISSING),))
            for feature in self.features
            if feature.impute == INDICATOR
        ]
        plain = all(feature.impute == MEAN for feature in self.features)
        if not self.terms and plain:
            return ()
        terms = terms_of(self.terms) or tuple(
            Term((Factor(feature.name),)) for feature in (*self.numeric, *self.categorical)
        )
        keys = {term.key for term in terms}
        return (*terms, *(term for term in indicated if term.key not in keys))

    @property
    def groups(self) -> list[str]:
        """The groups of the model's columns: its features, or its terms."""
        return [term.text for term in self.design] or self.names

    @property
    def family(self) -> Family:
        """The record of the loss."""
        return family_of(self.loss)

    @property
    def _default_loss(self) -> str:
        """The loss that needs what is given; without it the first one."""
        needed = (loss.name for loss in families() if loss.needs and getattr(self, loss.needs))
        return next(needed, names_of()[0])

    def _check_offset(self) -> None:
        if self.exposure and not self.family.log_link:
            names = names_of(lambda family: family.log_link)
            raise ConfigError(
                f"exposure is for losses with a log link ({', '.join(names)}), got loss = "
                f'"{self.loss}": use offset, which is added to the linear predictor'
            )
        if self.offset and self.family.several:
            raise ConfigError(
                f'offset is for models of one linear predictor, got loss = "{self.loss}": leave it '
                "out"
            )

    def _check_complete_cases(self) -> None:
        if not self.complete_cases:
            return
        if self.sparse:
            raise ConfigError(
                'complete_cases has no effect with features = "all", since no value '
                "is missing: leave it out"
            )
        filled = [feature.name for feature in self.features if feature.impute != MEAN]
        filled += [f.feature for term in terms_of(self.terms) for f in term.factors
                   if f.basis == MISSING]  # fmt: skip
        if filled:
            raise ConfigError(
                f"complete_cases and impute of {filled[0]!r} contradict, since complete_cases "
                f"leaves out its missing values: leave one of the two out"
            )

    def _check_strata(self) -> None:
        for name in ("entry", "strata", "baseline_times"):
            if getattr(self, name) and not self.event:
                raise ConfigError(
                    f'{name} is for loss = "cox": name the column of the event, or leave it out'
                )
        if self.stratified is False and not self.event:
            raise ConfigError(
                'stratified = false is for loss = "cox": name the column of the event, or leave '
                "it out"
            )
        if self.baseline_times and self.stratified:
            raise ConfigError(
                "baseline_times is for one baseline hazard of all clients: write stratified = "
                "false, too, or leave it out"
            )

    def _check_curves(self) -> None:
        for name in ("baseline_times", "curve_times"):
            times = _listed(name, getattr(self, name))
            ascending = all(map(_is_number, times)) and all(a < b for a, b in pairwise(times))
            if not ascending or (times and times[0] < 0):
                raise ConfigError(
                    f"{name} must be times >= 0, each later than the one before, got {times!r}"
                )
            object.__setattr__(self, name, tuple(map(float, times)))
        if self.curve_times and not self.event:
            raise ConfigError(
                'curve_times is for loss = "cox": name the column of the event, or leave it out'
            )
        by = [feature.name for feature in self.categorical]
        for key in ("curve_by", "describe_by"):
            if (given := getattr(self, key)) and given not in by:
                raise ConfigError(
                    f"{key} must be a categorical feature, got {given!r}: {nearest(str(given), by)}"
                )
        if self.curve_by and not self.curve_times:
            raise ConfigError("curve_by needs curve_times, the times of the curves: give both")

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Schema:
        """Return the schema in a TOML file, or in a table of an experiment file.

        Raises
        ------
        ConfigError
            If it cannot be read or used; the error names the file.
        """
        where = "" if isinstance(source, Mapping) else f"{source}: "
        if isinstance(source, Mapping):
            table = dict(source)
        else:
            text = ""
            try:
                text = Path(source).read_text(encoding="utf-8-sig")
                table = tomllib.loads(text)
            except OSError as error:
                raise ConfigError(
                    f"cannot read the schema {source}: {error.strerror} (a relative path starts "
                    f"from the current folder, {Path.cwd()})"
                ) from None
            except (ValueError, RecursionError) as error:
                raise ConfigError(
                    f"{where}it is not TOML ({error}){toml_remedy(text, error)}"
                ) from None
        valid = [field.name for field in fields(cls)]
        for key in table:
            if key not in valid:
                raise ConfigError(f"{where}unknown key {key!r} of a schema: {nearest(key, valid)}")
        for key in ("target", "features"):
            if key not in table:
                example = '"outcome"' if key == "target" else '{age = "numeric"}'
                raise ConfigError(f"{where}the schema lacks {key}: write {key} = {example}")
        try:
            return cls(**table)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None

    @property
    def stated(self) -> dict[str, Any]:
        """The form from which `load` makes this schema: a table of an experiment file, or JSON.

        >>> Schema("ill", {"age": "numeric", "sex": "categorical"}, positive=["yes"]).stated
        {'target': 'ill', 'features': {'age': 'numeric', 'sex': 'categorical'}, 'positive': ['yes']}
        """
        table = _unlike_default(self)
        features: dict[str, Any] = {}
        for feature in self.features:
            about = _unlike_default(feature) | {"type": feature.type}
            del about["name"]
            if "labels" in about:
                about["labels"] = dict(feature.labels)
            features[feature.name] = about if len(about) > 1 else feature.type
        table["features"] = features or "all"
        if table["loss"] == self._default_loss:
            del table["loss"]
        return table

    @property
    def sparse(self) -> bool:
        """Whether the features are all columns of SVMlight files."""
        return not self.features

    @property
    def names(self) -> list[str]:
        """The features' names, in the file's order."""
        return [feature.name for feature in self.features]

    def called(self, name: str, mark: str | None = None) -> str:
        """Return what tables and reports call a column, or a category of it.

        >>> sex = {"type": "categorical", "label": "Sex", "labels": {"1": "male"}}
        >>> schema = Schema("ill", {"age": "numeric", "sex": sex}, positive=["yes"])
        >>> schema.called("sex"), schema.called("sex", "1"), schema.called("log(age)")
        ('Sex', 'male', 'log(age)')
        """
        feature = next((one for one in self.features if one.name == name), None)
        if mark is None:
            transform, _, inside = name.removesuffix(")").partition("(")
            if feature is None and inside in self.names and name.endswith(")"):
                return f"{transform}({self.called(inside)})"
            return (feature.label if feature else "") or name
        labels: dict[str, str] = dict(feature.labels if feature else ())
        return labels.get(mark, mark)

    def group(self, name: str, mark: str) -> str:
        """Return what texts call the rows with a category, such as "Sex = male"."""
        return f"{self.called(name)} = {self.called(name, mark)}"

    def in_words(self, column: str) -> str:
        """Return what tables and reports call a column of the model, by its labels.

        >>> sex = {"type": "categorical", "label": "Sex", "labels": {"1": "male"}}
        >>> schema = Schema("ill", {"age": "numeric", "sex": sex}, positive=["yes"])
        >>> schema.in_words("sex=1"), schema.in_words("age"), schema.in_words("(intercept)")
        ('Sex: male', 'age', '(intercept)')
        >>> schema.in_words("age:sex[T.1]"), schema.in_words("age'")
        ('age * Sex: male', "age'")
        """
        if self.family.several and column.endswith("]") and " [" in column:  # a class
            plain, sign, end = column.rpartition(" [")
            return f"{self._in_words(plain)}{sign}{end}"
        return self._in_words(column)

    def _in_words(self, column: str) -> str:
        if (whole := self._part_in_words(column)) is not None:
            return whole  # before products, since a category may have a colon
        parts = [self._part_in_words(part) for part in column.split(":")]
        known = [part for part in parts if part is not None]
        return " * ".join(known) if len(known) == len(parts) else self.called(column)

    def _part_in_words(self, column: str) -> str | None:
        name = column.rstrip("'")  # of a spline
        if name in self.names:
            return self.called(name) + column.removeprefix(name)
        for feature in self.categorical:
            for begin, end in (("=", ""), ("[T.", "]"), ("[", "]")):
                begin = f"{feature.name}{begin}"
                if column.startswith(begin) and column.endswith(end):
                    if not (feature.label or feature.labels):
                        return column
                    mark = column.removeprefix(begin).removesuffix(end)
                    return f"{self.called(feature.name)}: {self.called(feature.name, mark)}"
        return None

    @property
    def numeric(self) -> list[Feature]:
        """The numeric features."""
        return [feature for feature in self.features if feature.type == NUMERIC]

    @property
    def categorical(self) -> list[Feature]:
        """The categorical features."""
        return [feature for feature in self.features if feature.type == CATEGORICAL]

    @property
    def columns(self) -> list[str]:
        """All columns that a file must have."""
        return self._roles + self.names

    @property
    def offsets(self) -> list[str]:
        """The columns that are added to the linear predictor: offset and exposure."""
        return [name for name in (self.offset, self.exposure) if name]

    @property
    def predictors(self) -> list[str]:
        """The columns that rows to predict must have."""
        return self.offsets + self.names

    @property
    def _roles(self) -> list[str]:
        """The columns that are not features."""
        roles = (self.target, self.event, self.entry, self.strata, self.weight, self.cluster)
        return [name for name in roles if name] + self.offsets

    @property
    def outcomes(self) -> list[str]:
        """A description of each class, for a loss with classes; or of events, or counts above 0.

        Their rows are counted before round 1: if a class has no rows, no model can be fitted.
        """
        return self.family.outcomes(self)

    @property
    def outcome_marks(self) -> list[str]:
        """The name of each class's rows: the last ones of `outcomes`."""
        return self.family.marks(self)

    def model_shape(self, columns: int, site_effects: str = COMMON) -> tuple[int, ...]:
        """Return the shape of a model with this number of columns, including a common intercept.

        For a negative binomial loss the last entry is log alpha, and for an ordinal one the last
        entries are the logarithms of the gaps between thresholds.
        """
        if self.family.compares or site_effects == OWN:
            return (columns,)
        rows = columns + 1 + len(self.family.more(self))
        return (rows, len(self.classes)) if self.family.several else (rows,)

    def check_site_effects(self, wanted: Any) -> str:
        """Return how sites' intercepts are modelled, if the loss allows it.

        Raises
        ------
        ConfigError
        """
        effects = choice("site_effects", wanted, SITE_EFFECTS)
        if effects != COMMON and not self.family.profiled:
            names = names_of(lambda family: family.profiled)
            remedy = "leave it out" + (
                ": each site is a stratum with its own baseline hazard, unless stratified = false"
                if self.family.compares
                else ", or give sites a column"
            )
            raise ConfigError(
                f'site_effects = "{effects}" is for {", ".join(names)} losses, and the schema has '
                f'loss = "{self.loss}": {remedy}'
            )
        return effects

    @property
    def digest(self) -> str:
        """The schema's digest, 16 hexadecimal digits, which must be equal on all nodes."""
        content = asdict(self)
        later: dict[str, Any] = {"offset": "", "exposure": "", "terms": (), "formula": ""}
        later |= {"complete_cases": False, "weight_kind": "", "entry": "", "strata": ""}
        later |= {"stratified": True, "baseline_times": (), "levels": (), "describe_by": ""}
        for name, default in later.items():  # earlier runs can be resumed
            if content[name] == default:
                del content[name]
        for feature in content["features"]:
            del feature["label"], feature["labels"]  # texts, which nodes need not share
            if feature["impute"] == MEAN:
                del feature["impute"]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _features(given: Any) -> tuple[Feature, ...]:
    if given == "all":
        return ()
    if isinstance(given, tuple) and all(isinstance(feature, Feature) for feature in given):
        return given
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            'features must be a table of columns, such as {age = "numeric", sex = "categorical"}, '
            f"got {given!r}"
        )
    features = []
    valid = [field.name for field in fields(Feature) if field.name != "name"]
    for name, about in given.items():
        table = {"type": about} if isinstance(about, str) else about
        if not isinstance(table, Mapping):
            raise ConfigError(f'feature {name!r} must be "numeric", "categorical" or a table')
        for key in table:
            if key not in valid:
                raise ConfigError(f"feature {name!r}: unknown key {key!r}: {nearest(key, valid)}")
        try:
            features.append(Feature(str(name), **table))
        except ConfigError as error:
            raise ConfigError(f"feature {name!r}: {error}") from None
    return tuple(features)


def _expect_labels(features: Sequence[Feature]) -> None:
    """Raise if reports would call two columns alike, or one by the name of another."""
    _expect_different(
        "labels of features", {f"column {one.name!r}": one.label or one.name for one in features}
    )
    names = {one.name for one in features if one.label}
    for one in features:
        if one.label in names - {one.name}:
            raise ConfigError(
                f"column {one.name!r} has the label {one.label!r}, which is the name of another "
                "column: give another label"
            )


def _expect_different(what: str, texts: Mapping[str, str]) -> None:
    """Raise if two of these texts are the same."""
    seen: dict[str, str] = {}
    for owner, text in texts.items():
        if text in seen:
            raise ConfigError(
                f"{what} must differ, and {seen[text]} and {owner} are both called {text!r} in "
                "reports: give one of them another label"
            )
        seen[text] = owner


def _unlike_default(record: Any) -> dict[str, Any]:
    """Return the fields of a record that differ from their default; tuples as lists."""
    values = ((field, getattr(record, field.name)) for field in fields(record))
    return {
        field.name: list(value) if isinstance(value, tuple) else value
        for field, value in values
        if value != field.default
    }


def _listed(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} must be a list, got {value!r}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
