"""PyTorch's loops find the built-in step's bytes, whatever wraps them, or are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, integers, permutations, sampled_from
from loops import by_loops
from test_torch import LOSS, LR, STEPS, K, network, problem, same_bytes

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.regularizers import L1
from flower_fedcon.solvers import GradientDescent
from flower_fedcon.strategies import (
    CompositeFL,
    FedAvg,
    FedDualAvg,
    FedDyn,
    FedMiD,
    FedProx,
    Scaffold,
)

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
from torch import nn  # noqa: E402

from flower_fedcon.torch import TorchTraining, current_method  # noqa: E402

SOLVER = {"local_solver": GradientDescent(steps=K, lr=LR)}


def loaded(method, f):
    """Return a module that has nothing to do with `f`'s, with the message's arrays."""
    model = network(torch.float32 if f.dtype == np.float32 else torch.float64)
    with torch.no_grad():
        for p, layer in zip(model.parameters(), method.start, strict=True):
            p.copy_(torch.tensor(layer))
    return model


def arrays(model):
    return [p.detach().numpy() for p in model.parameters()]


def loop(method, f):
    """A user's loop on the whole data."""
    model = loaded(method, f)
    own = method.name in ("FedMiD", "FedDualAvg", "CompositeFL")
    optimizer = method.optimizer(model.parameters()) if own else None
    correction = None if own else method.begin(model)
    for _ in range(K):
        model.zero_grad()
        LOSS(model(f._inputs), f._targets).backward()
        if optimizer is not None:
            optimizer.step()
            continue
        correction.apply_gradients(model)
        with torch.no_grad():  # as NumPy rounds it; torch.optim.SGD may fuse the two operations
            for p in model.parameters():
                p -= LR * p.grad
    return arrays(model)


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
    same_bytes(found, simulate(strategy, fits, 4, evaluate_every=0).x)


def stepped(begin, wrapped=lambda model: model):
    """Return a loop with momentum; `begin(method, model, optimizer)` returns what a step calls."""

    def train(method, f):
        model = loaded(method, f)
        optimizer = torch.optim.SGD(reversed([*model.parameters()]), LR, momentum=0.5)
        step = begin(method, wrapped(model), optimizer)

        def closure():
            optimizer.zero_grad()
            loss = LOSS(model(f._inputs), f._targets)
            loss.backward()
            return loss

        for _ in range(K):
            step(closure)
        return arrays(model)

    return train


def stepping(optimizer, change=lambda: None):
    """Return a step: a backward pass, what becomes of its gradients, and the optimizer's step."""
    return lambda closure: (closure(), change(), optimizer.step())


def loops_agree(strategy, fits, rounds, expected, *begins):
    """Assert that loops end at the same bytes."""
    ends = [
        by_loops(strategy, fits, rounds, stepped(*given), TorchTraining).x
        for given in (expected, *begins)
    ]
    for end in ends[1:]:
        same_bytes(end, ends[0])


def by_hand(method, model, optimizer):
    correction = method.begin(model)
    return stepping(optimizer, lambda: correction.apply_gradients(model))


def by_itself(method, model, optimizer):
    current_method().begin(model, optimizer)
    return stepping(optimizer)


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


def climbing(up):
    """Return a loop that climbs the negated loss in one group of two, or goes down."""

    def begin(method, model, _):
        first, *rest = model.parameters()
        groups = [{"params": [first], "maximize": up}, {"params": rest}]
        steps = torch.optim.SGD(groups, LR, momentum=0.5)
        method.begin(model, steps)
        return stepping(steps, lambda: first.grad.neg_() if up else None)

    return begin


@pytest.mark.parametrize(("rate", "told"), [(0.1, {"unmoved"}), (0.0, set())])
def test_a_loop_that_replies_what_it_was_sent_is_noted_unless_its_rate_is_0(rate, told):
    notes = []

    def vain(method, f):
        model = loaded(method, f)
        steps = torch.optim.SGD(model.parameters(), rate)
        method.begin(model, steps)
        LOSS(model(f._inputs), f._targets).backward()
        steps.step()
        notes.append(method.notes)
        return method.start

    by_loops(FedAvg(), problem(torch.float64), 1, vain, TorchTraining)
    assert {*notes[0]} == told


