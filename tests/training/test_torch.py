"""PyTorch: its loops find the built-in step's bytes, and its modules are objectives."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis.strategies import (
    booleans,
    integers,
    lists,
    permutations,
    sampled_from,
)
from hypothesis.strategies import data as drawn
from loops import by_loops
from pages import blocks

from flower_fedcon import FederatedProblem, client_app, simulate
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.flower.forms import ModelForm
from flower_fedcon.layout import Layout, renamed
from flower_fedcon.objectives import SoftmaxRegression
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L2Ball, NuclearNormBall
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import (
    CompositeFL,
    FedAvg,
    FedDualAvg,
    FedDyn,
    FedFW,
    FedMiD,
    FedProx,
    Scaffold,
)

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
from torch import nn  # noqa: E402

from flower_fedcon.torch import (  # noqa: E402
    TorchObjective,
    TorchTraining,
    current_method,
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


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def data(j=0, rows=20):
    rng = np.random.default_rng(j)
    return rng.normal(size=(rows, 6)), rng.integers(0, 3, rows)


def problem(dtype=torch.float32, **options):
    clients = [TorchObjective(network(dtype), LOSS, data(j)) for j in range(3)]
    return FederatedProblem(clients, x0=clients[0].start(), **options)


def loop(method, f):
    """A user's loop on the whole data, with a module that has nothing to do with `f`'s."""
    model = network(torch.float32 if f.dtype == np.float32 else torch.float64)
    layers = zip(model.parameters(), method.start, strict=True)
    with torch.no_grad():
        for p, layer in layers:
            p.copy_(torch.tensor(layer))
    inputs, targets = f._inputs, f._targets
    own = method.name in ("FedMiD", "FedDualAvg", "CompositeFL")
    optimizer = method.optimizer(model.parameters()) if own else None
    correction = None if own else method.begin(model)
    for _ in range(K):
        model.zero_grad()
        LOSS(model(inputs), targets).backward()
        if optimizer is not None:
            optimizer.step()
            continue
        correction.apply_gradients(model)
        with torch.no_grad():  # as NumPy rounds it; torch.optim.SGD may fuse the two operations
            for p in model.parameters():
                p -= LR * p.grad
    return [p.detach().numpy() for p in model.parameters()]


PSI = L1(1e-3)
CASES = [
    FedAvg(**STEPS),
    FedProx(proximal=0.5, **SOLVER),
    Scaffold(**STEPS),
    FedDyn(proximal=0.5, **SOLVER),
    FedMiD(PSI, **STEPS),
    FedDualAvg(PSI, **STEPS),
    CompositeFL(PSI, **STEPS),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("strategy", CASES, ids=lambda s: s.name)
def test_a_torch_loop_finds_the_same_bytes(strategy, dtype):
    psi = {} if strategy.regularizer is None else {"regularizer": PSI}
    fits = problem(dtype, **psi)
    found = by_loops(strategy, fits, 4, loop, TorchTraining).x
    same = simulate(strategy, fits, 4, evaluate_every=0).x
    for a, b in zip(found, same, strict=True):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def test_a_model_that_was_not_loaded_is_refused():
    def forgetful(method, f):
        method.begin(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))

    def other(method, f):
        method.begin(nn.Linear(6, 3))

    def frozen(method, f):
        model = network()
        model[0].weight.requires_grad_(False)
        method.begin(model)

    strategy = FedProx(proximal=0.5)
    for wrong, said in (
        (forgetful, "load the message's arrays"),
        (other, "parameters of shapes"),
        (frozen, "frozen in this client's model: .*Declare them"),
    ):
        with pytest.raises(RoundError, match=said):
            by_loops(strategy, problem(), 1, wrong, TorchTraining)


def stepped(begin, wrapped=lambda model: model):
    """Return a loop with momentum; `begin(method, model, optimizer)` returns what a step calls."""

    def train(method, f):
        model = network(torch.float32 if f.dtype == np.float32 else torch.float64)
        layers = zip(model.parameters(), method.start, strict=True)
        with torch.no_grad():
            for p, layer in layers:
                p.copy_(torch.tensor(layer))
        optimizer = torch.optim.SGD(reversed([*model.parameters()]), LR, momentum=0.5)
        step = begin(method, wrapped(model), optimizer)

        def closure():
            optimizer.zero_grad()
            loss = LOSS(model(f._inputs), f._targets)
            loss.backward()
            return loss

        for _ in range(K):
            step(closure)
        return [p.detach().numpy() for p in model.parameters()]

    return train


def by_hand(method, model, optimizer):
    correction = method.begin(model)

    def step(closure):
        closure()
        correction.apply_gradients(model)
        optimizer.step()

    return step


def by_itself(method, model, optimizer):
    current_method().begin(model, optimizer)
    return lambda closure: (closure(), optimizer.step())


def with_closure(method, model, optimizer):
    method.begin(model, optimizer)
    return optimizer.step


def scaled(method, model, optimizer):
    method.begin(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(closure):
        closure()
        for p in model.parameters():
            p.grad *= scaler.scale(torch.ones(())).item()
        scaler.step(optimizer)
        scaler.update()

    return step


def fused(method, model, optimizer):
    optimizer = torch.optim.SGD(model.parameters(), LR, fused=True)
    return scaled(method, model, optimizer)


@pytest.mark.skipif(torch.cuda.is_available(), reason="nn.DataParallel moves its inputs to GPUs")
@pytest.mark.parametrize("strategy", [FedProx(proximal=0.5), Scaffold(), FedDyn(proximal=0.5)])
def test_an_optimizer_corrects_its_gradients(strategy):
    """As `apply_gradients` does, whatever wraps the model."""
    fits = problem(torch.float64)
    expected = by_loops(strategy, fits, 3, stepped(by_hand), TorchTraining).x
    for begin, wrapped in (
        (by_itself, lambda model: model),
        (with_closure, nn.DataParallel),
        (by_itself, lambda model: torch.compile(nn.DataParallel(model), backend="eager")),
        (scaled, lambda model: model),
    ):
        found = by_loops(strategy, fits, 3, stepped(begin, wrapped), TorchTraining).x
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("strategy", [FedProx(proximal=0.5), Scaffold(), FedDyn(proximal=0.5)])
def test_an_optimizer_that_maximizes_climbs_the_negated_loss(strategy):
    """Also in one group of two: the steps are those of the one that minimizes the loss."""

    def begin(climbing):
        def start(method, model, _):
            first, *rest = model.parameters()
            groups = [{"params": [first], "maximize": climbing}, {"params": rest}]
            steps = torch.optim.SGD(groups, LR, momentum=0.5)
            method.begin(model, steps)

            def step(closure):
                closure()
                if climbing:
                    first.grad.neg_()
                steps.step()

            return step

        return start

    fits = problem(torch.float64)
    found, expected = (
        by_loops(strategy, fits, 3, stepped(begin(climbing)), TorchTraining).x
        for climbing in (True, False)
    )
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("strategy", [FedProx(proximal=0.5), FedDualAvg(L1(1e-3), client_lr=LR)])
def test_sparse_gradients_are_corrected_as_dense_ones(strategy):
    fits = problem(torch.float64)

    def thinly(sparse):
        def begin(method, model, _):
            if method.name == "FedProx":
                optimizer = torch.optim.SGD(model.parameters(), LR)
                method.begin(model, optimizer)
            else:
                optimizer = method.optimizer(model.parameters())

            def step(closure):
                closure()
                if sparse:
                    for p in model.parameters():
                        p.grad = p.grad.to_sparse()
                optimizer.step()

            return step

        return begin

    found, expected = (
        by_loops(strategy, fits, 2, stepped(thinly(sparse)), TorchTraining).x
        for sparse in (True, False)
    )
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))


OPTIMIZERS = {
    "momentum": lambda groups: torch.optim.SGD(groups, LR, momentum=0.9, nesterov=True),
    "decay": lambda groups: torch.optim.SGD(groups, LR, weight_decay=0.1),
    "Adam": lambda groups: torch.optim.Adam(groups, LR),
    "AdamW": lambda groups: torch.optim.AdamW(groups, LR),
    "Rprop": lambda groups: torch.optim.Rprop(groups, LR),
}


@settings(max_examples=8, deadline=None)
@given(
    optimizer=sampled_from(sorted(OPTIMIZERS)),
    order=permutations(range(4)),
    cut=integers(1, 3),
    clip=sampled_from([None, 0.01, 1.0]),
    schedule=booleans(),
    scale=integers(1, 2),
    strategy=sampled_from([FedProx(proximal=0.5), Scaffold(), FedDyn(proximal=0.5)]),
)
def test_whatever_the_loop_an_optimizer_corrects_as_one_does_by_hand(
    optimizer, order, cut, clip, schedule, scale, strategy
):
    """Groups in any order, schedules, clipping, other losses; bit for bit."""

    def begin(itself):
        def start(method, model, _):
            each = [[*model.parameters()][i] for i in order]
            groups = [{"params": each[:cut]}, {"params": each[cut:], "lr": LR / 2}]
            steps = OPTIMIZERS[optimizer](groups)
            correction = method.begin(model, steps) if itself else method.begin(model)
            rates = torch.optim.lr_scheduler.CosineAnnealingLR(steps, K) if schedule else None

            def step(closure):
                closure()
                for p in model.parameters():
                    p.grad /= scale
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                if not itself:
                    correction.apply_gradients(model)
                steps.step()
                if rates is not None:
                    rates.step()

            return step

        return start

    fits = problem()
    found, same = (
        by_loops(strategy, fits, 2, stepped(begin(itself)), TorchTraining).x
        for itself in (True, False)
    )
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, same, strict=True))


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


def test_a_step_leaves_the_loop_s_own_gradients():
    kept = []

    def begin(method, model, optimizer):
        method.begin(model, optimizer)

        def step(closure):
            closure()
            before = [p.grad.clone() for p in model.parameters()]
            optimizer.step()
            kept.extend(map(torch.equal, before, (p.grad for p in model.parameters())))

        return step

    by_loops(FedProx(proximal=0.5), problem(), 1, stepped(begin), TorchTraining)
    assert len(kept) == 3 * K * 4
    assert all(kept)


def test_an_optimizer_is_let_go_after_the_round():
    optimizers = []

    def begin(method, model, optimizer):
        optimizers.append(optimizer)
        return by_itself(method, model, optimizer)

    by_loops(Scaffold(), problem(), 1, stepped(begin), TorchTraining)
    assert all(not o._optimizer_step_pre_hooks for o in optimizers)
    assert all(not o._optimizer_step_post_hooks for o in optimizers)
    with pytest.raises(ConfigError, match="outside a train function"):
        current_method()


def twice(method, model, optimizer):
    correction = method.begin(model)
    return lambda closure: (closure(), [correction.apply_gradients(model) for _ in "12"])


def before_each_optimizer(method, model, optimizer):
    correction = method.begin(model)
    every = [torch.optim.SGD(part.parameters(), LR) for part in (model[0], model[2])]

    def step(closure):
        closure()
        for one in every:
            correction.apply_gradients(model)
            one.step()

    return step


def both(method, model, optimizer):
    correction = method.begin(model, optimizer)
    return lambda closure: (closure(), correction.apply_gradients(model))


def begun_twice(method, model, optimizer):
    method.begin(model, optimizer)
    return by_itself(method, model, optimizer)


def of_a_part(method, model, optimizer):
    return by_itself(method, model, torch.optim.SGD(model[0].parameters(), LR))


def second_order(method, model, optimizer):
    optimizer = torch.optim.LBFGS(model.parameters())
    method.begin(model, optimizer)
    return optimizer.step


def scheduled(method, model, optimizer):
    optimizer = method.optimizer(model.parameters(), LR)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, K)
    return lambda closure: (closure(), optimizer.step())


def grouped(method, model, optimizer):
    method.optimizer([{"params": model.parameters(), "weight_decay": 0.1}], LR)


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (twice, "twice after one backward"),
        (
            before_each_optimizer,
            "twice after one backward.* before the steps of several optimizers",
        ),
        (both, "leave apply_gradients out"),
        (begun_twice, "begin was called before in this round"),
        (of_a_part, "does not move all parameters"),
        (fused, r"call scaler.unscale_\(optimizer\) before"),
        (second_order, "LBFGS needs several gradients"),
        (scheduled, r"a scheduler, .* the length 0\.1: leave the scheduler out"),
        (grouped, "without groups"),
    ],
)
def test_what_would_be_corrected_wrongly_is_refused(begin, said):
    own = begin in (scheduled, grouped)
    strategy = FedDualAvg(L1(1e-3), client_lr=LR) if own else FedProx(proximal=0.5)
    with pytest.raises(RoundError, match=said):
        by_loops(strategy, problem(), 1, stepped(begin), TorchTraining)


# --- objectives ----------------------------------------------------------------------------------


def head():
    """A linear head, and the same as an objective of this package; their models are transposed."""
    inputs, targets = data(rows=30)
    module = nn.Linear(6, 3, bias=False, dtype=torch.float64)
    return (
        TorchObjective(module, LOSS, (inputs, targets), l2=0.1, chunk=7),
        SoftmaxRegression(inputs, targets, 3, l2=0.1),
    )


def test_a_linear_head_is_softmax_regression():
    f, g = head()
    x = np.random.default_rng(9).normal(size=(6, 3))
    rows = np.array([4, 1, 17, 2, 9, 11, 25, 3])
    assert f.value([x.T]) == pytest.approx(g.value(x), rel=1e-12)
    assert pytest.approx(g.gradient(x), abs=1e-13) == f.gradient([x.T])[0].T
    assert pytest.approx(g.batch_gradient(x, rows), abs=1e-13) == f.batch_gradient([x.T], rows)[0].T
    value, (gradient,) = f.value_and_gradient([x.T])
    assert value == f.value([x.T])
    assert gradient.tobytes() == f.gradient([x.T])[0].tobytes()
    assert f.outputs([x.T]).shape == (30, 3)


def test_minibatches_follow_one_rule():
    """Passes over a permutation, for a list of layers as for one array."""
    f, g = head()
    strategy = FedAvg(**STEPS, batch_size=7)
    layered = simulate(strategy, FederatedProblem([f]), 5).x[0]
    plain = simulate(strategy, FederatedProblem([g]), 5).x
    assert pytest.approx(plain, abs=1e-12) == layered.T


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
    for one, other in zip(found, simulate(strategy, problem(dtype), 4).x, strict=True):
        assert one.tobytes() == other.tobytes()


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
    with pytest.raises(ConfigError, match=r"no set for 0\.bias, 2\.weight, 2\.bias: give"):
        f.product({"0.weight": NuclearNormBall(1.0)})
    with pytest.raises(ConfigError, match=r"no layer '0.wieght': .*0.weight"):
        f.separable({"0.wieght": L1(1.0)})
    with pytest.raises(
        ConfigError, match=r"separable\(module\) must be a torch.nn.Module, got \[\]"
    ):
        separable([], {})


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
    clients = [TorchObjective(network(), LOSS, data(j)) for j in range(3)]
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
    packed = np.concatenate([w.ravel() for w in start])
    assert sets.contains(packed, 1e-5)
    assert np.linalg.norm(start[0], "nuc") == pytest.approx(1.0, rel=1e-5)  # it was outside


def on_device(device):
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


def test_the_cpu_by_name():
    on_device("cpu")


def test_the_class_weights_of_a_loss_follow_the_device():
    """PyTorch's device "meta" stands for a GPU: the loss that was given stays where it was."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0]))
    f = TorchObjective(network(), loss, data(), device="meta")
    assert f._loss.weight.device.type == "meta"
    assert loss.weight.device.type == "cpu"


@needs_a_gpu
def test_a_gpu_by_name():
    on_device("cuda:0")


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


def test_what_does_not_fit_is_said():
    with pytest.raises(ConfigError, match="as many inputs as targets, got 20 and 19"):
        TorchObjective(network(), LOSS, (data()[0], data()[1][1:]))
    with pytest.raises(ConfigError, match=r"all be float32, or all float64, got torch\.float16"):
        TorchObjective(network().half(), LOSS, data())
    with pytest.raises(ConfigError, match="no parameter is trained"):
        TorchObjective(nn.Tanh(), LOSS, data())
    f = TorchObjective(network(), LOSS, data(), measures={"first": lambda out, y: out[0, 0]})
    with pytest.raises(ConfigError, match="takes a list of arrays of shapes"):
        f.value(np.zeros(53))
    assert f.metrics(f.zeros()) == {"first": 0.0}
    assert callable(client_app)
