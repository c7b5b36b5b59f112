"""The record of a table's loss: outcome, link, likelihood, metrics, and what can be asked of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.tables.families.link_functions import IDENTITY, LOG, Link, bounded
from flower_fedcon.validation import Array

INTERCEPT, DISPERSION, GAP = "(intercept)", "log alpha", "log gap to "
KNOWN, RESIDUAL, PEARSON, NONE = "known", "residual", "pearson", "none"
Parts = tuple[Array, Array, Array, Array]


class Stated(Protocol):
    """What a schema says of its outcome."""

    @property
    def target(self) -> str:
        """The outcome's column."""
        ...

    @property
    def positive(self) -> tuple[str, ...]:
        """The values that count as 1."""
        ...

    @property
    def negative(self) -> tuple[str, ...]:
        """The values that count as 0; without any, all others."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes in their order."""
        ...

    @property
    def levels(self) -> tuple[str, ...]:
        """The ordered classes, the lowest first."""
        ...

    @property
    def event(self) -> str:
        """The column of events."""
        ...

    @property
    def event_values(self) -> tuple[str, ...]:
        """The values without and with an event."""
        ...

    @property
    def ties(self) -> str:
        """The treatment of tied events."""
        ...

    @property
    def entry(self) -> str:
        """The column of the times at which rows enter."""
        ...

    @property
    def strata(self) -> str:
        """The column of strata."""
        ...


class Cells(Protocol):
    """A client's columns, as far as an outcome is read from them."""

    def numbers_in(self, name: str, positive: str) -> Array:
        """Return numbers, of a column of `positive` things >= 0, or "" for any."""
        ...

    def above_zero(self, name: str, what: str, remedy: str) -> Array:
        """Return numbers above 0."""
        ...

    def labels(
        self, name: str, known: Mapping[str, float], remedy: str, others: bool = False
    ) -> Array:
        """Return the number of each row's mark; with `others`, -1 for unknown marks."""
        ...

    def entries(self, name: str, times: Array) -> Array:
        """Return the times at which rows enter, each before the row's time."""
        ...

    def strata(self, name: str) -> Array:
        """Return the stratum of each row, as a number from 0."""
        ...


