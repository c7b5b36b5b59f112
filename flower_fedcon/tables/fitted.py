"""A model of a run on tables: its predictions for new rows, and its file.

`model.json` is one JSON object that can be read without this package:

    format, version   "flower-fedcon model" and 1, or 2 for a model with terms; later versions of
                      the package only add keys
    loss, link        the loss, and the link of the linear predictor, whose inverse gives the
                      prediction: "identity" (mean), "logit" (probability of the schema's
                      `positive`), "log" (expected count), "softmax" (probabilities of the
                      classes), "cumulative logit" (probability of more than a class, of the
                      linear predictor less its threshold), or "log hazard ratio" (the linear
                      predictor is the prediction)
    classes           the classes of a multinomial loss, in the order of its coefficients; or
                      those of an ordinal one, the lowest first
    columns           for each column of the model `name`, `feature` (the table's column),
                      `category` (null for a numeric one), `transform`, `missing` (the value that
                      replaces a missing one), `mean`, `scale`, and `coefficient` in the column's
                      own unit (for a multinomial loss one for each class)
    site_effects      "common"; or "own": each site keeps its own intercept, and the linear
                      predictor is the difference from a row of zeros of the same site; or
                      "random": sites, or groups of rows within them, have normal intercepts, and
                      predictions use the mean intercept
    site_sd, residual_sd
                      with "random": the standard deviation of these intercepts, and that of the
                      residuals of a squared loss (else null)
    intercept         the linear predictor of a row of zeros; null without an intercept
    alpha             of a negative binomial loss, with variance mu + alpha mu^2; else null
    thresholds        of an ordinal loss, for rows in the columns' own units: the linear
                      predictor without `intercept` less these is the log odds of more than each
                      class; absent for others
    offset, exposure  the columns that are added to the linear predictor, unchanged and as
                      logarithm; null without one
    covariance        of the coefficients of the columns and the intercept, in this order and in
                      the columns' own units; null without inference
    inference         the fit, or null without inference: `method`, `observations` (the sum of the
                      rows' weights), `parameters`, `log_likelihood`, `deviance`, `pearson`,
                      `dispersion`, `shape`, `events`, `clusters`, and `degrees_of_freedom` of t
                      (null for tests with the normal distribution)
    baseline          of a Cox model: for each baseline hazard that the run knows, by its name in
                      `baseline.csv` ("all" for that of all rows), `time`, and
                      `cumulative_hazard` of a row of zeros up to each; null without one
    x                 the model of the run, for centred and scaled columns
    preparation       the values that prepare rows as in the run
    schema            the schema, as a table of an experiment file
    clients           the clients' names and numbers of training rows
    versions          of Python and packages

The linear predictor of a row is the intercept plus the sum of coefficient times column, plus any
offset and the logarithm of any exposure. A numeric column is transform(cell). A column of a
category is 1 in rows of that category, else 0; the column "feature=(other)", with category null, is
1 in rows of no other category. A missing cell gives a numeric column, or all columns of a
categorical feature, the value `missing`. If the schema has `complete_cases`, a row with a missing
cell has no prediction.

For a model with terms, columns have `factors` instead of feature, category and transform: a column
is their product. A factor has a `feature`, and either a `category` or a `transform` and a `basis`
of the number x. Without a basis it is x itself. "rcs" has `knots` and the number `function` of one
of the functions in `flower_fedcon.tables.design.spline` (0 is x). "poly" has the power `power`, or
`mean`, `spread` and `coefficients` of the powers of (x - mean) / spread from 0 up. "missing" is 1
if the value is missing, else 0. Missing values are replaced first: `missing` states, by feature, a
number, or the values of the categories' columns.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.errors import ConfigError, first_few
from flower_fedcon.objectives.equal_times import on_grid
from flower_fedcon.tables import contrasts
from flower_fedcon.tables.columns import Columns
from flower_fedcon.tables.design import Design, described, term_columns
from flower_fedcon.tables.encoding import dummies, is_wide
from flower_fedcon.tables.families import family_of
from flower_fedcon.tables.held_out import linear_predictors
from flower_fedcon.tables.misfits import DataError
from flower_fedcon.tables.own_files import EFFECTS, PREDICTIONS, WITHOUT_INTERCEPT
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.raw_cells import Cells
from flower_fedcon.tables.read import columns_of, guarded
from flower_fedcon.tables.row_weights import FREQUENCY
from flower_fedcon.tables.schema import COMMON, OWN, RANDOM, Schema
from flower_fedcon.tables.statistics import Estimates
from flower_fedcon.tables.statistics.hazards import of_stratum, survival
from flower_fedcon.tables.table import Table
from flower_fedcon.tables.wing import BASELINE
from flower_fedcon.validation import Array, choice, float_array
from flower_fedcon.wire.whole_files import storage, write_csv, write_text

NAME, FORMAT, VERSION, WITH_TERMS = "model.json", "flower-fedcon model", 1, 2
_ROWS = 1000  # rows that are dense at a time
_FAR_OUT, _MOVED, _SEVERAL = 10.0, 3.0, 3  # standard deviations: a row's, a median's
_log = logging.getLogger("flwr")
_UNSAFE = re.compile(r"[^\w.-]|^[.]+")  # in the name of a file
_UNKNOWN = math.nan
# For each name in the file an attribute of `Estimates`, and its value if the file has null.
_INFERENCE: dict[str, tuple[str, Any]] = {
    "method": ("method", ""), "observations": ("n", _UNKNOWN), "parameters": ("counted", 0),
    "more_parameters": ("more", 0), "log_likelihood": ("loglik", _UNKNOWN),
    "deviance": ("deviance", _UNKNOWN), "pearson": ("pearson", _UNKNOWN),
    "dispersion": ("dispersion", _UNKNOWN), "shape": ("shape", _UNKNOWN),
    "events": ("events", _UNKNOWN), "clusters": ("clusters", 0),
    "degrees_of_freedom": ("df", math.inf), "weights": ("weights", FREQUENCY),
}  # fmt: skip
_LEVEL = re.compile(r"\[(?:T\.)?([^]]*)\]")  # a column's category, if the schema has terms
_PREPARED = ("means", "scales", "kept", "groups")
_BASELINE = ("time", "cumulative_hazard")


class Rows(NamedTuple):
    """Rows to predict: their table, columns kept unchanged, and any names of strata."""

    table: Table
    kept: dict[str, Any]
    strata: Any = None


@dataclass(frozen=True, eq=False)
class FittedModel:
    r"""The model of a run on tables, which predicts new rows.

    Parameters
    ----------
    schema : Schema
    preparation : Preparation
    x : array, shape (entries,) or (entries, classes)
        The coefficients of prepared columns, the intercept, and for a negative binomial loss log
        alpha.
    covariance : array, shape (coefficients, coefficients), optional
        The covariance of the coefficients in the columns' own units, by column, and of the
        intercept; for a multinomial loss by column and class.
    clients : sequence of str
        The clients of the run.
    versions : dict
        The versions of Python and packages.
    site_sd, residual_sd : float
        Standard deviations of random intercepts, and of the residuals; else NaN.
    estimates : Estimates, optional
        The estimates of the run's inference, in the columns' own units.
    baselines : dict of array, shape (times, 2)
        The baseline hazards of a Cox model, by name: times, and the cumulative hazard of a row of
        zeros up to them.

    Examples
    --------
    >>> import tempfile
    >>> from flower_fedcon import load_model, simulate
    >>> from flower_fedcon.tables.builders import tables
    >>> from flower_fedcon.strategies import FedNewton
    >>> folder = Path(tempfile.mkdtemp())
    >>> for site, rows in (("north", "1,1 2,3 3,6"), ("south", "4,7 5,9 6,11")):
    ...     _ = (folder / f"{site}.csv").write_text("dose,effect\n" + rows.replace(" ", "\n"))
    >>> schema = {"target": "effect", "features": {"dose": "numeric"}}
    >>> problem = tables(data=f"{folder}/*.csv", schema=schema, inference="model")
    >>> run = simulate(FedNewton(), problem, num_rounds=2, run_dir=folder / "run")
    >>> model = load_model(folder / "run")
    >>> model.predict({"dose": [10.0, None]}).round(4)  # None: the mean, 3.5
    array([18.981 ,  6.1667])
    >>> found = model.contrast({"dose": 5}, {"dose": 2})  # the effect of 3 units
    >>> found.values.round(4), found.bse.round(4)
    (array([5.9143]), array([0.3245]))
    >>> model.combination({"dose": 3.0}).values.round(4)
    array([5.9143])
    """

    schema: Schema
    preparation: Preparation
    x: Array
    covariance: Array | None = None
    clients: Sequence[str] = ()
    versions: Mapping[str, str] | None = None
    site_sd: float = math.nan
    residual_sd: float = math.nan
    estimates: Estimates | None = None
    baselines: Mapping[str, Array] = field(default_factory=dict)

    # --- predictions and effects -----------------------------------------------------------------

    @property
    def classes_(self) -> Array:
        """The classes of the columns of `predict_proba`: 0 and 1, or the schema's classes.

        Raises
        ------
        ConfigError
            If the loss has no classes.
        """
        classes = self.schema.family.classes(self.schema)
        if classes is None:
            raise ConfigError(
                f"a {self.schema.loss} loss has no classes, so it has no probabilities: use predict"
            )
        return classes

    def rows(
        self,
        source: Any,
        *,
        unknown: str = "refuse",
        keep: Sequence[str] = (),
        held_out: bool = False,
    ) -> Rows:
        """Return rows as `fedcon data check` reads them, without outcomes or weights.

        Parameters
        ----------
        source : path, pandas.DataFrame, or dict of arrays
            Columns have the schema's names; others are not read.
        unknown : {"refuse", "missing"}
            The treatment of categories that the model does not have: an error, or a missing value.
            (A feature with more than 200 categories has a column for all others.)
        keep : sequence of str
            Columns that are returned unchanged.
        held_out : bool
            Whether to return only the rows that the run held out. The source must hold all rows of
            one client, with outcomes.

        Raises
        ------
        DataError
            If a value does not fit; the error names file, row and column.
        """
        choice("unknown", unknown, ("refuse", "missing"))
        path = Path(source) if isinstance(source, str | Path) else Path("rows")
        if isinstance(source, str | Path):
            columns = guarded(path, lambda: columns_of(path, self.schema, tuple(keep)))
        else:
            wanted = (*self.schema.predictors, *keep, *([self.schema.strata] * self._by_stratum))
            cells = guarded(path, _cells, path, source, wanted)
            columns = Columns(cells, self.schema)
        kept = columns.as_they_stand(keep)
        strata = columns.own_strata() if self._by_stratum else None
        categories: dict[str, Sequence[str]] = {}
        if unknown == "refuse":
            agreed = self.preparation.categories.items()
            categories = {name: marks for name, marks in agreed if not is_wide(marks)}
        table = guarded(path, lambda: columns.table(categories, outcome=held_out))
        if self.schema.sparse and table.sparse.shape[1] > self.preparation.width:
            raise DataError(
                f"{path}: it has {table.sparse.shape[1]} columns, and the model "
                f"{self.preparation.width}: remove the others"
            )
        self._look_at_units(table)
        if held_out:
            table = self._held_out(path, table)
            kept = {name: column[table.places] for name, column in kept.items()}
            strata = None if strata is None else strata[table.places]
        return Rows(table, kept, strata)

    def _held_out(self, path: Path, table: Table) -> Table:
        """Return the rows of a client that the run held out."""
        if not self.schema.test_fraction:
            raise ConfigError(
                "no rows were held out, since the run's schema has no test_fraction: "
                "predict all rows instead"
            )
        if table.num_examples not in self.preparation.rows:
            sizes = first_few([str(rows) for rows in self.preparation.rows])
            raise DataError(
                f"{path}: it has {table.num_examples} training rows, and no client of the run has "
                f"as many ({sizes}): held-out rows are known only for the run's own files, each "
                f"with all its rows"
            )
        rows = table.held_out_rows
        return replace(table.of_rows(rows), places=table.numbers_of(rows) - 1)

    def _look_at_units(self, table: Table) -> None:
        """Warn of columns whose values are far outside the fit's."""
        for feature, column in zip(self.schema.numeric, table.numeric.T, strict=True):
            mean, spread = self.preparation.seen.get(feature.name, (0.0, 0.0))
            values = column[~np.isnan(column)]
            if not spread or not values.size:
                continue
            away = np.abs(values - mean) / spread
            moved = abs(float(np.median(values)) - mean) / spread
            rows = int((away > _FAR_OUT).sum())
            if not rows and (moved <= _MOVED or len(values) < _SEVERAL):
                continue
            _log.warning(
                "column %r: %s, and the fit's values had the mean %.4g and the standard deviation "
                "%.3g: in another unit?",
                feature.name,
                f"{rows} of {len(values)} values are more than {_FAR_OUT:g} standard deviations "
                f"away, up to {values[away.argmax()]:.4g}"
                if rows
                else f"the median is {np.median(values):.4g}",
                mean,
                spread,
            )

    def linear_predictor(self, source: Any, *, unknown: str = "refuse") -> Array:
        """Return the linear predictor of rows, shape (rows,) or (rows, classes); see `rows`.

        In a Cox model it is the log hazard ratio to a row of zeros. If sites have their own
        intercepts, it is the difference from a row of zeros of the same site, such as the log odds
        ratio.
        """
        table, x = self._table(source, unknown), self.x
        scores = linear_predictors(table.matrix(self.preparation), x, table.offset)
        if len(x) == len(self.preparation.names):
            scores += self.preparation.centers @ (x / self.preparation.scales)
        if self.schema.complete_cases:
            scores[table.incomplete] = np.nan
        return scores

    def standard_errors(self, source: Any, *, unknown: str = "refuse") -> Array:
        """Return the standard errors of rows' linear predictors, shape (rows,).

        They come from the covariance of the run's inference, as in R's ``predict(fit, newdata,
        se.fit = TRUE)``: they are errors of the expected value, not of a new outcome.

        Parameters
        ----------
        source, unknown : see `rows`

        Raises
        ------
        ConfigError
            If the run has no covariance, the loss is multinomial, or rows do not fit (`DataError`).
        """
        if not self._has_errors:
            raise ConfigError(
                'the run has no covariance of a linear predictor: run it with inference = "model" '
                'or "robust", without a penalty, and with another loss than "multinomial"'
            )
        assert self.covariance is not None  # noqa: S101  (checked above)
        table, prepared = self._table(source, unknown), self.preparation
        free = len(self.x) > len(prepared.names)  # with an intercept
        size = len(prepared.names) + free
        V, A, parts = self.covariance[:size, :size], table.matrix(prepared), []
        for first in range(0, A.shape[0], _ROWS):
            rows = _dense(A[first : first + _ROWS]) * prepared.scales + prepared.centers
            rows = np.column_stack([rows, np.ones(len(rows))]) if free else rows
            parts.append(np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", rows, V, rows), 0.0)))
        errors: Array = np.concatenate(parts)
        if self.schema.complete_cases:
            errors[table.incomplete] = np.nan
        return errors

    @property
    def _has_errors(self) -> bool:
        return self.covariance is not None and not self.schema.family.several

    def contrast(
        self,
        values: Mapping[str, Any],
        against: Mapping[str, Any],
        *,
        by: contrasts.By | None = None,
    ) -> contrasts.Contrasts:
        """Return differences of linear predictors between rows of values, with errors and tests.

        It is the log of an odds, rate or hazard ratio, or a difference of means: d'b for the
        difference d of the two rows of the design, which includes splines, polynomials and
        products. For a multinomial loss it is the log odds ratio of each class against the first.
        Features that both rows share cancel. Name them only if a term multiplies them by one that
        differs. The class has an example.

        Parameters
        ----------
        values : dict
            A value for each feature; a list gives a comparison for each of its values.
        against : dict
            The value to compare with, for each of the same features.
        by : str, list of str, or dict, optional
            Features at whose values separate effects are computed: a name stands for all its
            categories, and a dict gives the values. Their `differences` test the interaction.

        Returns
        -------
        Contrasts
            It prints as a table; `columns_of()` gives the columns for pandas.

        Raises
        ------
        ConfigError
            If the run has no inference, a value does not fit, or the effect depends on a feature
            that is not named.
        """
        fit, prepared = self._fit, self.preparation
        pairs = contrasts.pairs(self.schema, prepared.categories, values, against, by)
        sides = [row for pair in pairs for row in (pair.first, pair.second)]
        columns = {name: [row[name] for row in sides] for name in sides[0]}
        A = _dense(self.rows(columns).table.matrix(prepared))
        apart = (A[::2] - A[1::2]) * prepared.scales
        return contrasts.between(fit, apart, pairs, self.schema.classes)

    def combination(self, *weights: Mapping[str, float]) -> contrasts.Contrasts:
        """Return linear combinations of coefficients, with errors and tests.

        Parameters
        ----------
        *weights : dict
            The weight of each coefficient (per unit), by its name in `coefficients.csv`.

        Raises
        ------
        ConfigError
            If the run has no inference, or a coefficient is unknown.
        """
        fit = self._fit
        rows = contrasts.weights_of(weights, fit.names)
        names = [" + ".join(f"{w:.12g} * {name}" for name, w in one.items()) for one in weights]
        return contrasts.Contrasts.of(fit, rows, names, fit.family.ratio)

    def likelihood_ratio(self, smaller: FittedModel) -> tuple[float, int, float]:
        """Return the likelihood-ratio test against a model with some of the columns: R's `anova`.

        Parameters
        ----------
        smaller : FittedModel
            The model of a run on the same rows.

        Returns
        -------
        tuple
            Chi^2, its degrees of freedom, and the p-value.

        Raises
        ------
        ConfigError
            If the models cannot be compared, or a run has no inference.
        """
        own, other = self.preparation, smaller.preparation
        for what, these, those in (
            ("outcomes", self.schema.target, smaller.schema.target),
            ("clients", list(self.clients), list(smaller.clients)),
            ("rows of clients", list(own.rows), list(other.rows)),
            ("site_effects", own.site_effects, other.site_effects),
        ):
            if these != those:
                raise ConfigError(
                    "a likelihood ratio compares two models of the same rows, and their "
                    f"{what} differ: {these!r} and {those!r}"
                )
        columns = {_LEVEL.sub(r"=\1", name) for name in own.names}
        if lone := [name for name in other.names if _LEVEL.sub(r"=\1", name) not in columns]:
            raise ConfigError(
                f"{first_few(lone, what='column')} of the smaller model is not in the larger one: "
                "a likelihood ratio is of a model and the same without some columns"
            )
        return self._fit.likelihood_ratio(smaller._fit)

    @property
    def _fit(self) -> Estimates:
        if self.estimates is not None:
            return self.estimates
        if self.covariance is not None:
            raise ConfigError(
                f"{NAME} was written by an earlier version, without degrees of freedom: repeat the "
                "run"
            )
        raise ConfigError(
            "the run has no covariance of its coefficients: repeat it with inference = "
            '"model", "robust" or "cluster", and without a penalty'
        )

    def predict(self, source: Any, *, unknown: str = "refuse") -> Array:
        """Return the predictions for rows, shape (rows,).

        The prediction is the expected value, or the likeliest class: 1 for the schema's `positive`,
        else 0; or one of `classes`. In a Cox model it is the log hazard ratio to a row of zeros.
        After a run on complete cases a row with a missing value gets NaN, or no class. With random
        intercepts the prediction is for a site or group with the mean intercept, not the mean over
        sites.

        Parameters
        ----------
        source, unknown : see `rows`

        Raises
        ------
        ConfigError
            If sites have their own intercepts, or rows do not fit (`DataError`).
        """
        self._expect_intercept()
        return self._predicted(self.linear_predictor(source, unknown=unknown))

    def _expect_intercept(self) -> None:
        if self.preparation.site_effects == OWN:
            raise ConfigError(
                "each site keeps its own intercept, so only the difference from a row of zeros of "
                "the same site can be predicted: use linear_predictor, or run with site_effects = "
                '"common"'
            )

    def predict_survival(
        self, source: Any, times: Any, *, stratum: str | None = None, unknown: str = "refuse"
    ) -> Array:
        """Return the probabilities that rows have no event up to some times, shape (rows, times).

        They follow from the baseline hazards that the run knows, those of its `baseline.csv`. Of
        the times of such a hazard the last one counts that is no later than the time asked for.

        Parameters
        ----------
        source, unknown : see `rows`
            If `unknown` is "missing", a row of an unknown stratum has no probability, but NaN. The
            source may also be what `rows` has returned.
        times : array, shape (times,)
        stratum : str, optional
            The name in `baselines` of the hazard for all rows. By default that of each row's own
            stratum, if the schema names their column; otherwise needed if there are several.

        Raises
        ------
        ConfigError
            If the run knows no baseline hazard, or not that of a row; or rows do not fit
            (`DataError`).
        """
        if not self.baselines:
            raise ConfigError(
                f"the run knows no baseline hazard, so there are no probabilities: use predict. A "
                f"Cox run has one with stratified = false in its schema; with inference and "
                f"curve_times it has those of sites whose policy.phases list {BASELINE!r}"
            )
        rows = source if isinstance(source, Rows) else self.rows(source, unknown=unknown)
        scores = self.linear_predictor(rows.table)
        self._look_at_times(times)
        if stratum is not None or not self._by_stratum:
            return survival(of_stratum(self.baselines, stratum), scores, times)
        if rows.strata is None:
            raise ConfigError(
                f"each value of column {self.schema.strata!r} has its own baseline hazard: add the "
                f"column to the rows, or name one of {first_few([*map(repr, self.baselines)])} as "
                f"stratum"
            )
        found = np.full((len(scores), len(times)), np.nan)
        for name in np.unique(rows.strata).tolist():
            if name in self.baselines or unknown == "refuse":
                own = rows.strata == name
                found[own] = survival(of_stratum(self.baselines, name), scores[own], times)
        return found

    @property
    def _by_stratum(self) -> bool:
        """Whether a row's stratum says which baseline hazard is its own."""
        return bool(self.baselines and self.schema.strata and not self.schema.stratified)

    def _look_at_times(self, times: Any) -> None:
        """Warn of times of which the run knows less than of others."""
        schema, wanted = self.schema, float_array("times", times, ndim=1)
        last = max((hazard[-1, 0] for hazard in self.baselines.values() if len(hazard)), default=0)
        if (after := wanted[wanted > last]).size:
            _log.warning(
                "the run knows no baseline hazard after %.6g: the probability at %.6g is that of "
                "this time", last, after[0],
            )  # fmt: skip
        grid = np.array(schema.curve_times if schema.stratified else schema.baseline_times)
        between = wanted[(wanted > 0) & (wanted <= last) & ~np.isin(on_grid(wanted, grid), grid)]
        if grid.size and between.size:
            _log.warning(
                "the run knows the baseline hazard at %s: the probability at %.6g is that of the "
                "time before", first_few([f"{time:.6g}" for time in grid.tolist()]), between[0],
            )  # fmt: skip

    def predict_proba(self, source: Any, *, unknown: str = "refuse") -> Array:
        """Return the probabilities of classes for rows, shape (rows, classes), as `classes_`.

        Parameters
        ----------
        source, unknown : see `rows`

        Raises
        ------
        ConfigError
            If the loss has no classes, sites have their own intercepts, or rows do not fit
            (`DataError`).
        """
        _ = self.classes_
        self._expect_intercept()
        scores = self.linear_predictor(source, unknown=unknown)
        return self.schema.family.probabilities(self._spread(scores))

    def columns_of(self, source: Any, *, unknown: str = "refuse") -> dict[str, Array]:
        """Return the columns that `fedcon predict` writes, by name.

        The columns are "prediction", "linear_predictor" and "probability" (of a positive outcome);
        for a multinomial loss "prediction" and "probability [class]" for each class. If sites have
        their own intercepts, there is only "linear_predictor_without_intercept". After a run with
        inference the last one is "std_error", of the linear predictor.
        """
        scores = self.linear_predictor(source, unknown=unknown)
        errors = {}
        if self._has_errors:
            errors["std_error"] = self.standard_errors(source, unknown=unknown)
        if self.preparation.site_effects == OWN:
            return {WITHOUT_INTERCEPT: scores, **errors}
        columns = {"prediction": self._predicted(scores)}
        if scores.ndim == 1:
            columns["linear_predictor"] = scores
        family = self.schema.family
        marks = family.classes(self.schema)
        if family.binary:
            columns["probability"] = family.probabilities(scores)[:, 1]
        elif marks is not None:
            each = family.probabilities(self._spread(scores)).T
            columns |= {
                f"probability [{mark}]": values
                for mark, values in zip(marks.tolist(), each, strict=True)
            }
        return {**columns, **errors}

    def _table(self, source: Any, unknown: str) -> Table:
        return source if isinstance(source, Table) else self.rows(source, unknown=unknown).table

    def _spread(self, scores: Array) -> Array:
        return self.schema.family.spread(scores, self.x, len(self.preparation.names))

    def _predicted(self, scores: Array) -> Array:
        family, classes = self.schema.family, self.schema.family.classes(self.schema)
        if classes is None:
            return family.link.inverse(scores)
        likeliest: Array = classes[family.likeliest(self._spread(scores))]
        unknown = np.isnan(scores.reshape(len(scores), -1)).any(axis=1)
        if unknown.any():
            likeliest = likeliest.astype(object)
            likeliest[unknown] = None
        return likeliest

    # --- as a file -------------------------------------------------------------------------------

    def write(self, folder: Path) -> None:
        """Write `model.json` into a folder."""
        write_text(folder / NAME, json.dumps(self._content(), indent=1, ensure_ascii=False) + "\n")

    def _content(self) -> dict[str, Any]:
        prepared, schema = self.preparation, self.schema
        columns, units = len(prepared.names), prepared.in_units(self.x)
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION if prepared.design is None else WITH_TERMS,
            "loss": schema.loss,
            "link": schema.family.link.name,
            "site_effects": prepared.site_effects,
            "classes": list(schema.classes or schema.levels),
            "columns": self._columns() | {"coefficient": units[:columns].tolist()},
            "intercept": units[columns].tolist() if len(units) > columns else None,
            "alpha": schema.family.parameter(self.x) if schema.family.dispersed else None,
            **schema.family.stated_form(units[columns:]),
            "offset": schema.offset or None,
            "exposure": schema.exposure or None,
            "covariance": None if self.covariance is None else self.covariance.tolist(),
            "inference": None if self.estimates is None else _stated(self.estimates),
            "baseline": {
                name: dict(zip(_BASELINE, hazard.T.tolist(), strict=True))
                for name, hazard in self.baselines.items()
                if np.isfinite(hazard).all()  # JSON has no other numbers
            }
            or None,
            "x": self.x.tolist(),
            "preparation": {
                name: np.asarray(getattr(prepared, name)).tolist() for name in _PREPARED
            }
            | {
                "categories": {name: list(values) for name, values in prepared.categories.items()},
                "numeric": prepared.numeric,
                "width": prepared.width,
                "left_out": dict(prepared.left_out),
                "seen": {name: list(values) for name, values in prepared.seen.items()},
                "imputed": dict(prepared.imputed),
            },
            "schema": schema.stated,
            "clients": {"names": list(self.clients), "rows": list(prepared.rows)},
            "versions": dict(self.versions or {}),
        }
        if prepared.site_effects == RANDOM:
            deviations = {"site_sd": self.site_sd, "residual_sd": self.residual_sd}
            content |= {k: None if math.isnan(v) else v for k, v in deviations.items()}
        if prepared.design is not None:
            content["preparation"]["design"] = prepared.design.stated
            content["missing"] = self._missing()
        if not np.isfinite(self.x).all():  # JSON has no such numbers
            content |= dict.fromkeys(("x", "intercept", "alpha"))
            content["columns"]["coefficient"] = None
        return content

    def _columns(self) -> dict[str, list[Any]]:
        """Return the description of each column."""
        prepared, schema = self.preparation, self.schema
        features: list[tuple[str, str | None, str]] = [
            (feature.name, None, feature.transform) for feature in schema.numeric
        ]
        for feature in schema.categorical:
            marks = prepared.categories[feature.name]
            features += [(feature.name, own or None, "none") for own in dummies(feature, marks)]
        numbers = {
            "name": list(prepared.names),
            "missing": prepared.means.tolist(),
            "mean": prepared.means.tolist(),
            "scale": prepared.scales.tolist(),
        }
        if prepared.design is not None:
            columns = term_columns(schema, prepared.categories)
            own = (columns[j][1] for j in np.asarray(prepared.kept).tolist())
            del numbers["missing"]
            return numbers | {
                "factors": [
                    described(parts, schema, prepared.design, prepared.categories) for parts in own
                ]
            }
        if schema.sparse:
            kept = [(name, None, "none") for name in prepared.names]
        else:
            kept = [features[j] for j in np.asarray(prepared.kept).tolist()]
        return {
            "feature": [name for name, _, _ in kept],
            "category": [category for _, category, _ in kept],
            "transform": [transform for _, _, transform in kept],
            **numbers,
        }

    def _missing(self) -> dict[str, Any]:
        """Return for each feature the value that replaces a missing one."""
        design, categories = self.preparation.design, self.preparation.categories
        assert design is not None  # noqa: S101  (the caller's case)
        shares = {
            name: dict(zip(categories[name], values, strict=True))
            for name, values in design.shares.items()
        }
        return {**design.fill, **shares}

    @classmethod
    def read(cls, path: Path) -> FittedModel:
        """Return the model in a file.

        Raises
        ------
        ConfigError
            If the file is missing, damaged, of a later version, or has numbers that are not finite.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"cannot read {path}: {error.strerror}. A run on tables writes {NAME} into its "
                f"folder when it ends: finish the run, or name another folder"
            ) from None
        except (ValueError, RecursionError):
            raise ConfigError(f"{path} is damaged: repeat the run") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ConfigError(
                f"{path} does not hold a model of flower-fedcon: name the folder of a run on tables"
            )
        if content.get("version") not in (VERSION, WITH_TERMS):
            raise ConfigError(
                f"{path} has version {content.get('version')!r}, and this flower-fedcon reads "
                f"versions {VERSION} and {WITH_TERMS}: install the version that wrote it, or a "
                f"later one"
            )
        if content.get("x") is None:
            raise ConfigError(
                f"{path}: the run has diverged, so its model predicts nothing: "
                f"repeat it with shorter steps"
            )
        try:
            return cls._of_content(content)
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise ConfigError(f"{path} is damaged ({error!r}): repeat the run") from None

    @classmethod
    def _of_content(cls, content: Mapping[str, Any]) -> FittedModel:
        schema, prepared = Schema.load(content["schema"]), content["preparation"]
        x, covariance = np.array(content["x"], dtype=np.float64), content["covariance"]
        preparation = Preparation(
            schema=schema.digest,
            names=tuple(map(str, content["columns"]["name"])),
            groups=tuple(map(int, prepared["groups"])),
            means=np.array(prepared["means"], dtype=np.float64),
            scales=np.array(prepared["scales"], dtype=np.float64),
            kept=np.array(prepared["kept"], dtype=np.int64),
            categories={k: tuple(map(str, v)) for k, v in prepared["categories"].items()},
            left_out=dict(prepared["left_out"]),
            rows=tuple(map(int, content["clients"]["rows"])),
            width=int(prepared["width"]),
            numeric=int(prepared["numeric"]),
            standardized=schema.standardize,
            loss=schema.loss,
            classes=schema.classes,
            stated=schema,
            site_effects=schema.check_site_effects(content.get("site_effects", COMMON)),
            seen={k: (float(m), float(s)) for k, (m, s) in prepared.get("seen", {}).items()},
            imputed={k: int(n) for k, n in prepared.get("imputed", {}).items()},
            design=Design.of(prepared["design"]) if "design" in prepared else None,
        )
        columns = len(preparation.names)
        sizes = {len(preparation.means), len(preparation.scales), len(preparation.kept)}
        shape = schema.model_shape(columns, preparation.site_effects)
        if x.shape != shape or sizes != {columns}:
            raise ValueError("its arrays differ in length")
        if not (np.isfinite(x).all() and (preparation.scales > 0).all()):
            raise ValueError("numbers that cannot be used")
        matrix = None if covariance is None else np.array(covariance, dtype=np.float64)
        clients = tuple(map(str, content["clients"]["names"]))
        deviations = (content.get(name) for name in ("site_sd", "residual_sd"))
        sd, residual_sd = (math.nan if v is None else float(v) for v in deviations)
        model = cls(
            schema, preparation, x, matrix, clients, dict(content["versions"]), sd, residual_sd,
            baselines=_baselines(content.get("baseline") or {}),
        )  # fmt: skip
        stated = content.get("inference")
        return model if stated is None else replace(model, estimates=_estimates(model, stated))


def _stated(fit: Estimates) -> dict[str, Any]:
    """Return the file's entries on a fit, except coefficients and covariance."""
    entries: dict[str, Any] = {"notes": list(fit.notes)}
    for name, (attribute, _) in _INFERENCE.items():
        value = getattr(fit, attribute)
        lost = isinstance(value, float) and not math.isfinite(value)  # JSON has no such numbers
        entries[name] = None if lost else value
    return entries


