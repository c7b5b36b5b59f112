"""FedAvg on networks, against a hand-written loop over clients in PyTorch."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from flower_fedcon.lab.benchmarks.in_process import rounds_of
from flower_fedcon.lab.benchmarks.measure import Result, in_turn, ratio
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.strategies import FedAvg

_CASES = (  # clients, rows of each, units of the layers, batch size, local steps
    (10, 600, (64, 32, 10), 32, 20),
    (100, 100, (64, 32, 10), 10, 10),
    (1000, 50, (64, 16, 10), 10, 5),
    (100, 100, (784, 64, 10), 10, 10),
    (10, 600, (784, 200, 10), 32, 20),
)
_RATE = 0.05


def networks(quick: bool = False) -> Iterator[Result]:
    """Time rounds of FedAvg on networks with one hidden layer, in float32 on one thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for case in ((2, 20, (4, 3, 2), 5, 2),) if quick else _CASES:
            yield from _case(*case, quick=quick)
    finally:
        torch.set_num_threads(before)


def _case(
    clients: int, rows: int, units: tuple[int, int, int], batch: int, steps: int, *, quick: bool
) -> Iterator[Result]:
    import torch
    from torch import nn

    from flower_fedcon.torch import TorchObjective

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(*units[:2]), nn.ReLU(), nn.Linear(*units[1:]))
    inputs = torch.randn(clients, rows, units[0])
    targets = torch.randint(0, units[2], (clients, rows))
    loss = nn.CrossEntropyLoss()
    objectives = [TorchObjective(module, loss, pair) for pair in zip(inputs, targets, strict=True)]
    problem = FederatedProblem(objectives, x0=objectives[0].start())
    strategy = FedAvg(client_lr=_RATE, local_steps=steps, batch_size=batch)
    rounds = max(1, 400 // (clients * steps))
    plays = {kind: rounds_of(strategy, problem, kind) for kind in ("local", "stacked")}
    works: dict[str, Any] = {
        "loop": partial(_by_hand, module, loss, inputs, targets, batch, steps, rounds)
    }
    works |= {kind: partial(play, rounds) for kind, play in plays.items()}
    times = in_turn(works, 2 if quick else 7)
    name = "-".join(map(str, units))
    what = f"FedAvg, {clients} clients, network {name}, {steps} steps on {batch} rows"
    each = {kind: [t / rounds for t in seconds] for kind, seconds in times.items()}
    best = min(plays, key=lambda kind: statistics.median(each[kind]))
    for kind in plays:
        yield ratio(
            f"{what}: {kind}",
            "PyTorch by hand",
            each[kind],
            each["loop"],
            unit="s a round",
            target="<= 1.05" if kind == best else "",
        )


def _by_hand(
    module: Any, loss: Any, inputs: Any, targets: Any, batch: int, steps: int, rounds: int
) -> None:
    import torch

    model, rng = copy.deepcopy(module), np.random.default_rng(0)
    x = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    rows = inputs.shape[1]
    for _ in range(rounds):
        total = [torch.zeros_like(p) for p in x]
        for examples, labels in zip(inputs, targets, strict=True):
            with torch.no_grad():
                for p, start in zip(model.parameters(), x, strict=True):
                    p.copy_(start)
            order = torch.from_numpy(
                np.concatenate([rng.permutation(rows) for _ in range(1 + batch * steps // rows)])
            )
            for k in range(steps):
                some = order[k * batch : (k + 1) * batch]
                optimizer.zero_grad()
                loss(model(examples[some]), labels[some]).backward()
                optimizer.step()
            with torch.no_grad():
                for t, p in zip(total, model.parameters(), strict=True):
                    t += p
        x = [t / len(inputs) for t in total]
