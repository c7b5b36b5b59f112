"""A regularization path over clients, against scikit-learn on the pooled rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

from flower_fedcon.lab.benchmarks.measure import Result, Work, in_turn, ratio
from flower_fedcon.objectives import Scaled
from flower_fedcon.problems import builder
from flower_fedcon.regularizers import L1, WithIntercept


def path(quick: bool = False) -> Iterator[Result]:
    """Solve l1 logistic regression on the four hospitals of heart, for 100 weights.

    scikit-learn's saga solves for the same weights, each from a cold start. It stops by its default
    rule (tol=1e-4, at most 100 passes), which is far from the path's KKT residual of 1e-8; with
    tol=1e-6 it comes nearer.
    """
    # Not at the top: scikit-learn's import makes every later operation of NumPy a little slower,
    # also in the other benchmarks (it fills the thread's context, where NumPy keeps its error
    # state).
    from sklearn.linear_model import LogisticRegression

    from flower_fedcon.paths import cross_validate, regularization_path

    problem, psi = builder("heart")(), WithIntercept(L1(1.0))
    num = 3 if quick else 100
    cores = [f.objective if isinstance(f, Scaled) else f for f in problem.objectives]
    A, y = np.concatenate([f.A for f in cores]), np.concatenate([f.y for f in cores])
    values = regularization_path(problem, psi, num=num).values

    def saga(**stop: float) -> None:
        for value in values:
            model = LogisticRegression(C=1 / (len(y) * value), l1_ratio=1, solver="saga", **stop)
            model.fit(A, y)

    works: dict[str, Work] = {
        "path": lambda: regularization_path(problem, psi, num=num),
        "saga": saga,
        "saga, tol=1e-6": lambda: saga(tol=1e-6, max_iter=10_000),
        "folds": lambda: cross_validate(problem, psi, num=num),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that saga has not converged
        times = in_turn(works, 2 if quick else 5)
    what = f"path of {num} weights, heart, 4 clients"
    for yardstick, target in (("saga", "< 1"), ("saga, tol=1e-6", "")):
        yield ratio(what, yardstick, times["path"], times[yardstick], unit="s", target=target)
    yield ratio("with 5 folds", "path", times["folds"], times["path"], unit="s")
