"""Networks of many clients in one pass: the local engine's iterates, or a reason why not."""

from __future__ import annotations

import logging
import pickle
import re

import numpy as np
import pytest
from agreement import agree
from contract import CONTRACTS, build
from test_stacked import STACKS
from test_torch import LOSS, STEPS, Clamped, data
from test_torch import network as module_of

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.errors import FedConError
from flower_fedcon.layout import Layout
from flower_fedcon.registry import strategy_class
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L2Ball, NuclearNormBall
from flower_fedcon.solvers import AOGM
from flower_fedcon.strategies import FedAvg, Scaffold
from flower_fedcon.validation import parameters
from flower_fedcon.wire.digests import digest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
from torch import nn  # noqa: E402

from flower_fedcon.torch import TorchObjective  # noqa: E402
from flower_fedcon.torch.stacked_modules import StackedTorch  # noqa: E402


def network(dtype=torch.float64, activation=None):
    return module_of(dtype, activation or nn.Tanh())


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


def problem_of(objectives, **terms):
    return FederatedProblem(objectives, x0=objectives[0].start(), **terms)


def same(strategy, problem, rounds=6, tolerance=1e-9):
    more = {"columns": ["uplink_bytes"], "about": {"objective": max(1e-9, tolerance)}}
    return agree(strategy, problem, rounds, tolerance, **more)


@pytest.mark.parametrize("name", sorted(STACKS))
def test_the_same_iterates_as_local(name):
    """Ten iterations of a local solver, which many clients take in one pass as any others.

    The exact one would play thousands for the last digits of a network. It is FedProx's.
    """
    solves = name != "fedprox" and "local_solver" in parameters(strategy_class(name))
    settings = {"local_solver": AOGM(max_iterations=10)} if solves else {}
    same(*made(name, clients(l2=0.01), **settings))


@pytest.mark.parametrize("rule", [Full(), Sample(count=3)], ids=repr)
@pytest.mark.parametrize("size", [None, 7, 15])
def test_minibatches_and_parts_of_few_rows(rule, size):
    """Also of clients with different numbers of rows, and weighted ones."""
    for objectives, weights in (
        (clients(chunk=6), None),
        (clients(6, chunk=50, rows=lambda j: (20, 17)[j % 2]), [1, 2, 3, 4, 5, 6]),
    ):
        problem = problem_of(objectives, weights=weights)
        same(Scaffold(**STEPS, batch_size=size, participation=rule), problem)


def test_single_precision():
    problem = problem_of(clients(module=network(torch.float32)))
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


class Own(TorchObjective):
    """Another function under the same name."""

    def value(self, x):
        return 2 * super().value(x)


class Remembers(nn.Linear):
    """A layer that keeps a mean of what it has seen."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, rows):
        out = super().forward(rows)
        self.seen = (0.9 * self.seen + 0.1 * out.mean(0)).detach()
        return out


class Averaging(nn.CrossEntropyLoss):
    """A loss that keeps what it returned last."""

    last = None

    def forward(self, outputs, targets):
        loss = super().forward(outputs, targets)
        self.last = loss.detach()
        return loss


class Last(nn.Module):
    """The last state of a recurrent layer, which has no batched form without gradients."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(2, 3, batch_first=True)

    def forward(self, rows):
        return self.recurrent(rows.reshape(len(rows), 3, 2))[0][:, -1]


class Scale(nn.Module):
    """A number that is trained, and one that is not."""

    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("share", torch.tensor(0.5))

    def forward(self, rows):
        return self.share * self.by * rows


def by_label(j):
    """Sorted labels, weighted by how often a client has them, and so alike in the first rows."""
    targets = torch.cat([torch.zeros(8 + 2 * j), torch.ones(12 - 2 * j)]).long()
    weight = len(targets) / (2 * torch.bincount(targets).double())
    module = nn.Linear(6, 2).double()
    torch.manual_seed(0)
    return TorchObjective(module, nn.CrossEntropyLoss(weight=weight), (data(j)[0], targets))


def frozen(j):
    module = network()
    module[0].weight.requires_grad_(False)
    module[0].weight.mul_(j + 1.0)
    return TorchObjective(module, LOSS, data())


def plus(j):
    return lambda outputs, targets: LOSS(outputs, targets) + j


def own_loss(loss):
    return [TorchObjective(network(), loss, data(j)) for j in range(3)]


def wrong_label(j):
    inputs, targets = data(j)
    targets[15] += 7 * (j == 1)
    return TorchObjective(network(), LOSS, (inputs, targets))


