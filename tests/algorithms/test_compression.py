"""Compressed uploads in the methods that take them, alone and together with other options."""

from __future__ import annotations

import io
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from contract import CONTRACTS, FIRST, rules, strategy
from everywhere import agrees_everywhere
from harness import OpenRun, latest
from loops import by_loops
from pages import blocks
from problems import q6, q6_l1, random_quadratics
from q6_runs import PSI, optimum
from test_server_optimizers import by_hand, largest, problem

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.compressors import EF21, QSGD, Natural, RandK, Sign, TopK
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.optimizers import Adam, Momentum
from flower_fedcon.registry import client_class, strategy_class
from flower_fedcon.strategies import FedAvg, FedDR, Scaffnew, Scaffold
from flower_fedcon.wire.payloads import flatten
from flower_fedcon.wire.settings import make

TAKING = [name for name in CONTRACTS if not strategy_class(name).needs_uncompressed]
STATELESS = [name for name in TAKING if client_class(name).state_type is None]
RULES = [EF21(TopK(count=2)), EF21(RandK(count=3)), EF21(Sign())]
EACH_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: repr(rule.compressor))


def test_two_rounds_by_hand():
    """Clients ||x - b_i||^2/2 with one step of 1/2: a change is (b_i - w)/2."""
    b = np.array([[4.0, -2.0], [2.0, 6.0]])
    problem = FederatedProblem([Quadratic(np.eye(2), each) for each in b])
    made = FedAvg(client_lr=0.5, local_steps=1, compression=EF21(TopK(count=1)))
    run = OpenRun(made, problem).play()
    # Changes (2, -1) and (1, 3): the largest entries go up, and are the memories.
    assert run.x.tolist() == [1.0, 1.5]
    run.play()
    # Changes (1.5, -1.75) and (0.5, 2.25); less the memories (-0.5, -1.75) and (0.5, -0.75).
    assert [latest(run, j).memory["delta"].tolist() for j in (0, 1)] == [[2, -1.75], [0, 2.25]]
    assert run.x.tolist() == [1.0 + 1.0, 1.5 + 0.25]


def settings(name):
    """Settings of which the limit is reached within some hundred rounds."""
    own = {
        "fedavg": {"client_lr": 1 / 40, "local_steps": 3},
        "fedmid": {"client_lr": 1 / 40, "local_steps": 3},
        "feddualavg": {"client_lr": 1 / 80, "local_steps": 2},
        "fedprox": {"proximal": 10.0},
        "feddr": {"step_size": 0.05},
        "scaffold": {"client_lr": 1 / 200, "local_steps": 3},
    }
    psi = {"regularizer": PSI} if name in ("fedmid", "feddualavg", "feddr") else {}
    return {**own.get(name, {}), **psi}


@cache
def limit(name, rounds=300, **more):
    kind, problem = strategy_class(name), q6_l1() if "regularizer" in settings(name) else q6()
    return simulate(kind(**settings(name), **more), problem, rounds, evaluate_every=0).x


@EACH_RULE
@pytest.mark.parametrize("name", TAKING)
def test_error_feedback_keeps_the_limit(name, rule):
    """That of the exact run where the method is biased, else the optimum."""
    found = limit(name, compression=rule)
    expected = limit(name) if name in STATELESS else optimum(name == "feddr")
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", ["feddr", "feddyn", "fivegcs", "scaffold"])
def test_error_feedback_keeps_the_optimum_under_sampling(name):
    found = limit(name, compression=EF21(TopK(count=4)), participation=Sample(count=3))
    assert found == pytest.approx(optimum(name == "feddr"), abs=1e-3)


@pytest.mark.parametrize("rule", [QSGD(levels=4), Natural()], ids=repr)
@pytest.mark.parametrize("name", ["fedavg", "fedmid", "fedprox"])
def test_without_memory_an_unbiased_compressor_leaves_a_floor(name, rule):
    assert 1e-3 < np.linalg.norm(limit(name, compression=rule) - limit(name)) < 1.0


PLAYED = [pytest.param(name, rule, id=f"{name}-{rule}") for name in TAKING for rule in rules(name)]