class Family:
    """A loss of tables. An instance is a record: it has no state, and pickles by its name.

    Targets are those of the objective: -1 and 1 for two classes, the class's place for several, and
    pairs of time and event, with entry and stratum if the schema names one of these. The parameter
    is the one number besides scores that deviances depend on: alpha of a negative binomial model,
    delta of Huber's loss.

    Attributes
    ----------
    name : str
        The loss's name in schemas.
    title : str
        The model's name in a summary.
    of : type
        The class of the objective, by which sums over a site's rows find the family.
    link : Link
    rank : int
        Its place where losses are listed.
    ratio : str
        The meaning of a coefficient's exponential; "" if it has none.
    needs : str
        The entry of the schema without which the loss cannot be, and which no other loss has.
    labelled : bool
        Whether the outcome's cells are labels, not numbers.
    whole : bool
        Whether outcomes are counts, so that a fraction is odd.
    binary : bool
        Whether there are two classes, so that there are probabilities of an event, and their AUC.
    several : bool
        Whether each class has its own linear predictor.
    ordered : bool
        Whether its classes have an order, so that there are thresholds.
    compares : bool
        Whether rows are compared with each other: such a model has no intercept.
    instead : str
        For a model with `more` entries the loss without them, which takes a penalty.
    dispersed : bool
        Whether the model's last entry is the logarithm of the variance's alpha.
    scale : {"known", "residual", "pearson", "none"}
        The source of phi: 1; RSS / (n - p); Pearson's chi^2 / (n - p); or no likelihood.
    expected : bool
        Whether the model's errors use the expected information.
    quasi : bool
        Whether phi may be estimated where the likelihood has 1.
    profiled : bool
        Whether a site can eliminate its own coefficients; see `objectives.Profiled`. Only such
        losses have random intercepts, and fits of sites that are compared.
    alike : str
        Outcomes of a site whose own intercept is infinite.
    far, endless : float, str
        The deviation of random intercepts beyond which there is no estimate, and the reason.
    debiased : bool
        Whether there are intervals beside an l1 norm.
    separable : bool
        Whether columns can separate the outcome, so that there is no optimum.
    bounded_slopes : bool
        Whether it then has bounded gradients.
    weighs_rows : bool
        Whether the Hessian at the start gives each row a weight.
    metrics : tuple of str
        The names of the metrics on held-out rows.
    error : str
        The name of the mean squared error.
    no_quality : str
        Why there is no more than these metrics; "" if there is.
    mean_null : bool
        Whether the null model is a mean of outcomes, so that sites' null models can be pooled.
    """

    name: str
    title: str
    of: type
    link: Link = IDENTITY
    rank: int = 100
    ratio: str = ""
    needs: str = ""
    labelled: bool = False
    whole: bool = False
    binary: bool = False
    several: bool = False
    ordered: bool = False
    compares: bool = False
    instead: str = ""
    dispersed: bool = False
    scale: str = KNOWN
    expected: bool = False
    quasi: bool = False
    profiled: bool = False
    alike: str = "all alike"
    far: float = 1e3
    endless: str = ""
    debiased: bool = False
    separable: bool = False
    bounded_slopes: bool = False
    weighs_rows: bool = True
    metrics: tuple[str, ...] = ("deviance",)
    error: str = "mse"
    no_quality: str = ""
    mean_null: bool = True

    def __reduce__(self) -> tuple[Callable[[str], Family], tuple[str]]:
        return family_of, (self.name,)

    def __repr__(self) -> str:
        return f"family_of({self.name!r})"

    @property
    def log_link(self) -> bool:
        """Whether the expected outcome is the exponential of the linear predictor."""
        return self.link is LOG

    # --- the outcome -----------------------------------------------------------------------------

    def read(self, cells: Cells, stated: Stated) -> Array:
        """Return the targets in a client's columns."""
        return cells.numbers_in(stated.target, "")

    def outcomes(self, stated: Stated) -> list[str]:
        """Return descriptions of outcomes whose rows are counted before round 1."""
        return []

    def marks(self, stated: Stated) -> list[str]:
        """Return the names of the last ones of `outcomes`."""
        return []

    def counted(self, own: Array, stated: Stated) -> Array:
        """Return which rows are of each of `outcomes`, shape (rows, outcomes)."""
        return np.stack([own > 0], axis=1)

    def cells(self, y: Array, stated: Stated) -> dict[str, list[Any]]:
        """Return outcomes as a node writes them beside its predictions, by column."""
        return {"outcome": y.tolist()}

    def limits(self, stated: Stated) -> tuple[Array, list[str]] | None:
        """Return limits between groups of targets, and the groups' names; None for numbers."""
        return None

    def decides(self, y: Array) -> bool:
        """Return whether outcomes of all rows of a category give it an infinite coefficient."""
        return False

    # --- the model -------------------------------------------------------------------------------

    def loss(self, A: Any, y: Array, stated: Stated, **options: Any) -> Any:
        """Return the objective of rows; options are `intercept` and `sample_weight`."""
        return self.of(A, y, **options)

    def completed(self, objective: Any) -> Any:
        """Return the objective with what its model has besides coefficients."""
        return objective

    def more(self, stated: Stated) -> tuple[str, ...]:
        """Return the names of a model's entries after its intercept."""
        return (DISPERSION,) if self.dispersed else ()

    def stated_form(self, end: Array) -> dict[str, list[float]]:
        """Return what `model.json` says of a model's end, from the intercept on."""
        return {}

    def told(self, names: Sequence[str], values: Array, covariance: Array) -> list[str]:
        """Return notes on estimates in the columns' own units."""
        return []

    def scale_free(self, intercept: bool) -> bool:
        """Return whether scores have no unit, as log odds, and it is known how far 1 reaches."""
        return self.link is not IDENTITY and (intercept or self.compares)

    def spread(self, scores: Array, x: Array, columns: int) -> Array:
        """Return what the record's functions take as scores, of linear predictors of rows."""
        return scores

    def parameter(self, x: Array) -> float:
        """Return the parameter of a model."""
        return 0.0

    def start(self, mean: float, variance: float) -> float:
        """Return the first value of log alpha, by moments of the outcomes."""
        raise NotImplementedError

    def classes(self, stated: Stated) -> Array | None:
        """Return the classes in the order of probabilities; None without classes."""
        return None

    def likeliest(self, scores: Array) -> Array:
        """Return the place of the likeliest class."""
        raise NotImplementedError

    def probabilities(self, scores: Array) -> Array:
        """Return the classes' probabilities, shape (rows, classes)."""
        raise NotImplementedError

    # --- the likelihood --------------------------------------------------------------------------

    def deviance(self, scores: Array, y: Array, parameter: float = 0.0) -> Array:
        """Return each row's deviance: twice its loss minus the least loss of its target."""
        raise NotImplementedError

    def likelihood(self, loss: Any, scores: Array, y: Array) -> Parts:
        """Return for each row log-likelihood, deviance, Pearson's square, and one more number.

        The last one is what else the fit needs: log y for the gamma family.
        """
        raise NotImplementedError

    def summed(self, loss: Any, scores: Array, y: Array) -> list[Array]:
        """Return the rows' `likelihood`, bounded so that sums do not overflow."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return [bounded(part) for part in self.likelihood(loss, scores, y)]

    def slopes(self, scores: Array, y: Array, parameter: float = 0.0) -> tuple[Array, Array]:
        """Return minus half the deviance's slope in the score, and the expected curvature's half.

        The calibration line follows from them.
        """
        raise NotImplementedError

    # --- held-out rows ---------------------------------------------------------------------------

    @property
    def held_out(self) -> tuple[str, ...]:
        """The metrics' names in a history.

        >>> family_of("logistic").held_out
        ('test_auc', 'test_accuracy', 'test_loss')
        """
        return tuple(f"test_{name}" for name in self.metrics)

    def rows_told(self, y: Array) -> list[Array]:
        """Return the groups of rows of which each must be large enough for `pairs`."""
        return [np.ones(len(y), dtype=bool)]

    def pairs(self, scores: Array, y: Array) -> dict[str, tuple[float, float]]:
        """Return metrics of pairs of rows: value, and number of pairs."""
        return {}

    def means(self, scores: Array, y: Array, x: Array) -> dict[str, Array]:
        """Return metrics that are means over rows: each row's part."""
        return {"deviance": self.deviance(scores, y, self.parameter(x))}

    def numbers(self, y: Array) -> Array:
        """Return targets as numbers whose expectation the link's inverse is."""
        return y

    def level(self, y: Array, offset: Array | None) -> tuple[float, float] | None:
        """Return the two sums over rows whose ratio is the null model's mean; None if not so."""
        return math.fsum(self.numbers(y).tolist()), float(len(y))

    def null(self, mean: float, y: Array, offset: Array | None) -> Array:
        """Return the null model's scores of rows."""
        scores = np.full(len(y), self.link.of(np.array(mean)))
        return scores if offset is None else scores + offset

    def between(self, own: float, mean: float, parameter: float = 0.0) -> float:
        """Return how much a row's null deviance rises from a site's own mean to another one."""
        if abs(own - mean) <= 1e-12 * abs(own):
            return 0.0
        scores, y = self.link.of(np.array([mean])), np.array([own])
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return float(bounded(self.deviance(scores, y, parameter))[0])


