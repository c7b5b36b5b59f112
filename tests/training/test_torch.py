"""PyTorch's modules are objectives, and what a train loop needs to know of them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis.strategies import data as drawn
from hypothesis.strategies import (
    lists,
    sampled_from,
)
from pages import blocks

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower.forms import ModelForm
from flower_fedcon.layout import Layout, renamed
from flower_fedcon.objectives import SoftmaxRegression
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L2Ball, NuclearNormBall
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import (
    FedAvg,
    FedFW,
    Scaffold,
)

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
from torch import nn  # noqa: E402

from flower_fedcon.torch import (  # noqa: E402
    TorchObjective,
    separable,
)
from flower_fedcon.torch.packed_modules import PackedTorch  # noqa: E402
from flower_fedcon.torch.stacked_modules import why_not_together  # noqa: E402

LR, K = 0.1, 3
needs_a_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use"
)
STEPS = {"client_lr": LR, "local_steps": K}
SOLVER = {"local_solver": GradientDescent(steps=K, lr=LR)}
LOSS = nn.CrossEntropyLoss()


def network(dtype=torch.float32, activation=None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), activation or nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def data(j=0, rows=20):
    rng = np.random.default_rng(j)
    return rng.normal(size=(rows, 6)), rng.integers(0, 3, rows)


def problem(dtype=torch.float32, **options):
    clients = [TorchObjective(network(dtype), LOSS, data(j)) for j in range(3)]
    return FederatedProblem(clients, x0=clients[0].start(), **options)


def same_bytes(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


PARTS = lists(sampled_from(["a", "b", "0", "module", "weight"]), min_size=1, max_size=4)


@settings(max_examples=50, deadline=None)
@given(lists(PARTS, min_size=1, max_size=5, unique_by=tuple), drawn())
def test_wrapped_names_are_found_or_left_alone(names, draw):
    """A name stands for at most one, itself before others; what is wrapped once is found again."""
    names = [".".join(parts) for parts in names]
    wrapped = [draw.draw(sampled_from(["", "module.", "_orig_mod.module."])) + n for n in names]
    assume(len({*wrapped}) == len(wrapped))
    found = renamed(wrapped, names)
    assert not {*found} & {*names}
    assert not {*found.values()} & ({*wrapped} & {*names})
    assert len({*found.values()}) == len(found)
    plain = [".".join(p for p in n.split(".") if p not in ("module", "_orig_mod")) for n in names]
    if len({*plain}) == len(plain):
        assert [found.get(name, name) for name in wrapped] == names


def test_a_linear_head_is_softmax_regression():
    """Whose models are transposed; minibatches follow one rule, passes over a permutation."""
    inputs, targets = data(rows=30)
    module = nn.Linear(6, 3, bias=False, dtype=torch.float64)
    f = TorchObjective(module, LOSS, (inputs, targets), l2=0.1, chunk=7)
    g = SoftmaxRegression(inputs, targets, 3, l2=0.1)
    x = np.random.default_rng(9).normal(size=(6, 3))
    rows = np.array([4, 1, 17, 2, 9, 11, 25, 3])
    assert f.value([x.T]) == pytest.approx(g.value(x), rel=1e-12)
    assert pytest.approx(g.gradient(x), abs=1e-13) == f.gradient([x.T])[0].T
    assert pytest.approx(g.batch_gradient(x, rows), abs=1e-13) == f.batch_gradient([x.T], rows)[0].T
    value, (gradient,) = f.value_and_gradient([x.T])
    assert value == f.value([x.T])
    assert gradient.tobytes() == f.gradient([x.T])[0].tobytes()
    assert f.outputs([x.T]).shape == (30, 3)
    strategy = FedAvg(**STEPS, batch_size=7)
    layered, plain = (simulate(strategy, FederatedProblem([h]), 5).x for h in (f, g))
    assert pytest.approx(plain, abs=1e-12) == layered[0].T


class Clamped(nn.Linear):
    """A layer that keeps its own weights small, behind autograd's back."""

    def forward(self, rows):
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(rows)


