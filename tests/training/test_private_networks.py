"""Private examples of PyTorch modules: each row alone, counted by the rows, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from fake_grid import FakeGrid, on_grid  # noqa: E402
from torch import nn  # noqa: E402

from flower_fedcon import FederatedProblem, Policy, client_app, simulate  # noqa: E402
from flower_fedcon.errors import ConfigError, FedConError  # noqa: E402
from flower_fedcon.objectives import PrivateObjective  # noqa: E402
from flower_fedcon.objectives.row_gradients import clipped_steps  # noqa: E402
from flower_fedcon.privacy import ExampleDP  # noqa: E402
from flower_fedcon.privacy.noise import Grid  # noqa: E402
from flower_fedcon.solvers import AOGM  # noqa: E402
from flower_fedcon.strategies import FedAvg, FedProx  # noqa: E402
from flower_fedcon.torch import TorchObjective  # noqa: E402

D, CLASSES = 5, 3
RULE = ExampleDP(clip=1.0, noise_multiplier=2.0, target_delta=1e-5)


def net(wide=4, kind=nn.Tanh, double=True, seed=0):
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(D, wide), kind(), nn.LayerNorm(wide), nn.Linear(wide, CLASSES))
    return made.double() if double else made


def objective(m=12, seed=0, module=None, loss=None, **more):
    rng = np.random.default_rng(seed)
    rows, labels = rng.standard_normal((m, D)), rng.integers(0, CLASSES, m)
    return TorchObjective(module or net(), loss or nn.CrossEntropyLoss(), (rows, labels), **more)


def test_the_rows_gradients_are_those_of_batches_of_one():
    f = objective(l2=0.1)
    x = f.start()
    plain = objective()
    found = f.row_gradients(x, np.arange(12))
    for i in range(12):
        alone = plain.batch_gradient(x, np.array([i]))
        np.testing.assert_allclose(found[i], np.concatenate([g.ravel() for g in alone]), atol=1e-14)
    quiet = PrivateObjective(f, ExampleDP(1e3, 1e-13, 1e-5))
    for noisy, exact in zip(quiet.gradient(x), f.gradient(x), strict=True):
        np.testing.assert_allclose(noisy, exact, atol=1e-9)  # l2 is there, once


def hold_neighbours(rng, kind=nn.Tanh):
    """Leave a row out: the sum moves by that row's clipped gradient, to the last bit."""
    m, double = int(rng.integers(2, 30)), bool(rng.integers(2))
    module = net(int(rng.integers(1, 40)), kind, double, seed=int(rng.integers(1e6)))
    whole = objective(m, int(rng.integers(1e6)), module)
    scale = 10.0 ** rng.uniform(-2, 8)
    dtype = np.float64 if double else np.float32
    x = [(scale * rng.standard_normal(shape)).astype(dtype) for shape in whole.shape]
    leaves = int(rng.integers(m))
    rest = copy.deepcopy(whole)
    stay = np.delete(np.arange(m), leaves)
    rest._inputs, rest._targets = whole._inputs[stay].clone(), whole._targets[stay].clone()
    grid = Grid(0.7, 0.7 * 10.0 ** rng.uniform(-2, 2), 64)
    moved = clipped_steps(whole, x, grid, np.arange(m)) - clipped_steps(
        rest, x, grid, np.arange(m - 1)
    )
    assert sum(int(k) ** 2 for k in moved) <= (0.7 / grid.step) ** 2 * (1 + 1e-12)
    np.testing.assert_array_equal(moved, clipped_steps(whole, x, grid, np.array([leaves])))


@pytest.mark.parametrize("kind", [nn.Tanh, nn.ReLU, nn.GELU])
@pytest.mark.parametrize(
    ("seed", "cases"), [(0, 12), pytest.param(None, 10_000, marks=pytest.mark.nightly)]
)
def test_a_row_moves_the_sum_by_its_own_clipped_gradient(kind, seed, cases):
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        hold_neighbours(rng, kind)