def _baselines(stated: Mapping[str, Any]) -> dict[str, Array]:
    found = {}
    for name, columns in stated.items():
        found[name] = np.array([columns[one] for one in _BASELINE], dtype=np.float64).T
        if not np.isfinite(found[name]).all() or (np.diff(found[name], axis=0) < 0).any():
            raise ValueError("a baseline hazard that cannot be used")
    return found


def _estimates(model: FittedModel, stated: Mapping[str, Any]) -> Estimates:
    entries = {
        attribute: none if stated.get(name) is None else type(none)(stated[name])
        for name, (attribute, none) in _INFERENCE.items()
    }
    covariance = np.array(model.covariance, dtype=np.float64)
    values = model.preparation.in_units(model.x).ravel()
    if covariance.shape != (values.size, values.size):
        raise ValueError("a covariance of another size")
    names = tuple(model.preparation.entries(model.x.shape))
    return Estimates(
        family=family_of(model.schema.loss),
        names=names,
        values=values,
        covariance=covariance,
        notes=tuple(map(str, stated["notes"])),
        **entries,
    )


def _dense(rows: Any) -> Array:
    dense: Array = rows.toarray() if hasattr(rows, "toarray") else rows
    return dense


def load_model(run_dir: str | Path) -> FittedModel:
    """Return the model in the folder of a run on tables.

    Parameters
    ----------
    run_dir : path

    Raises
    ------
    ConfigError
        If the folder has no `model.json`, or the file cannot be used.

    See Also
    --------
    FittedModel : the methods of the model, with an example.
    """
    return FittedModel.read(Path(run_dir) / NAME)