class LogLink(Family):
    """A loss whose expected outcome is the exponential of the linear predictor."""

    link = LOG


_FAMILIES: dict[str, Family] = {}


def register(family: Family) -> None:
    """Add a loss for tables, in this process.

    Raises
    ------
    ConfigError
        If another loss has its name.
    """
    earlier = _FAMILIES.get(family.name)
    if earlier is not None and type(earlier) is not type(family):
        raise ConfigError(f"{family.name!r} is already a loss of tables: choose another name")
    _FAMILIES[family.name] = family


def families() -> list[Family]:
    """Return all families, in the order in which losses are listed.

    >>> [family.name for family in families()][:3]
    ['squared', 'huber', 'logistic']
    """
    return sorted(_FAMILIES.values(), key=lambda family: family.rank)


def names_of(which: Callable[[Family], bool] = bool) -> list[str]:
    """Return the names of the families that have a property.

    >>> names_of(lambda family: family.profiled)
    ['squared', 'logistic', 'poisson']
    """
    return [family.name for family in families() if which(family)]


def family_of(name: str) -> Family:
    """Return a family by its name.

    Raises
    ------
    ConfigError
        If there is none.
    """
    family = _FAMILIES.get(name)
    if family is None:
        raise ConfigError(f"{name!r} is not a loss of tables: {nearest(name, names_of())}")
    return family


def family_of_objective(objective: Any) -> Family | None:
    """Return the family of an objective; None for others."""
    return next((family for family in families() if type(objective) is family.of), None)
