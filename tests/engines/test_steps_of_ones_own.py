"""What a class or an objective of one's own says of its steps is never passed over."""

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon import compiled as door
from flower_fedcon.clients.fedavg import FedAvgClient
from flower_fedcon.clients.feddualavg import FedDualAvgClient
from flower_fedcon.clients.scaffnew import ScaffnewClient
from flower_fedcon.clients.scaffold import ScaffoldClient
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.objectives.local_pass import Done
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedMiD, Scaffnew, Scaffold

rng = np.random.default_rng(0)
DATA = [(rng.standard_normal((6, 8)), rng.standard_normal(6)) for _ in range(4)]


class ClippedAvgClient(FedAvgClient):
    algorithm = "fedavg"

    def gradient(self, v):
        return np.clip(super().gradient(v), -0.1, 0.1)


class ClippedScaffnewClient(ScaffnewClient):
    algorithm = "scaffnew"

    def gradient(self, v):
        return np.clip(super().gradient(v), -0.1, 0.1)


class BoundedDualAvgClient(FedDualAvgClient):
    algorithm = "feddualavg"

    def local_pass(self, state, down):
        declared = super().local_pass(state, down)
        return declared._replace(point=lambda z, k: np.clip(declared.point(z, k), -0.1, 0.1))


class NonnegativeL1(L1):
    def prox(self, v, step, *, batch=0):
        return np.maximum(v - step * self.weight, 0)


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(door, "WORTHWHILE", 0)


def engines_agree(strategy, regularizer=None):
    problem = FederatedProblem([LeastSquares(*own) for own in DATA], regularizer=regularizer)
    local, stacked = (simulate(strategy, problem, 5, engine=e).x for e in ("local", "stacked"))
    np.testing.assert_allclose(stacked, local, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("client", "strategy", "regularizer"),
    [
        (ClippedAvgClient, FedAvg(client_lr=0.1, local_steps=5), None),
        (
            ClippedScaffnewClient,
            Scaffnew(client_lr=0.1, communication_probability=0.3),
            None,
        ),
        (
            BoundedDualAvgClient,
            FedDualAvg(L1(0.01), client_lr=0.1, local_steps=5),
            L1(0.01),
        ),
    ],
)
def test_a_gradient_or_point_of_a_subclass_is_asked(monkeypatch, client, strategy, regularizer):
    for place in ("local", "stacked_states", "stacked"):
        module = f"flower_fedcon.engines.{place}.client_class"
        monkeypatch.setattr(module, lambda name: client, raising=False)
    engines_agree(strategy, regularizer)


class HalfwayScaffoldClient(ScaffoldClient):
    algorithm = "scaffold"

    def upload(self, state, down, done):
        middle = done.start + (done.end - done.start) / 2
        return super().upload(state, down, Done(done.declared, middle, done.steps))


def test_an_upload_of_a_subclass_is_asked(monkeypatch):
    """Its control variates do not move along with the steps."""
    monkeypatch.setattr("flower_fedcon.engines.local.client_class", lambda name: ScaffoldClient)
    strategy = Scaffold(client_lr=0.1, local_steps=5)
    whole = simulate(strategy, FederatedProblem([LeastSquares(*own) for own in DATA]), 5).x
    for place in ("local", "stacked"):
        module = f"flower_fedcon.engines.{place}.client_class"
        monkeypatch.setattr(module, lambda name: HalfwayScaffoldClient)
    engines_agree(strategy)
    half = simulate(strategy, FederatedProblem([LeastSquares(*own) for own in DATA]), 5).x
    assert np.abs(half - whole).max() > 1e-3


def test_the_prox_of_a_regularizer_of_ones_own_is_asked():
    psi = NonnegativeL1(0.01)
    engines_agree(FedMiD(psi, client_lr=0.1, local_steps=5), psi)


def test_an_attribute_of_an_objective_of_ones_own_means_nothing_here():
    class Own:
        gradient_steps = 5
        num_examples = 1

        def value(self, x):
            return 0.5 * float(x @ x)

        def gradient(self, x):
            return x

    problem = FederatedProblem([Own(), Own()], x0=np.ones(3))
    found = simulate(FedAvg(client_lr=0.5, local_steps=1), problem, 1).x
    np.testing.assert_array_equal(found, [0.5, 0.5, 0.5])
