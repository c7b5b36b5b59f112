"""Compressed uploads together with weights, norm bounds, server optimizers, and train loops."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from harness import OpenRun, latest
from loops import by_loops
from problems import q6, random_quadratics
from test_server_optimizers import EACH as EACH_OPTIMIZER
from test_server_optimizers import problem, reddi

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.compressors import EF21, QSGD, Natural, RandK, Sign, TopK
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.optimizers import Adam, Momentum
from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import FedAvg, FedMiD, Scaffold

RULE = EF21(TopK(count=1))


def largest(x):
    """Return x with its largest entry alone: TopK(count=1)."""
    kept = np.zeros_like(x)
    kept[np.argmax(np.abs(x))] = x[np.argmax(np.abs(x))]
    return kept


def by_hand(rounds, psi=None, weights=(1, 1, 1, 1), eta=1.0, optimizer=None):
    """Return x after so many rounds of two steps of 0.1 whose changes EF21 sends."""
    x, memory, read = np.zeros(3), [np.zeros(3) for _ in weights], []
    for _ in range(rounds):
        for j, f in enumerate(random_quadratics(3)):
            v, share = x, len(weights) * weights[j] / sum(weights)
            for _ in range(2):
                v = v - 0.1 * share * (f.Q @ v - f.b)
                v = v if psi is None else np.sign(v) * np.maximum(np.abs(v) - 0.1 * psi, 0)
            memory[j] = memory[j] + largest(v - x - memory[j])
        read.append(np.mean(memory, axis=0))
        x = x + (eta * read[-1] if optimizer is None else reddi(optimizer, read, eta)[-1])
        if psi is not None:
            x = np.sign(x) * np.maximum(np.abs(x) - eta * 0.2 * psi, 0)
    return x


def test_weights_by_hand():
    weights = [3, 1, 0, 2]
    made = FedAvg(client_lr=0.1, local_steps=2, compression=RULE)
    found = simulate(made, FederatedProblem(random_quadratics(3), weights=weights), 9)
    np.testing.assert_allclose(found.x, by_hand(9, weights=weights), rtol=0, atol=1e-14)
    assert np.abs(found.x - by_hand(9)).max() > 0.01


@pytest.mark.parametrize("rule", [RULE, EF21(Sign()), EF21(RandK(count=1)), EF21(Natural())])
def test_weights_count_in_the_limit(rule):
    clients = random_quadratics(3)
    given = FederatedProblem(clients, weights=[3, 1, 0, 2])
    found = simulate(FedAvg(client_lr=0.1, local_steps=1, compression=rule), given, 400).x
    total = [sum(w * part for w, part in zip([3, 1, 0, 2], parts, strict=True))
             for parts in ([f.Q for f in clients], [f.b for f in clients])]  # fmt: skip
    assert found == pytest.approx(np.linalg.solve(*total), abs=1e-6)


@EACH_OPTIMIZER
def test_a_server_optimizer_steps_along_what_is_read(optimizer):
    made = FedAvg(client_lr=0.1, local_steps=2, server_lr=0.3, server_optimizer=optimizer,
                  compression=RULE)  # fmt: skip
    expected = by_hand(8, eta=0.3, optimizer=optimizer)
    np.testing.assert_allclose(simulate(made, problem(), 8).x, expected, rtol=0, atol=1e-14)


def test_fedmid_with_momentum_by_hand():
    made = FedMiD(L1(0.2), client_lr=0.1, local_steps=2, server_lr=0.8,
                  server_optimizer=Momentum(0.5), compression=RULE)  # fmt: skip
    expected = by_hand(8, psi=0.2, eta=0.8, optimizer=Momentum(0.5))
    found = simulate(made, problem(L1(0.2)), 8).x
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("optimizer", [Momentum(0.5), Adam(tau=0.1)], ids=repr)
def test_scaffold_keeps_its_optimum(optimizer):
    made = Scaffold(client_lr=0.05, local_steps=3, server_lr=0.1, server_optimizer=optimizer,
                    compression=EF21(TopK(count=2)))  # fmt: skip
    assert simulate(made, problem(), 1500).x == pytest.approx(problem().optimum.x, abs=1e-4)


def test_a_norm_bound_measures_what_is_sent_and_not_what_is_read():
    """Clients ||x - b_i||^2/2 with b = 3 and 40: one step of 1/2 changes x by (b - x)/2."""
    points = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (3.0, 40.0)])
    made = FedAvg(client_lr=0.5, local_steps=1, norm_bound=5.0, compression=RULE)
    run = OpenRun(made, points).play()
    assert run.server.counts["dropped"] == 1  # (40 - 0)/2 is too long
    assert run.x.tolist() == [1.5]
    assert [run.server.received.snapshot().rows["delta"][j].tolist() for j in (0, 1)] == [
        [1.5],
        [0],
    ]
    assert latest(run, 1) is None
    mild = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (0.0, 9.0)])
    # Changes 0 and 4.5, then -1.125 and 3.375: the second client sends 4.5, then -1.125.
    run = OpenRun(made, mild).play(2)
    assert run.server.counts == {}
    assert [latest(run, j).memory["delta"].tolist() for j in (0, 1)] == [[-1.125], [3.375]]


def test_many_short_uploads_add_up_to_a_long_one():
    """A memory moves by what is sent: a bound on that bounds its growth, and not its size."""

    def alter(asked, reply):
        if asked.client == 1:
            reply.payload["delta"][0].values[:] = 5.0
        return [reply]

    made = FedAvg(client_lr=0.5, local_steps=1, norm_bound=5.0, compression=RULE)
    zeros = FederatedProblem([Quadratic(np.eye(1), np.zeros(1)) for _ in range(2)])
    run = OpenRun(made, zeros, alter=alter).play(3)
    assert run.server.counts == {}
    assert run.server.received.snapshot().rows["delta"][1].tolist() == [15.0]


def test_train_loops_of_one_s_own_are_refused():
    def loop(method, f):
        raise AssertionError

    for kind in (FedAvg, Scaffold):
        made = kind(client_lr=0.1, local_steps=1, compression=RULE)
        with pytest.raises(
            ConfigError, match=r"takes no compression=\.\.\. here, since your own train"
        ):
            by_loops(made, q6(), 1, loop)


def test_the_page_s_message_sizes():
    rules = {"none": None, "TopK 5 %": TopK(fraction=0.05), "RandK 10 %": RandK(fraction=0.1),
             "QSGD": QSGD(levels=8), "Natural": Natural(), "Sign": Sign()}  # fmt: skip
    lines = (Path(__file__).parents[2] / "docs" / "compression.md").read_text().splitlines()
    start = lines.index("| entries | none | TopK 5 % | RandK 10 % | QSGD | Natural | Sign |")
    rows = [line.strip("| ").split(" | ") for line in lines[start + 2 : start + 6]]
    assert [row[0] for row in rows] == ["19", "100", "650", "7,850"]
    for entries, *shown in rows:
        x = np.random.default_rng(0).normal(size=int(entries.replace(",", "")))
        for rule, text in zip(rules.values(), shown, strict=True):
            sent = x if rule is None else rule.compress(x, np.random.default_rng(0))
            files = {"x": sent} if rule is None else sent.arrays()
            total = 0
            for array in files.values():
                np.save(file := io.BytesIO(), array)
                total += len(file.getvalue())
            assert f"{total:,}" == text
