"""Fairness: the least mean loss among models that keep each group's loss within a bound."""

from __future__ import annotations

from typing import Any, Literal

from flower_fedcon.core.wings import bring
from flower_fedcon.objectives import GroupLossBounds, LossBound, Scaled, SoftmaxRegression
from flower_fedcon.problems.digits import CLASSES, digits
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.images import Split
from flower_fedcon.problems.stated import stated
from flower_fedcon.validation import choice, positive


@stated
def fair_heart(*, bound: float = 0.42, weighting: str = "uniform") -> FederatedProblem:
    """Return logistic regression of heart disease that keeps each hospital's mean loss in bounds.

    The data of `heart`, without l1: min mean_j f_j(w) s.t. f_j(w) <= bound for each of the four
    hospitals j. Without the bounds the f_j are 0.360, 0.435, 0.308 and 0.455; the largest of them
    can be reduced to 0.418 at best. Needs the extra `tables`.

    Metrics: "worst_loss", the largest f_j; "excess", |max(F - F*, worst_loss - bound)|, which is 0
    only at the optimum, if F* is known; and those of `heart`.

    Parameters
    ----------
    bound : float
        > 0.418.
    weighting : {"uniform", "examples"}
        Whether hospitals or patients have equal weights in F. The bounds are on each hospital.

    >>> problem = fair_heart()
    >>> problem.constraint_values(problem.x0).round(3)  # log 2 - 0.42
    array([0.273, 0.273, 0.273, 0.273])
    """
    heart = bring("BUILDERS", "heart", "fair_heart is a problem of tables")
    plain = heart(l1=0.0, weighting=weighting)
    objectives = [f.objective if isinstance(f, Scaled) else f for f in plain.objectives]
    return _with_metrics(
        positive("bound", bound),
        [LossBound(f, bound) for f in objectives],
        constraints="each",
        weights=plain.weights,
        names=plain.names,
        metrics=plain.metrics,
        preparation=plain.preparation,
    )


@stated
def fair_digits(
    *,
    bound: float = 0.4,
    groups: Literal["classes", "clients"] = "classes",
    clients: int = 10,
    split: Split = "label-skew",
    l2: float = 1e-2,
    test_size: int = 297,
    seed: int = 0,
) -> FederatedProblem:
    """Return softmax regression of digits that keeps the mean loss of each group in bounds.

    The data of `digits`: min mean_j f_j(X) with l2/2 ||X||^2 in each f_j, subject to the bound on
    the mean loss, without l2, of each class over all clients that have such images (ten constraints
    that clients share), or of each client (N constraints, one on each).

    Metrics: "worst_loss", the largest of the groups' losses; "excess", |max(F - F*, worst_loss -
    bound)|, which is 0 only at the optimum, if F* is known; "test_accuracy".

    Parameters
    ----------
    bound : float
        > 0. Without the bound, the classes' losses are 0.24 to 0.69, with the other defaults.
    groups : {"classes", "clients"}
        The groups whose mean losses are bounded: the classes or the clients.
    clients, split, test_size, seed : see `flower_fedcon.problems.digits`
    l2 : float
        > 0, since otherwise F has no minimiser.

    >>> problem = fair_digits()
    >>> problem.groups, float(problem.constraint_values(problem.x0).max().round(3))  # log 10 - 0.4
    (10, 1.903)
    """
    plain = digits(
        clients=clients, split=split, l2=positive("l2", l2), test_size=test_size, seed=seed
    )
    bound = positive("bound", bound)
    objectives: list[Any] = []
    for f in plain.objectives:
        losses = [None if not (f.targets == k).any() else _loss(f, f.targets == k)
                  for k in range(CLASSES)]  # fmt: skip
        objectives.append(
            GroupLossBounds(f, losses, bound)
            if choice("groups", groups, ("classes", "clients")) == "classes"
            else LossBound(f, bound, _loss(f, slice(None)))
        )
    metrics = {name: metric for name, metric in plain.metrics.items() if name != "sparsity"}
    constraints = "groups" if groups == "classes" else "each"
    return _with_metrics(bound, objectives, constraints=constraints, metrics=metrics)


def _loss(f: Any, rows: Any) -> SoftmaxRegression:
    """Return the mean loss of some rows, without l2."""
    return SoftmaxRegression(f.A[rows], f.targets[rows], CLASSES)


def _with_metrics(
    bound: float, objectives: list[Any], *, metrics: Any, **settings: Any
) -> FederatedProblem:
    def worst(x: Any) -> float:
        return bound + float(problem.constraint_values(x).max())

    def excess(x: Any) -> float | None:
        if not problem.has_optimum:
            return None
        return abs(max(problem.objective(x) - problem.optimum.value, worst(x) - bound))

    problem = FederatedProblem(
        objectives, metrics={**metrics, "worst_loss": worst, "excess": excess}, **settings
    )
    return problem
