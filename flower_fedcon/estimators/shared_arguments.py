"""The arguments that estimators share; an estimator's constructor and its docstring have them all.

scikit-learn reads an estimator's arguments from its constructor, which `dataclass` makes. A field
with `init=False` is no argument of that estimator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flower_fedcon.core.participation import Participation


@dataclass(eq=False, repr=False, kw_only=True)
class FitSettings:
    """How an estimator is fitted.

    Parameters
    ----------
    fit_intercept : bool (default: True)
        The intercept is not penalised.
    tol : float (default: 1e-8)
        KKT residual at which a fit ends, relative to the gradient at the start, and independent of
        the data's units: see `flower_fedcon.regularization_path`.
    max_iter : int (default: 1000)
        The largest number of rounds.
    algorithm : str or strategy, optional
        A method with a regularizer: a name ("FedNewton"), or a strategy with its settings, whose
        regularizer is replaced. By default FedNewton for up to 1000 coefficients, else proximal
        gradient steps (FedMiD; for cohorts, CompositeFL).
    participation : Participation, optional
        The clients of each round; all by default.
    random_state : int, optional
        The seed of the cohorts.
    penalty_factor : array, shape (features,), optional
        Factors >= 0 of each column's penalty, 1 by default; 0 leaves a column free. They are used
        as given, while glmnet divides its `penalty.factor` by their mean.
    inference : {"model", "robust", "cluster", "quasi", "debiased"}, optional
        The kind of standard errors, which cost one exchange of sums. Fits without a penalty take
        "model", "robust" (HC1), "cluster" (clients, or `clusters` of `fit`), or "quasi" (counts
        with variance phi times the mean). Fits with an l1 norm take "debiased", which gives
        intervals about `coef_debiased_`. The fit then has `bse_`, `pvalues_`, `conf_int()`,
        `summary()` and the rest of `Inferring`.
    weight_kind : {"frequency", "sampling"}, optional
        What `sample_weight` of `fit` means for errors: a number of equal rows, or how many rows of
        a population a row stands for (see `flower_fedcon.tables.row_weights`). "sampling" takes
        the inference "robust" or "cluster". Whole numbers are frequencies by default; others must
        be told.
    """

    fit_intercept: bool = True
    tol: float = 1e-8
    max_iter: int = 1000
    algorithm: Any = None
    participation: Participation | None = None
    random_state: int | None = None
    penalty_factor: Any = None
    inference: str | None = None
    weight_kind: str | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class Mixture:
    """How a penalty is mixed.

    Parameters
    ----------
    l1_ratio : float (default: 0.5)
        In [0, 1].
    """

    l1_ratio: float = 0.5


@dataclass(eq=False, repr=False, kw_only=True)
class Penalty(Mixture):
    """The weight of a penalty, and how it is mixed.

    Parameters
    ----------
    alpha : float (default: 1.0)
        >= 0.
    """

    alpha: float = field(default=1.0, kw_only=False)


@dataclass(eq=False, repr=False, kw_only=True)
class SiteSettings:
    """Whether clients have their own intercepts.

    Parameters
    ----------
    site_effects : {"common", "own", "random"} (default: "common")
        "common": one intercept for all clients. "own": each client has its own, which never leaves
        it; `intercept_` is then NaN, and `left_out_` lists clients without other information.
        "random": normal intercepts about `intercept_`, of clients or of the groups of `clusters`,
        by maximum likelihood without a penalty; see `RandomEffects`. Predictions then use the mean
        intercept.
    nodes : int (default: 7)
        Nodes of the quadrature for random intercepts in logistic and Poisson models: odd, at most
        25; 1 is Laplace's approximation.
    reml : bool (default: False)
        Whether to fit a linear model's random intercepts by restricted maximum likelihood.
    """

    site_effects: str = "common"
    nodes: int = 7
    reml: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class PathSettings:
    """How the weight of a penalty is chosen.

    Parameters
    ----------
    l1_ratio : float, or list of several (default: 1.0)
        In (0, 1]; of several values the one with the least mean loss is chosen.
    num : int (default: 100)
        The number of weights on the path: see `flower_fedcon.regularization_path`.
    min_ratio : float (default: 1e-3)
        The least weight of the path, relative to the largest.
    cv : int, splitter, iterable or None (default: 5)
        Number of folds within each client (None: 5); or, as in scikit-learn, a splitter or pairs
        (rows to fit, rows held out) of row numbers or masks.
    rule : {"min", "1se"} (default: "min")
        The alpha of least mean loss, or the largest alpha within a standard error of it, which
        needs at least two folds.
    """

    l1_ratio: float | Sequence[float] = 1.0
    num: int = 100
    min_ratio: float = 1e-3
    cv: Any = 5
    rule: str = "min"
