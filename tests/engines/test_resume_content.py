"""A run is resumed with the data and the settings that it began with, whole arrays and all."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from problems import avg, l1ls, q6, q6_objectives
from test_resume import fedfw

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import LeastSquares, ManyClients
from flower_fedcon.regularizers import GroupLasso
from flower_fedcon.runs import kept
from flower_fedcon.runs.directory import versions
from flower_fedcon.sets import Birkhoff, Box
from flower_fedcon.strategies import FedAvg, FedFW, FedMiD, Scaffold
from flower_fedcon.wire.digests import digest


def squares(seed: int, rows: int = 5) -> LeastSquares:
    rng = np.random.default_rng(seed)
    return LeastSquares(rng.standard_normal((rows, 2000)), rng.standard_normal(rows))


def many(change: float = 0.0) -> ManyClients:
    A, b = np.random.default_rng(0).standard_normal((2, 7, 5, 4))
    A[3, 2, 1] += change
    return ManyClients(LeastSquares, A, b[..., 0])


class Own:
    """An objective of one's own."""

    def __init__(self, target: float) -> None:
        self._target = np.full(3, target)
        self.lock = threading.Lock()

    def value(self, x):
        return float(((x - self._target) ** 2).sum())

    def gradient(self, x):
        return 2 * (x - self._target)


class Other(Own):
    """The same, by another name."""


