"""Networks of many clients in one pass: the local engine's iterates, or a reason why not."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest
from contract import CONTRACTS, build
from test_stacked import STACKS

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.engines.stacked import why_not_stackable
from flower_fedcon.layout import Layout
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L2Ball, NuclearNormBall
from flower_fedcon.strategies import FedAvg, Scaffold

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
from torch import nn  # noqa: E402

from flower_fedcon.torch import TorchObjective  # noqa: E402
from flower_fedcon.torch.stacked import StackedTorch  # noqa: E402

LOSS = nn.CrossEntropyLoss()
STEPS = {"client_lr": 0.1, "local_steps": 3}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def network(dtype=torch.float64, activation=None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), activation or nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def data(j=0, rows=20):
    rng = np.random.default_rng(j)
    return rng.normal(size=(rows, 6)), rng.integers(0, 3, rows)


def clients(count=5, module=None, rows=lambda j: 20, **options):
    module = network() if module is None else module
    return [TorchObjective(module, LOSS, data(j, rows(j)), **options) for j in range(count)]


def made(name, objectives, **settings):
    contract, first = CONTRACTS[name], objectives[0]
    oracle = {
        "constraint": first.product({"0.weight": NuclearNormBall(2.0)}, rest=L2Ball(2.0)),
        "regularizer": first.separable({"*.weight": L1(1e-3)}),
    }
    own = {contract.oracle: oracle[contract.oracle]} if contract.oracle else {}
    problem = FederatedProblem(objectives, x0=first.start(own.get("constraint")), **own)
    return build(name, problem, **{**contract.small, **settings}), problem


@pytest.mark.parametrize("name", sorted(STACKS))
def test_the_same_iterates_as_local(name):
    small = CONTRACTS[name].small
    settings = {"local_solver": "aogm"} if "local_solver" in small else {}
    same(*made(name, clients(l2=0.01), **settings))


def same(strategy, problem, rounds=6, tolerance=1e-9):
    """Assert that both engines agree, and that this one was not the local one."""
    assert why_not_stackable(strategy, problem) is None
    runs = [simulate(strategy, problem, rounds, engine=e, seed=3) for e in ("local", "stacked")]
    expected, found = (np.concatenate([layer.ravel() for layer in run.x]) for run in runs)
    assert found.dtype == expected.dtype
    assert np.abs(expected - problem.start).max() > 1e-4
    assert np.abs(found - expected).max() <= tolerance * max(1.0, float(np.abs(expected).max()))
    assert pytest.approx(runs[0]["objective"], rel=max(1e-9, tolerance)) == runs[1]["objective"]
    assert (runs[0]["uplink_bytes"] == runs[1]["uplink_bytes"]).all()
    return runs[1]


@pytest.mark.parametrize("rule", [Full(), Sample(count=3)], ids=repr)
@pytest.mark.parametrize("size", [None, 7, 15])
def test_minibatches_and_parts_of_few_rows(rule, size):
    """Also of clients with different numbers of rows, and weighted ones."""
    for objectives, weights in (
        (clients(chunk=6), None),
        (clients(6, chunk=50, rows=lambda j: (20, 17)[j % 2]), [1, 2, 3, 4, 5, 6]),
    ):
        problem = FederatedProblem(objectives, x0=objectives[0].start(), weights=weights)
        same(Scaffold(**STEPS, batch_size=size, participation=rule), problem)


def test_single_precision():
    objectives = clients(module=network(torch.float32))
    problem = FederatedProblem(objectives, x0=objectives[0].start())
    assert same(FedAvg(**STEPS), problem, tolerance=1e-4).x[0].dtype == np.float32


def test_a_stack_is_its_objectives():
    objectives = clients(l2=0.1, chunk=6)
    stack, rng = StackedTorch(objectives), np.random.default_rng(1)
    x = rng.normal(size=(5, *stack.shape))
    alone = [f.packed_objective(Layout.of(f.start())) for f in objectives]
    values = [f.value(own) for f, own in zip(alone, x, strict=True)]
    gradients = np.array([f.gradient(own) for f, own in zip(alone, x, strict=True)])
    kept = x.copy()
    assert pytest.approx(values, rel=1e-12) == stack.own_values(x)
    assert pytest.approx([f.value(x[0]) for f in alone], rel=1e-12) == stack.values(x[0])
    for found, expected in zip(stack.value_and_gradient(x), (values, gradients), strict=True):
        assert pytest.approx(expected, rel=1e-9, abs=1e-12) == found
    some = np.array([3, 1])
    assert pytest.approx(gradients[some], abs=1e-12) == stack.gradient(x[some], some)
    assert pytest.approx(gradients[1:3], abs=1e-12) == stack.only(slice(1, 3)).gradient(
        x[1:3], slice(0, 2)
    )
    assert (x == kept).all()


class Branches(nn.Module):
    """What a row's value decides."""

    def forward(self, rows):
        return rows if rows.sum() > 0 else -rows


class Counts(nn.Module):
    """What is not the same twice."""

    calls = 0.0

    def forward(self, rows):
        self.calls += 1.0
        return rows * self.calls


class Clamped(nn.Linear):
    """A layer that keeps its own weights small, behind autograd's back."""

    def forward(self, rows):
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(rows)


class Own(TorchObjective):
    """Another function under the same name."""

    def value(self, x):
        return 2 * super().value(x)


def refused():
    """Return clients that are served one by one, and why."""
    weighted = [
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, j + 1.0])).double() for j in (0, 1)
    ]
    frozen = network(), network()
    for j, module in enumerate(frozen):
        module[0].weight.requires_grad_(False)
        module[0].weight.mul_(j + 1.0)
    return [
        (clients(module=network(activation=Branches())), "vmap does not take the module"),
        (clients(module=network(activation=Counts())), "another than by itself"),
        (clients(module=Clamped(6, 3).double()), "vmap|changes its parameters"),
        ([TorchObjective(network(), w, data()) for w in weighted], "another than by itself"),
        ([TorchObjective(m, LOSS, data()) for m in frozen], "the 2 clients differ: 2 types"),
        ([Own(network(), LOSS, data(j)) for j in range(3)], "a list of arrays"),
    ]


@pytest.mark.parametrize("case", range(6))
def test_what_cannot_be_taken_together_runs_one_by_one(case, caplog):
    objectives, said = refused()[case]
    problem = FederatedProblem(objectives, x0=objectives[0].start())
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = simulate(FedAvg(**STEPS), problem, 1, engine="stacked")
    assert re.search(said, caplog.text)
    assert "running on the local engine" in caplog.text
    assert np.isfinite(found["objective"]).all()


def test_the_compiled_engine_leaves_them_to_the_stacked_one(caplog):
    pytest.importorskip("jax")
    objectives = clients()
    problem = FederatedProblem(objectives, x0=objectives[0].start())
    with caplog.at_level(logging.WARNING, logger="flwr"):
        simulate(FedAvg(**STEPS), problem, 1, engine="jax")
    assert "a TorchObjective, whose lines JAX cannot trace; running on the stacked" in caplog.text