@pytest.mark.parametrize(("name", "participation"), PLAYED)
def test_both_sides_remember_the_same_whatever_is_lost(name, participation):
    """Conserved sums, and memories bit for bit, also when replies and states are lost."""

    def alter(asked, reply):
        return [] if (asked.client + asked.round) % 4 == 0 else [reply]

    case = FIRST[name]
    sent = {"compression": EF21(RandK(count=3)), "participation": participation}
    fails = None if strategy(name, case).needs_everyone else alter
    run = OpenRun(strategy(name, case, **sent, min_replies=1), case.problem(), alter=fails)
    check = None if name == "scaffnew" else CONTRACTS[name].invariant
    for t in range(1, 21):
        asked = run.acknowledged[1] and 1 in run.server.strategy.cohort(t) and t % 4 != 3
        if t > 8 and asked and not run.server.counts["lost"]:
            run.clients[1] = run.new_client(1)
        run.play()
        if check is not None:
            check(run)
        remembered(run)
    assert run.server.counts["lost"] == 1


def remembered(run):
    """Assert that the server's memories are those of its clients' states."""
    for name, rows in run.server.received.snapshot().rows.items():
        for j, row in enumerate(rows):
            state = latest(run, j)
            held = np.zeros_like(row) if state is None else state.memory[name]
            assert row.tobytes() == held.tobytes()


def test_the_control_variates_of_scaffnew_sum_to_0():
    run = OpenRun(Scaffnew(compression=EF21(TopK(count=2))), q6())
    for _ in range(20):
        run.play()
        down = run.server.strategy.broadcast(run.state)
        acting = [client._compressing for client in run.clients]
        states = [a.on_acknowledged(latest(run, j), down) for j, a in enumerate(acting)]
        assert np.abs(np.sum([s.state.h for s in states], axis=0)).max() < 1e-12


@pytest.mark.parametrize("name", TAKING)
def test_a_lost_state_is_made_good(name):
    case, problem = settings(name), q6_l1() if "regularizer" in settings(name) else q6()
    made = strategy_class(name)(**case, compression=EF21(TopK(count=3)))
    run = OpenRun(made, problem).play(10)
    run.clients[2] = run.new_client(2)
    run.play(1)
    assert run.server.counts["lost"] == 1
    assert run.server.counts["dropped"] == 0
    run.play(300)
    expected = limit(name) if name in STATELESS else optimum(name == "feddr")
    assert run.x == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", TAKING)
def test_engines_wires_and_resumed_runs_agree(name, caplog, tmp_path):
    case, others = FIRST[name], ("stacked", *(["workers"] if name == "fedavg" else []))
    for rule in (EF21(RandK(count=3)), *([QSGD(levels=4)] if name in STATELESS else [])):
        made = strategy(name, case, compression=rule)
        folder = tmp_path / type(rule).__name__
        agrees_everywhere(made, case.problem(), folder, engines=others, near={"rel": 0, "abs": 0})
        assert "running on the local engine" in caplog.text
    other = strategy(name, case, compression=EF21(Sign()))
    with pytest.raises(FedConError, match="compression was"):
        simulate(other, case.problem(), 9, run_dir=folder, resume=True,
                 allow_changes=["compression"])  # fmt: skip


def test_the_bytes_are_those_of_what_is_sent():
    sizes = []

    def weigh(asked, reply):
        for array in flatten({"delta": reply.payload["delta"][0]})[0].values():
            np.save(file := io.BytesIO(), array)
            sizes.append(len(file.getvalue()))
        return [reply]

    made = FedAvg(client_lr=0.01, local_steps=1, compression=EF21(Sign()))
    run = OpenRun(made, q6(), alter=weigh).play(2)
    assert run.server.uplink_bytes == sum(sizes)
    big = FederatedProblem([Quadratic(np.eye(800), np.ones(800)) for _ in range(2)])
    plain, small = (
        simulate(FedAvg(client_lr=0.1, local_steps=1, compression=c), big, 3)["uplink_bytes"][-1]
        for c in (None, EF21(Sign()))
    )
    assert small < plain / 15


def test_the_page_s_blocks(capsys):
    page = "docs/compression.md"
    (block,) = blocks("python", page)
    exec(compile(block, page, "exec"), {})
    plain, small = (line.split() for line in capsys.readouterr().out.splitlines())
    assert float(small[0]) == pytest.approx(float(plain[0]), abs=0.05)
    assert float(small[1]) < float(plain[1]) / 10
    (line,) = blocks("toml", page)
    given = tomllib.loads(line)["compression"]
    assert make(given["type"], {"compressor": make("TopK", {"fraction": 0.05})}) == EF21(
        make(given["compressor"].pop("type"), given["compressor"])
    )