def write_held_out(
    folder: Path, name: str, table: Table, preparation: Preparation, x: Array
) -> None:
    """Write a node's predictions for its own held-out rows into a folder on the node.

    The file has the node's name. It holds the columns of `FittedModel.columns_of`, each row's
    number on the node, and its outcome.

    Parameters
    ----------
    folder : Path
    name : str
    table : Table
    preparation : Preparation
        As sent to the node.
    x : array
        The model, with the node's own intercept if it has one.
    """
    rows, schema = table.held_out_rows, table.schema
    prepared = replace(preparation.of_schema(schema), site_effects=COMMON)
    predictions = FittedModel(schema, prepared, x).columns_of(table.of_rows(rows))
    number, _ = PREDICTIONS
    targets = table.targets[rows]
    outcome = schema.family.cells(targets, schema)
    numbers = table.numbers_of(rows).tolist()
    columns = {number: numbers, **{k: v.tolist() for k, v in predictions.items()}, **outcome}
    _write_own(folder, name, columns)


def write_effects(folder: Path, name: str, table: Table, effects: Array) -> None:
    """Write a node's predictions of its groups' random intercepts into a folder on the node.

    The file has the node's name and ".effects". For each group (a label of the schema's cluster, or
    the whole node) it holds the number of training rows, and the group's intercept minus the mean.

    Parameters
    ----------
    folder : Path
    name : str
    table : Table
    effects : array, shape (groups,)
        In the labels' order.
    """
    labels, rows = [name], [table.num_examples]
    if table.clusters is not None:
        codes, counts = np.unique(table.clusters[table.training_rows], return_counts=True)
        labels, rows = [table.cluster_names[code] for code in codes.tolist()], counts.tolist()
    columns = dict(zip(EFFECTS, (labels, rows, effects.tolist()), strict=True))
    _write_own(folder, f"{name}.effects", columns)