DIFFER = "the 3 clients differ: 3 types"
NOT_TAKEN = "vmap does not take the module"
KEEPS = f"keeps what it was called with|{NOT_TAKEN}"
REFUSED = {
    "branches": (lambda: clients(module=network(activation=Branches())), NOT_TAKEN),
    "counts": (lambda: clients(module=network(activation=Counts())), KEEPS),
    "remembers": (lambda: clients(module=Remembers(6, 3).double()), KEEPS),
    "loss remembers": (lambda: own_loss(Averaging()), KEEPS),
    "clamped": (lambda: clients(module=Clamped(6, 3).double()), "vmap|changes its parameters"),
    "recurrent": (lambda: clients(module=Last().double()), NOT_TAKEN),
    "weights of labels": (lambda: list(map(by_label, range(3))), DIFFER),
    "Huber": (
        lambda: [
            TorchObjective(nn.Linear(6, 1).double(), nn.HuberLoss(delta=1.0 + j), (x, x[:, :1]))
            for j, (x, _) in enumerate(map(data, range(3)))
        ],
        DIFFER,
    ),
    "functions": (lambda: [TorchObjective(network(), plus(j), data(j)) for j in range(3)], DIFFER),
    "frozen": (lambda: list(map(frozen, range(3))), DIFFER),
    "subclass": (lambda: [Own(network(), LOSS, data(j)) for j in range(3)], "Own, which has no"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_together_runs_one_by_one(name, caplog):
    make, said = REFUSED[name]
    objectives = make()
    problem = problem_of(objectives)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = simulate(FedAvg(**STEPS), problem, 1, engine="stacked")
    assert re.search(said, caplog.text)
    assert "running on the local engine" in caplog.text
    assert np.isfinite(found["objective"]).all()
    pickle.dumps([objective._module for objective in objectives])  # nothing of vmap's is left there


def test_a_client_whose_rows_do_not_fit_is_named_as_by_the_local_engine(caplog):
    objectives = list(map(wrong_label, range(3)))
    problem = problem_of(objectives)
    said = []
    for engine in ("local", "stacked"):
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, logger="flwr"),
            pytest.raises((IndexError, FedConError)) as error,
        ):
            simulate(FedAvg(**STEPS), problem, 1, engine=engine)
        said.append((type(error.value), "client 1" in caplog.text + str(error.value)))
    assert said[0] == said[1]
    assert said[0][1]


@pytest.mark.parametrize(
    "activation", [nn.BatchNorm1d(5), Scale(), nn.LayerNorm(5)], ids=lambda a: type(a).__name__
)
def test_modules_with_buffers_and_numbers(activation):
    same(FedAvg(**STEPS, batch_size=7), problem_of(clients(module=network(activation=activation))))


def test_what_a_client_raises_in_a_pass_is_an_error_of_the_package():
    """So that its clients are served one by one, and the one to blame is named."""
    stack = StackedTorch(list(map(wrong_label, range(3))))
    with pytest.raises(FedConError, match=r"(Index|Runtime)Error"):
        stack.values(np.zeros(stack.shape))


@pytest.mark.parametrize("first", ["local", "stacked"])
@pytest.mark.parametrize("then", ["local", "stacked"])
def test_a_run_goes_on_with_objectives_made_anew(first, then, tmp_path):
    def play(rounds, engine, **options):
        objectives = clients()
        problem = problem_of(objectives)
        return simulate(Scaffold(**STEPS), problem, rounds, engine=engine, **options)

    play(3, first, run_dir=tmp_path)
    found = play(6, then, run_dir=tmp_path, resume=True).x
    for layer, expected in zip(found, play(6, "local").x, strict=True):
        assert pytest.approx(expected, abs=1e-10) == layer


def test_other_objectives_are_not_gone_on_with():
    made = clients(1)[0]
    made.value([np.ones_like(layer) for layer in made.start()])  # which changes nothing of it
    assert digest(made) == digest(clients(1)[0])
    others = [clients(1, module=network(torch.float32)), clients(1, l2=0.1), own_loss(plus(1))[:1]]
    others += [[frozen(0)], [TorchObjective(network(), LOSS, data(1))]]
    others += [[Own(network(), LOSS, data())]]
    assert digest(made) not in {digest(other) for (other,) in others}
    assert digest(Own(network(), LOSS, data())) == digest(others[-1][0])


def test_the_compiled_engine_leaves_them_to_the_stacked_one(caplog):
    pytest.importorskip("jax")
    problem = problem_of(clients())
    with caplog.at_level(logging.WARNING, logger="flwr"):
        simulate(FedAvg(**STEPS), problem, 1, engine="jax")
    assert "a TorchObjective, whose lines JAX cannot trace; running on the stacked" in caplog.text
