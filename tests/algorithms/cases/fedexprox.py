"""FedExProx: what the contract test holds it to."""

from __future__ import annotations

from contract import Case, Contract, about
from problems import HALF, one_minimiser, q6, q6_shared

from flower_fedcon.strategies import FedExProx

# f_1 = x^2 and f_2 = x^2/2 about the minimiser, x0 = 1 and gamma = 1: p_1 = x/3, p_2 = x/2.


def number():
    # p - x = -2x/3 and -x/2, mean -7x/12; alpha = 6/7: x := x/2
    return FedExProx(step_size=1.0, extrapolation=6 / 7), one_minimiser(), [0.5, 0.25]


def constant():
    # L_gamma = (2/3 + 1/2)/2 = 7/12, exact as there is one unknown: alpha = 12/7
    return FedExProx(step_size=1.0), one_minimiser(3.0), [3.0, 3.0]


def diversity():
    # mean of squares (4/9 + 1/4)/2 = 25/72, square of the mean 49/144: alpha = 50/49, x := 17x/42
    strategy = FedExProx(step_size=1.0, extrapolation="diversity")
    return strategy, one_minimiser(), [17 / 42, (17 / 42) ** 2]


def polyak():
    # M_1 = x^2/9 + 2x^2/9, M_2 = x^2/8 + x^2/8, mean 7x^2/24: alpha = (7/24)/(49/144) = 6/7
    strategy = FedExProx(step_size=1.0, extrapolation="polyak")
    return strategy, one_minimiser(), [0.5, 0.25]


def adapted(rule: str) -> dict[str, object]:
    return {"step_size": 0.1, "extrapolation": rule}


CONTRACT = Contract(
    cases=[
        Case("diversity", q6_shared, adapted("diversity"), 60, 0, 1e-15),
        Case("polyak", q6_shared, adapted("polyak"), 60, 0, 1e-15),
        Case("by the bound", q6_shared, {"step_size": 0.1}, 35, 1e-12, 1e-10),
        Case("exact", q6_shared, {"step_size": 0.01, "extrapolation": 8.2019}, 34, 1e-12, 1e-10),
        Case("FedProx", q6_shared, {"step_size": 0.01, "extrapolation": 1.0}, 362, 1e-10, 1.1e-10),
        Case("floor, near", q6, {"step_size": 0.1}, 100, **about(0.3558)),
        Case("floor, free", q6, {"step_size": 1.0}, 100, **about(1.336)),
        Case("floor, tied", q6, {"step_size": 0.01}, 100, **about(0.04776)),
    ],
    sampled=[
        Case("half", q6_shared, {**adapted("diversity"), **HALF}, 100, 0, 1e-15),
        Case("half, by the bound", q6_shared, {"step_size": 0.1, **HALF}, 100, 0, 1e-15),
    ],
    first_rounds=[number, constant, diversity, polyak],
    small={"step_size": 1.0, "extrapolation": 1.5},
)