def test_no_bit_depends_on_other_rows_at_a_model_in_whose_null_space_all_rows_lie():
    """Where the rounding of a product of matrices is all that there is of a score."""
    rng = np.random.default_rng(1)
    A = rng.standard_normal((40, 8)) @ rng.standard_normal((8, 17))
    null = np.linalg.svd(A)[2][8:]
    f = TorchObjective(nn.Linear(17, 1).double(), nn.SoftMarginLoss(), (A, np.ones((40, 1))))
    x = [1e25 * (rng.standard_normal((1, len(null))) @ null), np.zeros(1)]
    alone = np.concatenate([f.row_gradients(x, np.array([i])) for i in range(40)])
    np.testing.assert_array_equal(f.row_gradients(x, np.arange(40)), alone)


def test_a_run_on_modules_learns_and_counts():
    made = [PrivateObjective(objective(60, j), ExampleDP(1.0, 0.05, 1e-5)) for j in range(3)]
    problem = FederatedProblem(made, x0=made[0].objective.start())
    steps = FedAvg(client_lr=0.5, local_steps=3, batch_size=20)
    history = simulate(steps, problem, 10, unsafe=True)
    assert history["objective"][-1] < history["objective"][0]
    assert [f.ledger.spent for f in made] == [{20 / 60: 30}] * 3
    with pytest.raises(FedConError, match="asks for a value of its objective"):
        simulate(FedProx(proximal=1.0, local_solver=AOGM()), problem, 1)


@on_grid
def test_a_module_that_begins_elsewhere_goes_on_with_the_ledger_of_its_rows(tmp_path):
    for seed in range(2):
        made = [objective(module=net(seed=seed))]
        make = lambda load: client_app(load, policy=Policy.open(), privacy=RULE)  # noqa: E731
        grid = FakeGrid(made, make=make)
        for context in grid.nodes.values():
            context.node_config["state-dir"] = str(tmp_path)
        FedAvg(client_lr=0.1, local_steps=2).start(grid, made[0].start(), num_rounds=2)
    (ledger,) = (tmp_path / "privacy").glob("*/spent.json")
    assert '"gradients": [[2.0, 1.0, 8]]' in ledger.read_text()


class Counts(nn.Module):
    """Keeps what it was called with."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, CLASSES).double()
        self.register_buffer("seen", torch.zeros(D).double())

    def forward(self, rows):
        self.seen += rows.sum(dim=0)
        return self.linear(rows + self.seen)


class OwnGradient(TorchObjective):
    def gradient(self, x):
        return super().gradient(x)


def with_layer(layer):
    return nn.Sequential(nn.Linear(D, 4), layer, nn.Linear(4, CLASSES))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: objective(module=with_layer(nn.BatchNorm1d(4))),
         r"layer '1' \(BatchNorm1d\) normalises by statistics of many rows.*GroupNorm"),
        (lambda: objective(module=with_layer(nn.InstanceNorm1d(4, track_running_stats=True))),
         r"layer '1' \(InstanceNorm1d\) keeps running statistics"),
        (lambda: objective(loss=nn.CrossEntropyLoss(weight=torch.ones(CLASSES).double())),
         "CrossEntropyLoss.* has weights, and every row changes their sum: leave weight"),
        (lambda: objective(loss=nn.CrossEntropyLoss(reduction="sum")), "reduction='sum'"),
        (lambda: OwnGradient(net(), nn.CrossEntropyLoss(), (np.ones((2, D)), np.zeros(2, int))),
         "OwnGradient: it defines its own gradient"),
    ],
    ids=["batch norm", "instance norm", "weights", "sum", "own gradient"],
)  # fmt: skip
def test_what_mixes_rows_is_refused_by_name(made, words):
    with pytest.raises(ConfigError, match=words):
        PrivateObjective(made(), RULE)


class Remembers(nn.Module):
    """Keeps what it has seen in a number of Python's, where no buffer shows it."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = net(), 0.0

    def forward(self, rows):
        self.seen = 0.9 * self.seen + float(rows.sum())
        return self.layer(rows + self.seen)