def _write_own(folder: Path, name: str, columns: dict[str, Any]) -> None:
    """Write a node's own table."""
    with storage(f"make the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / f"{_UNSAFE.sub('_', name) or 'node'}.csv", columns)


def _cells(path: Path, source: Any, wanted: Sequence[str]) -> Cells:
    """Return the cells of a data frame, or of a dict of arrays."""
    frame = hasattr(source, "columns") and hasattr(source, "iloc")
    if not frame and not isinstance(source, Mapping):
        raise ConfigError(
            f"rows to predict must be a file, a data frame or a dict of arrays, got "
            f"{type(source).__name__}"
        )
    names = [str(name) for name in (source.columns if frame else source)]
    columns: dict[str, Any] = {}
    for place, name in enumerate(names):
        if name not in wanted:
            continue
        if name in columns:
            raise DataError(
                f"{path}: {names.count(name)} columns have the name {name!r}: rename "
                f"or remove all but one"
            )
        given = source.iloc[:, place] if frame else source[name]
        columns[name] = _column(given)
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise ConfigError(f"columns of rows to predict must have one length, got {lengths}")
    rows = lengths.pop() if lengths else 0
    return Cells(path, tuple(names), columns, np.arange(1, rows + 1))


def _column(given: Any) -> Any:
    """Return a column in the form of `raw_cells`: numbers, or objects with None for nothing."""
    array = np.asarray(given)
    if array.ndim != 1:
        raise ConfigError(f"a column of rows to predict must have one axis, got {array.ndim}")
    if array.dtype.kind in "fiu":
        return array
    if array.dtype.kind in "mM":
        held = "dates" if array.dtype.kind == "M" else "durations"
        raise ConfigError(
            f"a column of rows to predict holds {held} ({array.flat[0] if array.size else held}): "
            f"give the numbers that the run's files have, such as days"
        )
    absent = getattr(given, "isna", None)
    missing = np.asarray(absent()) if callable(absent) else np.zeros(len(array), dtype=bool)
    cells = [None if gone else cell for cell, gone in zip(array.tolist(), missing, strict=True)]
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column


__all__ = ["FittedModel", "Rows", "load_model"]
