"""The uncertainty of an estimator's coefficients, after a fit with `inference=`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from flower_fedcon.errors import ConfigError, first_few, repr_of
from flower_fedcon.paths.path import Walk
from flower_fedcon.tables.ending.convergence import separated_by
from flower_fedcon.tables.preparation import INTERCEPT, expect_distinct
from flower_fedcon.tables.schema import RANDOM
from flower_fedcon.tables.statistics.after_fit import estimates_at
from flower_fedcon.tables.statistics.debiased import expect_lasso
from flower_fedcon.tables.statistics.estimates import (
    DEBIASED,
    PENALISED,
    Estimates,
    check_method,
)
from flower_fedcon.tables.statistics.summary_text import Summary
from flower_fedcon.validation import Array

_UNPENALISED = "alpha=0, of logistic regression C=numpy.inf"
_FOUND = (
    "estimates_", "covariance_", "_centred", "loglik_", "aic_", "bic_", "deviance_", "dispersion_",
    "bse_", "intercept_bse_", "pvalues_", "intercept_pvalues_", "_facts",
)  # fmt: skip


class Inferring:
    """Standard errors, tests and intervals of an estimator that was fitted with `inference=`.

    Attributes
    ----------
    bse_, pvalues_ : array, in the shape of `coef_`
        Standard errors, and two-sided p-values; without the intercept, with which
        `estimates_.bse` has them in the order of `estimates_.names`.
    intercept_bse_, intercept_pvalues_ : float or array, as `intercept_`
    loglik_, aic_, bic_, deviance_, dispersion_ : float
        The log-likelihood l with all its constants; 2 p - 2 l; p log n - 2 l, where n is the number
        of events in a Cox model; the deviance; phi.
    covariance_ : array, shape (p, p)
        The covariance of the parameters in `estimates_.names`: the columns, the intercept, log
        alpha.
    estimates_ : flower_fedcon.tables.statistics.Estimates
    coef_debiased_ : array, in the shape of `coef_`
        With inference="debiased": the estimates of `bse_`, `pvalues_` and intervals; `coef_` is the
        lasso's. The intercept has no errors (NaN), and there is no likelihood.
    """

    inference: str | None = None
    family: str
    """The loss's name in schemas."""
    fit_intercept: bool
    weight_kind: str | None = None
    _said: tuple[str, ...]
    _weighing: str
    site_effects: str = "common"
    reml: bool = False
    coef_: Array
    intercept_: Any
    n_features_in_: int
    estimates_: Estimates
    _kind: str
    _at: Array

    @property
    def _common_intercept(self) -> bool:
        """Whether the model's last entry is an intercept."""
        return self.fit_intercept and self.site_effects != "own"

    def _wanted(self, alpha: float, l1_ratio: float) -> str | None:
        """Return the method of inference, if one is requested and possible.

        Raises
        ------
        ConfigError
            If the fit has a penalty or, for "debiased", another penalty than the lasso's.
        """
        for name in _FOUND:  # from an earlier fit
            vars(self).pop(name, None)
        if self.inference is None:
            return None
        if self.inference == DEBIASED:
            self._expect_lasso(alpha, l1_ratio)
            return DEBIASED
        method = check_method(self.family, self.inference)
        if alpha:
            raise ConfigError(
                f"inference={self.inference!r} of {type(self).__name__} with a penalty: "
                + PENALISED.format(how=_UNPENALISED)
            )
        return method

    def _expect_lasso(self, alpha: float, l1_ratio: Any) -> None:
        """Raise unless the fit can be debiased."""
        penalty = "l1" if alpha else "none"
        if np.any(np.asarray(l1_ratio) != 1):
            penalty = f"l1_ratio={repr_of(l1_ratio)}"
        expect_lasso(
            f'inference="debiased" of {type(self).__name__}', self.family, penalty,
            ("l1_ratio=1", 'inference="model"'),
        )  # fmt: skip

    def _infer(self, walk: Walk, x: Array, method: str, separated: str) -> None:
        """Request the sums at a model, and set the attributes."""
        if separated and method != DEBIASED:
            raise ConfigError(
                f"no standard errors: {separated_by(separated, 'fit with inference=None')}"
            )
        names = self._parameter_names()
        expect_distinct(names[: self.n_features_in_])
        if x.ndim == 2:
            names = [f"{name} [{label}]" for name in names for label in self.classes_[1:]]  # type: ignore[attr-defined]
        estimates = estimates_at(walk.total_sums, self.family, method, names, x, self._kind)
        notes = (*estimates.notes, *self._said)
        estimates = replace(estimates, notes=notes, weighing=self._weighing)
        self._at = estimates.values
        if method != DEBIASED:
            estimates = self._mapped(estimates, x.shape)
        for doubt in estimates.doubts:
            warnings.warn(doubt, UserWarning, stacklevel=5)
        if method == DEBIASED:
            self._show_debiased(estimates)
        else:
            self._show(estimates, x.shape)

    def _mapped(self, found: Estimates, shape: tuple[int, ...]) -> Estimates:
        """Return estimates for the columns as they were given."""
        each = np.eye(len(found.values) // shape[0])
        return found.in_units(np.kron(self._as_given(np.eye(shape[0])), each))

    def _as_given(self, x: Array) -> Array:
        raise NotImplementedError

    def _parameter_names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        columns = [f"x{j}" for j in range(self.n_features_in_)] if names is None else list(names)
        return [*map(str, columns), *([INTERCEPT] if self._common_intercept else [])]

    def _show(self, found: Estimates, shape: tuple[int, ...]) -> None:
        """Set the attributes from estimates of the free parameters."""
        self.loglik_, self.aic_, self.bic_ = found.loglik, found.aic, found.bic
        self.deviance_, centred = found.deviance, found.by_class(shape)
        if len(shape) == 2:  # of equivalent models, the one whose coefficients sum to 0
            values = centred.values.reshape(shape).T
            self.coef_ = values[:, : self.n_features_in_].copy()
            none = np.zeros(shape[1])
            self.intercept_ = values[:, -1].copy() if self._common_intercept else none
        self._show_errors(found, centred)

    def _show_debiased(self, found: Estimates) -> None:
        """Set the attributes from debiased estimates of the columns."""
        self.coef_debiased_ = self._laid_out(found.values)[0]
        self._show_errors(found, found)

    def _show_errors(self, found: Estimates, centred: Estimates) -> None:
        """Set the attributes of all methods; `centred` has all coefficients."""
        self.estimates_, self.covariance_, self._centred = found, found.covariance, centred
        self.dispersion_ = found.dispersion
        self.bse_, self.intercept_bse_ = self._laid_out(centred.bse)
        self.pvalues_, self.intercept_pvalues_ = self._laid_out(centred.pvalues)

    def _laid_out(self, values: Array) -> tuple[Array, Any]:
        """Return the parameters' numbers in the shapes of `coef_` and `intercept_`."""
        classes = len(self.coef_) if self.coef_.ndim == 2 else 1
        columns = self.n_features_in_
        if self._common_intercept and len(values) == columns:  # debiased: for the columns only
            values = np.concatenate([values, np.full((1, *values.shape[1:]), np.nan)])
        table = values[: len(values) - len(values) % classes].reshape(
            -1, classes, *values.shape[1:]
        )
        coefficients = np.moveaxis(table[:columns], 0, 1)
        if self.coef_.ndim == 1:
            one: Any = (
                table[columns, 0] if self._common_intercept else np.full(values.shape[1:], np.nan)
            )
            return coefficients[0].copy(), one if one.ndim else float(one)
        none = np.full((classes, *values.shape[1:]), np.nan)
        return coefficients.copy(), table[columns] if self._common_intercept else none

    def _inferred(self) -> Estimates:
        check_is_fitted(self)
        if not hasattr(self, "estimates_"):
            raise ConfigError(
                f"{type(self).__name__} was fitted without inference: give inference="
                '"model", "robust" or "cluster", and fit again'
            )
        return self._centred

    def conf_int(self, alpha: float = 0.05) -> Array:
        """Return Wald intervals of the coefficients, with coverage 1 - alpha.

        Parameters
        ----------
        alpha : float
            In (0, 1).

        Returns
        -------
        array, shape (*coef_.shape, 2)

        Raises
        ------
        ConfigError
            If the fit was without inference, or alpha is out of range.
        """
        return self._laid_out(self._inferred().conf_int(alpha))[0]

    def intercept_conf_int(self, alpha: float = 0.05) -> Array:
        """Return the interval of the intercept, shape (2,) or (*intercept_.shape, 2)."""
        return np.asarray(self._laid_out(self._inferred().conf_int(alpha))[1])

    def ratios(self, alpha: float = 0.05) -> Array:
        """Return the coefficients' exponentials, and their intervals: odds, rate, hazard ratios.

        Returns
        -------
        array, shape (*coef_.shape, 3)
            The ratio for one unit more, and the ends of its interval.

        Raises
        ------
        ConfigError
            If exponentials have no meaning, as for a linear model; and as `conf_int` does.
        """
        fit = self._inferred()
        if not fit.family.ratio:
            raise ConfigError(
                f"the exponential of a {fit.family.name} coefficient is not a ratio: use conf_int"
            )
        values = self._laid_out(fit.values)[0]
        both = np.concatenate([values[..., None], self.conf_int(alpha)], axis=-1)
        return np.asarray(np.exp(both))

    def likelihood_ratio(self, smaller: Any) -> tuple[float, int, float]:
        """Return the likelihood-ratio test of this fit against one without some columns.

        Parameters
        ----------
        smaller : estimator
            An estimator of the same kind, fitted with inference to the same rows without the
            columns.

        Returns
        -------
        tuple
            Chi^2, its degrees of freedom, and the p-value.

        Raises
        ------
        ConfigError
            If the smaller fit has a column that this one lacks, or the two fits cannot be compared.
        """
        for fit in (self, smaller):
            if fit._inferred().method == DEBIASED:
                raise ConfigError(
                    "a likelihood ratio compares fits without a penalty, and a debiased lasso does "
                    'not maximise a likelihood: use inference="model" without a penalty'
                )
        self._expect_comparable(smaller)
        own, others = (getattr(fit, "feature_names_in_", None) for fit in (self, smaller))
        more = [] if own is None or others is None else sorted(set(others) - set(own))
        if more:
            raise ConfigError(
                f"a likelihood ratio needs nested fits, and the smaller has "
                f"{first_few(more, what='column')}, which the larger lacks: compare them by aic_"
            )
        return self.estimates_.likelihood_ratio(smaller.estimates_)

    def _expect_comparable(self, smaller: Any) -> None:
        """Raise unless two likelihoods have the same kind of intercepts."""
        kinds = {fit.site_effects == RANDOM for fit in (self, smaller)}
        if len(kinds) == 2:
            raise ConfigError(
                "a fit with random intercepts and one without differ by a variance, for which 0 is "
                "the boundary: use site_sd_test_ of the first"
            )
        if kinds == {True} and (self.reml or smaller.reml):
            raise ConfigError(
                "restricted likelihoods of models with different columns cannot be compared: fit "
                "both with reml=False"
            )

    def summary(self, alpha: float = 0.05) -> Summary:
        """Return the fit as a table, as statsmodels prints it.

        In a multinomial model the coefficients are those of each class against the first.
        """
        self._inferred()
        sites = len(self.groups_) - len(self.left_out_)  # type: ignore[attr-defined]
        facts = getattr(self, "_facts", ())
        strata = "" if getattr(self, "_strata", None) is None else "strata"
        return Summary.of(self.estimates_, alpha, sites=sites, strata=strata, facts=facts)