def test_the_page_names_the_methods_that_take_it():
    text = (Path(__file__).parents[2] / "docs" / "compression.md").read_text()
    table = text.partition("| methods | what")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    named = [name.strip() for row in rows for name in row.split(",")]
    assert sorted(named) == sorted(strategy_class(name).__name__ for name in TAKING)
    assert f"{('Nine', 'Ten', 'Eleven', 'Twelve')[len(named) - 9]} methods take" in text


def test_a_mirrorless_form_compresses_too():
    for more in ({"mirror": False}, {"option": "I"}):
        exact = Scaffold(client_lr=1 / 200, local_steps=3, **more, compression=RULES[0])
        found = simulate(exact, q6(), 300, evaluate_every=0).x
        assert found == pytest.approx(optimum(composite=False), abs=1e-3)
    run = OpenRun(FedDR(PSI, step_size=0.05, mirror=False, participation=Full(),
                        compression=RULES[0]), q6_l1()).play(200)  # fmt: skip
    assert run.x == pytest.approx(optimum(composite=True), abs=1e-3)


ONE_ENTRY = EF21(TopK(count=1))


def test_weights_by_hand():
    weights = [3, 1, 0, 2]
    made = FedAvg(client_lr=0.1, local_steps=2, compression=ONE_ENTRY)
    found = simulate(made, FederatedProblem(random_quadratics(3), weights=weights), 9)
    np.testing.assert_allclose(found.x, by_hand(9, largest, weights=weights), rtol=0, atol=1e-14)
    assert np.abs(found.x - by_hand(9, largest)).max() > 0.01


@pytest.mark.parametrize("rule", [ONE_ENTRY, EF21(Sign()), EF21(RandK(count=1)), EF21(Natural())])
def test_weights_count_in_the_limit(rule):
    clients = random_quadratics(3)
    given = FederatedProblem(clients, weights=[3, 1, 0, 2])
    found = simulate(FedAvg(client_lr=0.1, local_steps=1, compression=rule), given, 400).x
    total = [sum(w * part for w, part in zip([3, 1, 0, 2], parts, strict=True))
             for parts in ([f.Q for f in clients], [f.b for f in clients])]  # fmt: skip
    assert found == pytest.approx(np.linalg.solve(*total), abs=1e-6)


@pytest.mark.parametrize("optimizer", [Momentum(0.5), Adam(tau=0.1)], ids=repr)
def test_scaffold_keeps_its_optimum(optimizer):
    made = Scaffold(client_lr=0.05, local_steps=3, server_lr=0.1, server_optimizer=optimizer,
                    compression=EF21(TopK(count=2)))  # fmt: skip
    assert simulate(made, problem(), 1500).x == pytest.approx(problem().optimum.x, abs=1e-4)


def test_a_norm_bound_measures_what_is_sent_and_not_what_is_read():
    """Clients ||x - b_i||^2/2 with b = 3 and 40: one step of 1/2 changes x by (b - x)/2."""
    points = FederatedProblem([Quadratic(np.eye(1), np.array([b])) for b in (3.0, 40.0)])
    made = FedAvg(client_lr=0.5, local_steps=1, norm_bound=5.0, compression=ONE_ENTRY)
    run = OpenRun(made, points).play()
    assert run.server.counts["dropped"] == 1  # (40 - 0)/2 is too long
    assert run.x.tolist() == [1.5]
    assert run.server.received.snapshot().rows["delta"].tolist() == [[1.5], [0]]
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

    made = FedAvg(client_lr=0.5, local_steps=1, norm_bound=5.0, compression=ONE_ENTRY)
    zeros = FederatedProblem([Quadratic(np.eye(1), np.zeros(1)) for _ in range(2)])
    run = OpenRun(made, zeros, alter=alter).play(3)
    assert run.server.counts == {}
    assert run.server.received.snapshot().rows["delta"][1].tolist() == [15.0]


def test_train_loops_of_one_s_own_are_refused():
    def loop(method, f):
        raise AssertionError

    for kind in (FedAvg, Scaffold):
        made = kind(client_lr=0.1, local_steps=1, compression=ONE_ENTRY)
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


def test_the_attribute_s_old_name_works():
    class Older(FedAvg):
        needs_exact = "its theory needs whole uploads"

    with pytest.raises(ConfigError, match="its theory needs whole uploads"):
        Older(client_lr=0.1, local_steps=1, compression=RULES[0])
