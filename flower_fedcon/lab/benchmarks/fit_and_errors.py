"""A logistic fit with standard errors over sites, against statsmodels on the pooled rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

from flower_fedcon.errors import needing
from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio


def inference(quick: bool = False) -> Iterator[Result]:
    """Fit a logistic model of 50 columns and its errors, 10^6 rows at 20 sites.

    statsmodels' Logit has the same optimum and the same model-based errors, from the pooled rows;
    it stops by its own rule, a change of the coefficients of 1e-8.
    """
    with needing("the yardstick is statsmodels", "dev"):
        import statsmodels.api as sm  # type: ignore[import-untyped]
    from flower_fedcon.estimators import FederatedLogisticRegression

    rows, columns, sites = (20_000, 10, 20) if quick else (1_000_000, 50, 20)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    b = rng.normal(size=columns) / np.sqrt(columns)
    y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-X @ b))).astype(float)
    groups = np.arange(rows) % sites
    whole = np.column_stack([X, np.ones(rows)])
    works: dict[str, Work] = {
        "sites": lambda: FederatedLogisticRegression(C=np.inf, inference="model").fit(
            X, y, groups
        ).bse_,
        "own": lambda: FederatedLogisticRegression(
            C=np.inf, inference="model", site_effects="own"
        ).fit(X, y, groups).bse_,
        "pooled": lambda: sm.Logit(y, whole).fit(disp=0, method="newton", tol=1e-8).bse,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = in_turn(works, 1 if quick else 3)
    what = f"fit and errors, {rows:.0e} rows x {columns} columns, {sites} sites"
    pooled = times["pooled"]
    yield ratio(what, "statsmodels, pooled", times["sites"], pooled, unit="s", target="< 3")
    yield ratio(f"{what}, own intercepts", "statsmodels, pooled", times["own"], pooled, unit="s")