CORRECTING = [FedProx(proximal=0.5), Scaffold(), FedDyn(proximal=0.5)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="nn.DataParallel moves its inputs to GPUs")
@pytest.mark.parametrize("strategy", CORRECTING)
def test_an_optimizer_corrects_its_gradients(strategy):
    """As `apply_gradients` does, whatever wraps the model."""
    many = [(with_closure, nn.DataParallel), (scaled,)]
    many += [(by_itself, lambda model: torch.compile(nn.DataParallel(model), backend="eager"))]
    loops_agree(strategy, problem(torch.float64), 3, (by_hand,), (by_itself,), *many)


@pytest.mark.parametrize("strategy", CORRECTING)
def test_an_optimizer_that_maximizes_climbs_the_negated_loss(strategy):
    """The steps are those of the one that minimizes the loss."""
    loops_agree(strategy, problem(torch.float64), 3, (climbing(False),), (climbing(True),))


def thinly(sparse):
    def begin(method, model, _):
        if method.name == "FedProx":
            optimizer = torch.optim.SGD(model.parameters(), LR)
            method.begin(model, optimizer)
        else:
            optimizer = method.optimizer(model.parameters())

        def change():
            for p in model.parameters():
                p.grad = p.grad.to_sparse() if sparse else p.grad

        return stepping(optimizer, change)

    return begin


@pytest.mark.parametrize("strategy", [FedProx(proximal=0.5), FedDualAvg(L1(1e-3), client_lr=LR)])
def test_sparse_gradients_are_corrected_as_dense_ones(strategy):
    loops_agree(strategy, problem(torch.float64), 2, (thinly(False),), (thinly(True),))


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
    strategy=sampled_from(CORRECTING),
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

    loops_agree(strategy, problem(), 2, (begin(False),), (begin(True),))


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


def forgetful(method, model, optimizer):
    method.begin(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))


def other(method, model, optimizer):
    method.begin(nn.Linear(6, 3))


def frozen(method, model, optimizer):
    model[0].weight.requires_grad_(False)
    method.begin(model)


def twice(method, model, optimizer):
    correction = method.begin(model)
    return stepping(optimizer, lambda: [correction.apply_gradients(model) for _ in "12"])


def before_each_optimizer(method, model, optimizer):
    correction = method.begin(model)
    every = [torch.optim.SGD(part.parameters(), LR) for part in (model[0], model[2])]
    steps = [stepping(one, lambda: correction.apply_gradients(model)) for one in every]
    return lambda closure: (steps[0](closure), steps[1](lambda: None))


def both(method, model, optimizer):
    correction = method.begin(model, optimizer)
    return stepping(optimizer, lambda: correction.apply_gradients(model))


def begun_twice(method, model, optimizer):
    method.begin(model, optimizer)
    return by_itself(method, model, optimizer)


def of_a_part(method, model, optimizer):
    return by_itself(method, model, torch.optim.SGD(model[0].parameters(), LR))


def fused(method, model, optimizer):
    return scaled(method, model, torch.optim.SGD(model.parameters(), LR, fused=True))


def second_order(method, model, optimizer):
    return with_closure(method, model, torch.optim.LBFGS(model.parameters()))


def scheduled(method, model, optimizer):
    optimizer = method.optimizer(model.parameters(), LR)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, K)
    return stepping(optimizer)


def grouped(method, model, optimizer):
    method.optimizer([{"params": model.parameters(), "weight_decay": 0.1}], LR)


REFUSED = [
    (forgetful, "load the message's arrays"),
    (other, "parameters of shapes"),
    (frozen, "frozen in this client's model: .*Declare them"),
    (twice, "twice after one backward"),
    (before_each_optimizer, "twice after one backward.* before the steps of several optimizers"),
    (both, "leave apply_gradients out"),
    (begun_twice, "begin was called before in this round"),
    (of_a_part, "does not move all parameters"),
    (fused, r"call scaler.unscale_\(optimizer\) before"),
    (second_order, "LBFGS needs several gradients"),
    (scheduled, r"a scheduler, .* the length 0\.1: leave the scheduler out"),
    (grouped, "without groups"),
]


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(("begin", "said"), REFUSED)
def test_what_would_be_corrected_wrongly_is_refused(begin, said):
    own = begin in (scheduled, grouped)
    strategy = FedDualAvg(L1(1e-3), client_lr=LR) if own else FedProx(proximal=0.5)
    with pytest.raises(RoundError, match=said):
        by_loops(strategy, problem(), 1, stepped(begin), TorchTraining)