@pytest.mark.parametrize("module", [network(), network(torch.float64), Clamped(6, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_packed_function_is_that_of_the_layers(module, dtype):
    f = TorchObjective(module, LOSS, data(), l2=0.1, chunk=7)
    layout = Layout.of([layer.astype(dtype) for layer in f.start()])
    packed, x = f.packed_objective(layout), layout.pack(f.start())
    x += np.random.default_rng(0).normal(size=x.shape).astype(dtype)
    before, rows = x.copy(), np.array([3, 1, 4])
    x.flags.writeable = False
    for _ in range(2):  # the second time it may share the memory of x
        assert packed.value(x) == f.value(layout.unpack(before.copy()))
        assert_gradient(layout, packed.gradient(x), f.gradient(layout.unpack(before.copy())))
        batch = f.batch_gradient(layout.unpack(before.copy()), rows)
        assert_gradient(layout, packed.batch_gradient(x, rows), batch)
        assert x.tobytes() == before.tobytes()
        x = x.copy()


def assert_gradient(layout, found, layers):
    assert found.dtype == layout.array_dtype
    assert found.tobytes() == layout.pack(layers).tobytes()


class ClampedLater(nn.Linear):
    """One whose weights are too large only after some steps."""

    def forward(self, rows):
        with torch.no_grad():
            self.weight.clamp_(-0.45, 0.45)
        return super().forward(rows)


def test_a_module_that_changes_its_parameters_later_gets_copies_from_the_start(monkeypatch):
    torch.manual_seed(0)
    module = ClampedLater(6, 3).double()
    assert float(module.weight.abs().max()) < 0.45

    def run():
        clients = [TorchObjective(module, LOSS, data(j)) for j in range(3)]
        strategy = FedAvg(client_lr=10.0, local_steps=K)
        return simulate(strategy, FederatedProblem(clients, x0=clients[0].start()), 4).x[0]

    found = run()
    monkeypatch.setattr(PackedTorch, "_writes", True)
    assert np.abs(found).max() > 0.45
    assert found.tobytes() == run().tobytes()


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("method", [FedAvg, Scaffold], ids=lambda method: method.name)
def test_steps_taken_at_once_have_the_bits_of_those_taken_one_by_one(
    method, dtype, batch_size, monkeypatch
):
    strategy, taken = method(**STEPS, batch_size=batch_size), []
    at_once = PackedTorch.gradient_steps

    def noted(self, *arguments):
        taken.append(at_once(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(PackedTorch, "gradient_steps", noted)
    found = simulate(strategy, problem(dtype), 4).x
    assert sum(one is not None for one in taken) >= 9  # all but each client's first
    monkeypatch.setattr(PackedTorch, "gradient_steps", lambda self, *arguments: None)
    same_bytes(found, simulate(strategy, problem(dtype), 4).x)


def test_evaluating_moves_neither_the_start_nor_an_earlier_answer():
    f = TorchObjective(network(), LOSS, data())
    start, x = f.start(), [layer + 1 for layer in f.start()]
    first = f.gradient(x)
    kept = [g.copy() for g in first]
    f.gradient(f.start())
    there = pickle.loads(pickle.dumps(f))
    assert all(map(np.array_equal, f.start(), start))
    assert all(map(np.array_equal, there.start(), start))
    assert all(map(np.array_equal, first, kept))
    assert there.value(x) == f.value(x) != f.value(start)


def test_layers_by_name():
    f = TorchObjective(network(), LOSS, data())
    assert f.layer_names == ("0.weight", "0.bias", "2.weight", "2.bias")
    psi = f.separable({"*.weight": L1(2.0)})
    ones = np.ones(sum(np.prod(s) for s in f.shape))
    assert psi.value(ones) == 2.0 * (30 + 15)
    assert separable(network(), {"*.weight": L1(2.0)}) == psi
    sets = f.product({"0.weight": NuclearNormBall(1.0)}, rest=L2Ball(5.0))
    assert [type(part).__name__ for part, _ in sets.parts] == ["NuclearNormBall"] + 3 * ["L2Ball"]


def test_the_page_s_regularizer_on_some_layers():
    """As a train loop's server has it: by the names and in the order of its initial arrays."""
    net = torch.nn.Module()
    net.conv1, net.norm = torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)
    net.fc, net.head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
    net.head.requires_grad_(False)
    names = {"net": net}
    exec(blocks("python", "docs/training_loops.md")[0], names)
    form = ModelForm.of(
        {name: tensor.numpy() for name, tensor in net.state_dict().items()}, ["head.*"]
    )
    parts = names["strategy"].regularizer.parts
    assert [shape for _, shape in parts] == [tuple(net.state_dict()[n].shape) for n in form.trained]
    penalised = [n for n, (part, _) in zip(form.trained, parts, strict=True) if part == L1(1e-3)]
    assert penalised == ["conv1.weight", "fc.weight"]


def test_a_network_keeps_its_constraint():
    clients = problem().objectives
    sets = clients[0].product({"*.weight": NuclearNormBall(2.0)}, rest=L2Ball(2.0))
    bounded = FederatedProblem(clients, constraint=sets)
    history = simulate(FedFW(sets, penalty=1e-2), bounded, 40)
    assert history["violation"].max() < 1e-5  # of float32
    assert history["objective"][-1] < history["objective"][0]


def test_a_start_within_a_constraint():
    f = TorchObjective(network(), LOSS, data())
    sets = f.product({"0.weight": NuclearNormBall(1.0)}, rest=L2Ball(0.5))
    start = f.start(within=sets)
    assert [w.dtype for w in start] == [np.float32] * 4
    assert sets.contains(np.concatenate([w.ravel() for w in start]), 1e-5)
    assert np.linalg.norm(start[0], "nuc") == pytest.approx(1.0, rel=1e-5)  # it was outside


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=needs_a_gpu)])
def test_a_device_by_name(device):
    """Check value, gradient, batches and a run of a module on a device against the CPU's."""
    here, there = (TorchObjective(network(), LOSS, data(), **d) for d in ({}, {"device": device}))
    assert {p.device.type for p in there._module.parameters()} == {device.partition(":")[0]}
    x = here.start()
    assert there.value(x) == pytest.approx(here.value(x), rel=1e-5)
    rows = np.array([3, 1, 4])
    for name, more in (("gradient", ()), ("batch_gradient", (rows,))):
        pairs = zip(getattr(there, name)(x, *more), getattr(here, name)(x, *more), strict=True)
        for found, expected in pairs:
            assert found.dtype == np.float32
            assert pytest.approx(expected, abs=1e-6) == found
    strategy = Scaffold(**STEPS, batch_size=7)
    ends = [simulate(strategy, FederatedProblem([f], x0=x), 3).x for f in (here, there)]
    for found, expected in zip(*ends, strict=True):
        assert pytest.approx(expected, abs=1e-5) == found


def test_the_class_weights_of_a_loss_follow_the_device():
    """PyTorch's device "meta" stands for a GPU: the loss that was given stays where it was."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0]))
    f = TorchObjective(network(), loss, data(), device="meta")
    assert f._loss.weight.device.type == "meta"
    assert loss.weight.device.type == "cpu"


@needs_a_gpu
def test_a_row_s_random_numbers_on_a_gpu_are_its_own():
    """Other rows before it must not change a row's gradient: noise covers one row."""

    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x + torch.randn(x.shape, device=x.device))

    inputs, targets = data()
    f = TorchObjective(Noisy(6, 3), LOSS, (inputs, targets), device="cuda")
    alone, among = (f.row_gradients(f.start(), np.array(rows)) for rows in ([4], [1, 3, 4]))
    assert alone[0].tobytes() == among[2].tobytes()