class Reaches(nn.Module):
    """Writes to its weights, and to what divides its gradients."""

    def __init__(self):
        super().__init__()
        self.layer, self.top = net(), 1.0

    def forward(self, rows):
        if rows.sum() > 0:
            next(self.parameters()).data *= 2
        found = self.layer(rows)
        if found.requires_grad:
            found.register_hook(self.divided)
        return found

    def divided(self, gradient):
        self.top = max(self.top, 1e3 * float(gradient.abs().max()))
        return gradient / self.top


class Renormalised(nn.Module):
    """Shrinks in place the rows of its weights that a batch looks up, as torch's own layer does."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, D, max_norm=0.1).double()
        self.layer = net()

    def forward(self, rows):
        found = self.words((rows[:, 0] > 0).long() + 1)
        return self.layer(found) + self.words.weight.sum()


class Hooks(nn.Module):
    """Registers a hook when a row is long, and keeps a list of its own."""

    def __init__(self):
        super().__init__()
        self.layer, self.after_hooks = net(), []

    def forward(self, rows):
        if rows.sum() > 0:
            self.layer.register_forward_hook(lambda module, given, found: 2 * found)
            self.after_hooks.append(rows)
        return self.layer(rows) * (1 + len(self.after_hooks))


class Dropping(nn.Module):
    """Drops entries in evaluations, too, as `F.dropout` does by default."""

    def __init__(self):
        super().__init__()
        self.layer = net()

    def forward(self, x):
        return self.layer(nn.functional.dropout(x, 0.5))


@pytest.mark.parametrize("module", [Counts, Remembers, Reaches, Dropping, Renormalised, Hooks])
def test_what_a_module_keeps_of_a_row_no_other_row_sees(module):
    """Each row goes through a module that was never called."""
    f = objective(module=module())
    x = f.start()
    f.value(x)  # keeps what it sees, and no row of it
    together = f.row_gradients(x, np.arange(f.num_examples))
    alone = [f.row_gradients(x, np.array([i]))[0] for i in reversed(range(f.num_examples))]
    np.testing.assert_array_equal(together, alone[::-1])
    assert np.ptp(together, axis=0).any()
    losses = f.row_losses(x, np.arange(f.num_examples))
    np.testing.assert_array_equal(losses, f.row_losses(x, np.arange(f.num_examples)))


class Checked(nn.Module):
    """Raises for rows beyond a bound, as losses do that check their domain."""

    def __init__(self, bound=1.0):
        super().__init__()
        self.layer, self.bound = net(), bound

    def forward(self, rows):
        if not rows.abs().max() <= self.bound:
            raise ValueError(f"all entries should be at most {self.bound}")
        return self.layer(rows)


def test_a_row_for_which_the_module_raises_counts_for_nothing(log):
    """Whether a row raises would tell of it, without noise."""
    f = objective(module=Checked())
    x, beyond = f.start(), np.abs(f.own_rows).max(axis=1) > 1
    assert 0 < beyond.sum() < len(beyond)
    each = f.row_gradients(x, np.arange(12))
    assert np.isnan(each[beyond]).all()
    assert np.isfinite(each[~beyond]).all()
    np.testing.assert_array_equal(np.isnan(f.row_losses(x, np.arange(12))), beyond)
    for gradient in PrivateObjective(f, RULE).gradient(x):
        assert np.isfinite(gradient).all()
    assert "a row does not count, since its loss raises ValueError" in log.text


def test_a_module_that_raises_for_zeros_is_at_fault():
    f = PrivateObjective(objective(module=Checked(-1.0)), RULE)
    with pytest.raises(ValueError, match="at most -1"):
        f.gradient(f.objective.start())