class OwnL1:
    """A regularizer of one's own, without a repr."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, v):
        return self.weight * float(np.abs(v).sum())

    def prox(self, v, step):
        return np.sign(v) * np.maximum(np.abs(v) - step * self.weight, 0)


class Keyed(OwnL1):
    """One that says what matters of it."""

    calls = 0
    resume_key = "l1 of weight 0.1"

    def prox(self, v, step):
        self.calls += 1
        return super().prox(v, step)


def box(value: float) -> FedFW:
    upper = np.ones(2000)
    upper[1000] = value
    return FedFW(Box(-np.ones(2000), upper), penalty=1.0)


def groups(label: int) -> FedMiD:
    labels = np.arange(2000) // 2
    labels[1000] = label
    return FedMiD(GroupLasso(0.1, labels), client_lr=1e-4, local_steps=1)


def own(regularizer: Any) -> tuple[FedMiD, FederatedProblem]:
    strategy = FedMiD(regularizer, client_lr=0.1, local_steps=1)
    return strategy, federated(Own(0), Own(1), regularizer=strategy.regularizer)


STEPS = FedAvg(client_lr=1e-4, local_steps=1)
DATA = "data has changed: that of 1 of 2 clients differs, the first is client 1"


def federated(*objectives: Any, **more: Any) -> FederatedProblem:
    if isinstance(objectives[0], Own):
        more["x0"] = np.ones(3)
    (given,) = objectives if isinstance(objectives[0], ManyClients) else (list(objectives),)
    return FederatedProblem(given, **more)


def steps(*objectives: Any, **more: Any) -> tuple[FedAvg, FederatedProblem]:
    return STEPS, federated(*objectives, **more)


def within(value: float) -> tuple[FedFW, FederatedProblem]:
    strategy = box(value)
    return strategy, federated(squares(0), constraint=strategy.constraint)


def grouped(label: int) -> tuple[FedMiD, FederatedProblem]:
    strategy = groups(label)
    return strategy, federated(squares(0), regularizer=strategy.regularizer)


PAIR = squares(0), squares(1)
FOREIGN = r"regularizer is Foreign\(operator=<test_resume_content.OwnL1 object>.* resume_key"
CHANGES = {  # what a run begins with, what must not take its place, and what is said
    "data": (steps(*PAIR), steps(squares(0), squares(2)), DATA),
    "weights": (steps(*PAIR), steps(*PAIR, weights=[1, 2]),
                "that of 2 of 2 clients differs, the first is client 0"),
    "one entry of many": (steps(many()), steps(many(1e-9)), "data has changed"),
    "class": (steps(Own(0), Own(1)), steps(Own(0), Other(1)), DATA),
    "own data": (steps(Own(0), Own(1)), steps(Own(0), Own(2)), DATA),
    "bound": (within(1.0), within(2.0),
              r"constraint is Box\(.*\) as before, but its content has changed\. Set it back"),
    "group": (grouped(500), grouped(501), r"regularizer .* content has changed"),
    "regularizer": (own(OwnL1(0.1)), own(OwnL1(0.2)), FOREIGN),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_of_other_content_is_refused(name, tmp_path):
    before, after, words = CHANGES[name]
    simulate(*before, 2, run_dir=tmp_path)
    again: dict[str, Any] = {"run_dir": tmp_path, "resume": True}
    with pytest.raises(FedConError, match=words):
        simulate(*after, 3, **again)
    assert len(simulate(*before, 3, **again)) == 3
    allowed = ["data", "problem", "constraint", "regularizer"]
    assert len(simulate(*after, 4, **again, allow_changes=allowed)) == 4


@pytest.mark.parametrize("kind", [OwnL1, Keyed])
def test_own_regularizers_are_resumed(kind, tmp_path):
    """Other objects of the same content, as in another process."""
    calm = simulate(*own(kind(0.1)), 6)
    for rounds in (3, 6):
        again = simulate(*own(kind(0.1)), rounds, run_dir=tmp_path, resume=True)
    assert again.x.tobytes() == calm.x.tobytes()
    used = own(Keyed(0.1))
    simulate(*used, 2, run_dir=tmp_path / "used")
    assert used[0].regularizer.operator.calls > 0
    simulate(*used, 4, run_dir=tmp_path / "used", resume=True)


FEW = FederatedProblem(q6_objectives()[:5])
SINGLE = FederatedProblem(q6_objectives(), x0=np.zeros(8, np.float32))
PENALTY = FedFW(l1ls(4).constraint, penalty=0.2, participation=Sample(count=2))
OTHER_RATE = FedAvg(client_lr=0.02, local_steps=2)
STAGED = fedfw(schedule="nonconvex")
SETTINGS = {  # what a run begins with and goes on with, what is allowed to change, what is said
    "penalty": ((fedfw(), l1ls(4)), (PENALTY, l1ls(4)), {},
                r"penalty was 0.1, is 0.2\. .*--allow-change penalty"),
    "penalty, allowed": ((fedfw(), l1ls(4)), (PENALTY, l1ls(4)),
                         {"allow_changes": ["penalty"]}, None),
    "rate, allowed": ((avg(), q6()), (OTHER_RATE, q6()), {"allow_changes": ["client_lr"]}, None),
    "seed": ((avg(), q6()), (avg(), q6()), {"seed": 1}, r"seed was 0, is 1"),
    "rounds": ((STAGED, l1ls(4)), (STAGED, l1ls(4)), {}, r"num_rounds was 2, is 3"),
    "algorithm": ((avg(), q6()), (Scaffold(client_lr=0.1, local_steps=1), q6()), {},
                  r"algorithm was 'fedavg', is 'scaffold'"),
    "an unknown name": ((avg(), q6()), (avg(), q6()), {"allow_changes": ["nonsense"]},
                        r"the unknown name 'nonsense': .*client_lr"),
    "clients": ((avg(), q6()), (avg(), FEW), {}, r"of 5 clients .* another number of clients\?"),
    # The essential cannot be allowed to change.
    "type": ((avg(), q6()), (avg(), SINGLE), {"allow_changes": ["model", "x0"]},
             r"model was .*float64.*Set it back, or use another"),
    "clients, allowed": ((avg(), q6()), (avg(), FEW), {"allow_changes": ["clients", "data"]},
                         "is not a checkpoint of 5 clients"),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_changed_settings_are_refused_by_name(name, tmp_path):
    before, after, options, said = SETTINGS[name]
    simulate(*before, 2, run_dir=tmp_path)
    options = {"run_dir": tmp_path, "resume": True, **options}
    if said is None:
        assert len(simulate(*after, 3, **options)) == 3
        return
    with pytest.raises(ConfigError if "unknown" in name else FedConError, match=said):
        simulate(*after, 3, **options)


def test_other_versions_are_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(kept, "versions", lambda: {**versions(), "numpy": "1.0"})
    simulate(avg(), q6(), 2, run_dir=tmp_path)
    monkeypatch.undo()
    simulate(avg(), q6(), 3, run_dir=tmp_path, resume=True)
    assert f"was written with numpy 1.0, now {np.__version__}: numbers may differ" in caplog.text
    caplog.clear()
    simulate(avg(), q6(), 4, run_dir=tmp_path, resume=True)
    assert "was written with" not in caplog.text


def test_digests():
    def function(power, *, shift=1.0):
        return power + shift + len(data)

    data = [1, 2]
    same = digest([1.0, np.ones(2), {"b": 1, "a": {3, 4}}, function, partial(function, 2), Own(1)])
    assert same == digest(
        [np.float64(1), np.ones(2), {"a": {4, 3}, "b": 1}, function, partial(function, 2), Own(1)]
    )
    data.append(3)
    different = [
        None, False, 0, 0.0, -0.0, "0", b"0", [], (), {}, set(), [0], (0,), {0: 0}, {0}, [[]],
        [0, 0], ["00"], np.zeros(1), np.zeros(1, np.float32), np.zeros((1, 1)), np.array(0.0),
        np.array([None]), np.arange(3)[::2], Own, Other, Own(0), Other(0), function,
        partial(function, 1), partial(function, 2), threading.Lock(), np.random.default_rng(0),
        np.random.default_rng(1), Own(0).value, Own(1).value, Keyed(0.1), OwnL1(0.1),
    ]  # fmt: skip
    assert len({digest(value) for value in different}) == len(different)
    assert digest(Keyed(0.1)) == digest(Keyed(0.2))
    circle = [1]
    circle.append(circle)
    assert digest(circle) != digest([1, [1]])
    problem = l1ls(4)
    before = [digest(f) for f in problem.objectives]
    simulate(fedfw(), problem, 2, certificates=True)
    assert [digest(f) for f in problem.objectives] == before
    deep: list[Any] = []
    for _ in range(10**5):
        deep = [deep]
    with pytest.raises(ConfigError, match=r"nested too deeply .* resume_key"):
        digest(deep)


def test_a_run_over_permutations_that_an_earlier_version_began_goes_on():
    """A set's digest goes over its fields: one more, and nothing begun before could be resumed."""
    assert digest(Birkhoff(5)) == "62d24c5931cb4445"