@needs_a_gpu
def test_convolutions_of_many_clients_on_a_gpu():
    """In TF32 both ways differ by 1e-3, which is said; in float32 they agree."""
    net = nn.Sequential(nn.Conv1d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 198, 2))
    rows, labels = torch.randn(64, 1, 200), torch.randint(2, (64,))
    clients = [TorchObjective(net, LOSS, (rows, labels), device="cuda") for _ in range(8)]
    before = torch.backends.cudnn.allow_tf32
    try:
        for tf32 in (True, False):
            torch.backends.cudnn.allow_tf32 = tf32
            reason = why_not_together(clients)
            assert reason is None or (tf32 and "allow_tf32 = False" in reason)
    finally:
        torch.backends.cudnn.allow_tf32 = before


def net(module=None, rows=data, **more):
    return TorchObjective(network() if module is None else module, LOSS, rows(), **more)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: net(rows=lambda: (data()[0], data()[1][1:])),
         "as many inputs as targets, got 20 and 19"),
        (lambda: net(network().half()), r"all be float32, or all float64, got torch\.float16"),
        (lambda: net(nn.Tanh()), "no parameter is trained"),
        (lambda: net().value(np.zeros(53)), "takes a list of arrays of shapes"),
        (lambda: net().product({"0.weight": NuclearNormBall(1.0)}),
         r"no set for 0\.bias, 2\.weight, 2\.bias: give"),
        (lambda: net().separable({"0.wieght": L1(1.0)}), r"no layer '0.wieght': .*0.weight"),
        (lambda: separable([], {}), r"separable\(module\) must be a torch.nn.Module, got \[\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_measures_of_an_objective_are_its_metrics():
    f = net(measures={"first": lambda out, y: out[0, 0]})
    assert f.metrics(f.zeros()) == {"first": 0.0}
