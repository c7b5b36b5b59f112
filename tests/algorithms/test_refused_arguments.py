"""Arguments that cannot be, and sets that a method cannot use: refused where they are given."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.compressors import QSGD, Natural, RandK
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.regularizers import L1, Indicator
from flower_fedcon.runs.toml import parse_value
from flower_fedcon.sets import (
    AffineSubspace,
    Box,
    HalfSpace,
    Intersection,
    L1Ball,
    L2Ball,
    Polyhedron,
    Product,
    ShiftedSet,
)
from flower_fedcon.strategies import (
    AveragedFW,
    DualFL,
    FastFedDA,
    FedDR,
    FedFW,
    FedFWPlus,
    FedMiD,
    Scaffold,
)

D = 8
BOTH = Intersection((L2Ball(0.3), Box(-0.1, 0.1)))
WEDGE = Polyhedron(np.eye(D), np.full(D, 0.1))
RNG = np.random.default_rng(1)
OBJECTIVES = [LeastSquares(RNG.normal(size=(10, D)), RNG.normal(size=10)) for _ in range(3)]
NONE = [
    BOTH,
    WEDGE,
    HalfSpace(np.ones(D), 1.0),
    AffineSubspace(np.ones((1, D)), np.ones(1)),
    ShiftedSet(BOTH, 0.1),
    Product(((L1Ball(1.0), (3,)), (BOTH, (5,)))),
]


@pytest.mark.parametrize("constraint", NONE, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("method", [FedFW, FedFWPlus, AveragedFW])
def test_frank_wolfe_methods_refuse_sets_without_an_oracle(method, constraint):
    assert constraint.without_oracle
    with pytest.raises(ConfigError, match=r"steps to vertices.*no linear minimisation oracle"):
        method(constraint, **({} if method is AveragedFW else {"penalty": 0.1}))
    with pytest.raises(ConfigError, match="no linear minimisation oracle"):
        constraint.lmo(np.ones(D))


def test_a_bounded_polyhedron_has_an_oracle():
    cube = Polyhedron(np.vstack([np.eye(D), -np.eye(D)]), np.full(2 * D, 0.1))
    assert cube.without_oracle == ""
    assert FedFW(cube, penalty=0.1).constraint is cube


@pytest.mark.parametrize("constraint", NONE[:4], ids=lambda c: type(c).__name__)
def test_certificates_do_without_the_gap_where_there_is_no_oracle(constraint):
    problem = FederatedProblem(OBJECTIVES, regularizer=Indicator(constraint))
    strategy = FedDR(Indicator(constraint), step_size=1.0)
    history = simulate(strategy, problem, 40, certificates=True, evaluate_every=20)
    assert "fw_gap" not in history.rows[-1]
    assert history["kkt"][-1] < 0.1 * history["kkt"][0] or history["kkt"][-1] < 1e-6


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FastFedDA(), "FastFedDA needs regularizer: `fedcon info FastFedDA`"),
        (lambda: FedFW(penalty=1.0), "FedFW needs constraint"),
        (lambda: DualFL(L1(0.1)), r"DualFL takes no argument without a name, got L1\(weight=0.1\)"),
        (lambda: DualFL(L1(0.1)), r"write DualFL\(regularizer=L1\(weight=0.1\)\), with a name of"),
        (lambda: Scaffold(L1(0.1)), r"Scaffold takes no regularizer, got L1.*: its problem is m"),
        (lambda: Scaffold(L1Ball(1.0)), "Scaffold takes no constraint, got L1Ball"),
        (lambda: FedFW(L1Ball(1.0), 3.0), "FedFW takes constraint without a name, got 3.0 too"),
        (lambda: RandK(fraction=0.1, scaled="no"), r"RandK\(scaled\) must be True or False"),
        (lambda: parse_value("{fraction = .2}"), "is not valid TOML.*write numbers as 0.2"),
        (lambda: parse_value("[1, 2"), "is not valid TOML"),
        (lambda: WEDGE.check_shape((2, 4)), r"give it an array of shape \(m, 2, 4\)"),
    ],
)
def test_what_is_wrong_is_named(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_constructor_of_ones_own_may_hand_on_what_has_no_name():
    class Pulled(FedMiD):
        def __init__(self, *args, pull=0.5, **steps):
            super().__init__(*args, **steps)
            self.pull = pull

    made = Pulled(L1(0.1), client_lr=0.1, local_steps=2)
    assert (made.regularizer.weight, made.pull) == (0.1, 0.5)
    with pytest.raises(ConfigError, match=r"Pulled takes regularizer without a name, got 3\.0 too"):
        Pulled(L1(0.1), 3.0, client_lr=0.1, local_steps=2)


@pytest.mark.parametrize("compressor", [QSGD(levels=3), Natural()])
def test_what_overflows_a_compressor_may_be_a_run_that_diverges(compressor):
    with pytest.raises(ConfigError, match="If the run diverges, use smaller steps"):
        compressor.compress(np.full(4, 1e308), np.random.default_rng(0))


@pytest.mark.parametrize("rate", ["InverseSqrt", lambda t: 0.1])
def test_a_rate_that_is_no_number_is_told_of_schedules(rate):
    with pytest.raises(ConfigError, match=r"a schedule of flower_fedcon\.schedules, such as"):
        Scaffold(client_lr=rate, local_steps=2)
