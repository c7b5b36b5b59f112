"""What a class or an objective of one's own says of its steps is never passed over."""

import numpy as np
import pytest
from agreement import agree, squares

from flower_fedcon import compiled as door
from flower_fedcon import simulate
from flower_fedcon.clients.fedavg import FedAvgClient
from flower_fedcon.clients.feddualavg import FedDualAvgClient
from flower_fedcon.clients.scaffnew import ScaffnewClient
from flower_fedcon.clients.scaffold import ScaffoldClient
from flower_fedcon.objectives.local_pass import Done
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedMiD, Scaffnew, Scaffold


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
    agree(strategy, squares((6,) * 4, 8, regularizer=regularizer), 5, 1e-12)


def client_is(monkeypatch, kind, *places):
    for place in places or ("local", "stacked_states", "stacked"):
        module = f"flower_fedcon.engines.{place}.client_class"
        monkeypatch.setattr(module, lambda name: kind, raising=False)


STEPS = {"client_lr": 0.1, "local_steps": 5}
PSI = L1(0.01)
ASKED = [
    (ClippedAvgClient, FedAvg(**STEPS), None),
    (ClippedScaffnewClient, Scaffnew(client_lr=0.1, communication_probability=0.3), None),
    (BoundedDualAvgClient, FedDualAvg(PSI, **STEPS), PSI),
]


@pytest.mark.parametrize(("client", "strategy", "psi"), ASKED)
def test_a_gradient_or_point_of_a_subclass_is_asked(monkeypatch, client, strategy, psi):
    client_is(monkeypatch, client)
    engines_agree(strategy, psi)


class HalfwayScaffoldClient(ScaffoldClient):
    algorithm = "scaffold"

    def upload(self, state, down, done):
        middle = done.start + (done.end - done.start) / 2
        return super().upload(state, down, Done(done.declared, middle, done.steps))


def test_an_upload_of_a_subclass_is_asked(monkeypatch):
    """Its control variates do not move along with the steps."""
    strategy, problem = Scaffold(**STEPS), squares((6,) * 4, 8)
    client_is(monkeypatch, ScaffoldClient, "local")
    whole = simulate(strategy, problem, 5).x
    client_is(monkeypatch, HalfwayScaffoldClient, "local", "stacked")
    engines_agree(strategy)
    assert np.abs(simulate(strategy, problem, 5).x - whole).max() > 1e-3


def test_the_prox_of_a_regularizer_of_ones_own_is_asked():
    psi = NonnegativeL1(0.01)
    engines_agree(FedMiD(psi, **STEPS), psi)
