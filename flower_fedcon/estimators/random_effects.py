"""Random intercepts of clients, or of groups within them: `site_effects="random"`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from flower_fedcon.errors import ConfigError, first_few
from flower_fedcon.estimators.inference import Inferring
from flower_fedcon.objectives.random_intercepts import checked_nodes
from flower_fedcon.paths.path import Walk
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.tables.ending.convergence import separated_by
from flower_fedcon.tables.families import family_of
from flower_fedcon.tables.families.base import RESIDUAL
from flower_fedcon.tables.schema import RANDOM
from flower_fedcon.tables.statistics.after_fit import random_fit
from flower_fedcon.tables.statistics.group_sums import predicted_effects
from flower_fedcon.tables.statistics.site_sums import MODEL
from flower_fedcon.validation import Array

_FOUND = ("site_sd_", "site_sd_bse_", "site_sd_test_", "residual_sd_", "random_effects_")


class RandomEffects(Inferring):
    """The results of an estimator with `site_effects="random"`.

    Attributes
    ----------
    site_sd_ : float
        The standard deviation of the intercepts of clients, or of the groups of `clusters`.
    site_sd_bse_ : float
        With inference: the standard error of `site_sd_`; NaN if that is 0.
    site_sd_test_ : tuple of float
        With inference: the likelihood ratio against no random intercepts, and its p-value from
        (chi^2_0 + chi^2_1) / 2, since 0 is the boundary.
    residual_sd_ : float
        The standard deviation of a linear model's residuals.
    random_effects_ : dict
        The predicted intercept minus the mean, by client or by (client, label).
    """

    nodes: int = 7
    reml: bool = False
    tol: float
    max_iter: int
    site_sd_: float
    residual_sd_: float
    random_effects_: dict[Any, float]

    def _expect_random(self, method: str | None, alpha: float) -> None:
        """Raise unless the model with random intercepts can be fitted."""
        title = f'site_effects="random" of {type(self).__name__}'
        if alpha:
            raise ConfigError(
                f"{title} needs a fit without a penalty: give alpha=0, or for logistic regression "
                f"C=numpy.inf"
            )
        if method not in (None, MODEL):
            raise ConfigError(
                f"{title} has only the model's standard errors, got inference={method!r}: give "
                '"model", or other site_effects'
            )

    def _check_random(self) -> None:
        """Check the settings of random intercepts, and drop an earlier fit."""
        for name in _FOUND:
            vars(self).pop(name, None)
        if self.site_effects != RANDOM:
            return
        checked_nodes(self.nodes)
        if self.reml not in (True, False):
            raise ConfigError(f"reml must be True or False, got {self.reml!r}")
        if self.reml and family_of(self.family).scale != RESIDUAL:
            raise ConfigError(
                f"reml=True is for linear models, and {type(self).__name__} has a {self.family} "
                f"loss here: leave it out"
            )

    def _labelled(self, names: list[str], rows: list[Array], codes: Array | None) -> None:
        """Keep the name of each group of each client, in the order of its effects."""
        if codes is None:
            self._named: list[list[Any]] = [[name] for name in names]
            return
        labels = self._cluster_labels.tolist()
        each = [np.unique(codes[some]).tolist() for some in rows]
        seen, twice = set[int](), set[int]()
        for some in each:
            twice |= seen.intersection(some)
            seen |= set(some)
        if twice:
            shared = [str(labels[code]) for code in sorted(twice)]
            warnings.warn(
                f"clusters has {first_few(shared, what='label')} at several clients, and each "
                f"client's is a separate group. If they are one group, give all its rows to one "
                f"client; if not, use different labels to end this warning",
                UserWarning,
                stacklevel=5,
            )
        self._named = [
            [(name, labels[code]) for code in some] for name, some in zip(names, each, strict=True)
        ]

    def _fit_random(
        self, walk: Walk, problem: FederatedProblem, x: Array, method: str | None, separated: str
    ) -> None:
        """Fit by exchanges of sums, from the model without random intercepts; set the attributes.

        Parameters
        ----------
        walk : Walk
            At the end of the fit without random intercepts.
        problem : FederatedProblem
        x : array
            The model of that fit.
        method : "model" or None
        separated : str
            The columns that separate the outcome, as text.
        """
        if separated:
            raise ConfigError(
                f"no random intercepts: {separated_by(separated, 'take other columns')}"
            )
        names = self._parameter_names()
        fit = random_fit(
            walk.total_sums, self.family, names, x, reml=bool(self.reml), nodes=self.nodes,
            tol=self.tol, most=self.max_iter,
        )  # fmt: skip
        if family_of(self.family).scale == RESIDUAL:
            self.residual_sd_ = fit.residual_sd
        if not fit.converged:
            warnings.warn(
                f"{type(self).__name__} with random intercepts: {fit.unfinished}. Allow more "
                f"than max_iter={self.max_iter}",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.n_iter_ = self.n_iter_ + fit.exchanges
        values = fit.estimates.values
        self._take(self._as_given(values))
        self.site_sd_ = fit.sd
        self.random_effects_ = {}
        for f, groups in zip(problem.clients, self._named, strict=True):
            effects = predicted_effects(f, values, fit.sd, fit.residual_sd, self.nodes)
            self.random_effects_.update(zip(groups, effects.tolist(), strict=True))
        if isinstance(self._named[0][0], tuple):  # client and label
            fit = replace(fit, group="group")
        del self._named
        if method is not None:
            self.site_sd_bse_ = fit.sd_bse
            self.site_sd_test_ = fit.ratio, fit.pvalue
            self._show(self._mapped(fit.estimates, values.shape), values.shape)
            self._facts = fit.facts

    def _take(self, x: Array) -> None:
        raise NotImplementedError

    n_iter_: int
    _cluster_labels: Array
