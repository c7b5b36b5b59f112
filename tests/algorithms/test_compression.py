"""Compressed uploads in the methods that take them: iterates, limits, states, bytes; refusals."""

from __future__ import annotations

import io
import tomllib
from functools import cache

import numpy as np
import pytest
from contract import CONTRACTS, EACH, FIRST, rules, strategy
from harness import OpenRun, latest, over_a_wire
from pages import blocks
from problems import q6, q6_l1
from q6_runs import PSI, optimum

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.compressors import EF21, QSGD, Identity, Natural, RandK, Sign, TopK
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.registry import client_class, strategy_class
from flower_fedcon.strategies import FedAvg, FedDR, FedMiD, Scaffnew, Scaffold
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.wire.payloads import flatten
from flower_fedcon.wire.settings import make

TAKING = [name for name in CONTRACTS if not strategy_class(name).needs_uncompressed]
STATELESS = [name for name in TAKING if client_class(name).state_type is None]
RULES = [EF21(TopK(count=2)), EF21(RandK(count=3)), EF21(Sign())]
EACH_RULE = pytest.mark.parametrize("rule", RULES, ids=lambda rule: repr(rule.compressor))


def test_nine_methods_take_compression():
    assert sorted(TAKING) == ["fedavg", "feddr", "feddualavg", "feddyn", "fedmid", "fedprox",
                              "fivegcs", "scaffnew", "scaffold"]  # fmt: skip
    assert sorted(STATELESS) == ["fedavg", "feddualavg", "fedmid", "fedprox"]


@EACH
def test_a_card_says_what_compression_does_or_why_there_is_none(name):
    kind, text = strategy_class(name), strategy_class(name).card().compression
    if name in TAKING:
        assert text.startswith("any" if name in STATELESS else "EF21")
        assert "same" in text
        return
    assert text == f"none: {kind.needs_uncompressed}"
    with pytest.raises(ConfigError, match="takes no compression=EF21") as found:
        strategy(name, FIRST[name], compression=RULES[0])
    assert kind.needs_uncompressed in str(found.value)


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
        acting = [client._acting for client in run.clients]
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
def test_all_engines_find_the_same_iterates_and_bytes(name, caplog):
    case = FIRST[name]
    for rule in (EF21(RandK(count=3)), *([QSGD(levels=4)] if name in STATELESS else [])):
        made, problem = strategy(name, case, compression=rule), case.problem()
        run, direct = over_a_wire(made, problem)
        assert run.x.tobytes() == direct.x.tobytes()
        assert run.server.uplink_bytes == direct.server.uplink_bytes
        assert direct.server.counts == {}
        stacked = simulate(made, problem, 6, engine="stacked")
        assert stacked.x.tobytes() == direct.x.tobytes()
        assert stacked["uplink_bytes"][-1] == direct.server.uplink_bytes
        assert "running on the local engine" in caplog.text


def test_worker_processes_find_the_same():
    made = FedAvg(client_lr=1 / 40, local_steps=2, compression=EF21(RandK(count=3)))
    histories = [simulate(made, q6(), 5, workers=w) for w in (1, 2)]
    assert histories[0].x.tobytes() == histories[1].x.tobytes()
    assert histories[0]["uplink_bytes"].tolist() == histories[1]["uplink_bytes"].tolist()


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


@pytest.mark.parametrize("name", ["fedavg", "scaffnew", "scaffold", "feddr"])
def test_a_resumed_run_ends_with_the_same_bytes(name, tmp_path):
    case, rule = FIRST[name], EF21(RandK(count=3))
    made, problem = strategy(name, case, compression=rule), case.problem()
    whole = simulate(made, problem, 8).x
    simulate(made, problem, 5, run_dir=tmp_path, checkpoint_every=1)
    again = simulate(made, problem, 8, run_dir=tmp_path, resume=True, checkpoint_every=1).x
    assert again.tobytes() == whole.tobytes()
    other = strategy(name, case, compression=EF21(Sign()))
    with pytest.raises(Exception, match="compression was EF21"):
        simulate(other, problem, 9, run_dir=tmp_path, resume=True, allow_changes=["compression"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: made(compression=TopK(count=2)), r"is biased, and alone .*: give.*EF21\(TopK"),
        (lambda: made(compression=Sign()), r"is biased, and alone .*: give.*EF21\(Sign"),
        (lambda: made(compression=Identity()), "must be a compressor of"),
        (lambda: made(compression=0.1), "must be a compressor of .*got 0.1"),
        (lambda: Scaffold(client_lr=0.1, local_steps=1, compression=QSGD(levels=4)),
         r"would add up in.*give compression=EF21\(QSGD\(levels=4\)\)"),
        (lambda: made(compression=RULES[0], aggregation=CoordinateMedian()),
         "only without compression"),
        (lambda: made(compression=RULES[0], privacy=GaussianDP(1.0, 1.0, 1e-5)),
         "takes privacy=... only without compression"),
        (lambda: simulate(made(compression=EF21(TopK(count=9))), q6(), 1),
         "count=9.*more than the model's 8 entries"),
    ],
)  # fmt: skip
def test_refusals(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def made(**more):
    return FedAvg(client_lr=0.1, local_steps=1, **more)


def test_a_strategy_of_one_s_own_must_say_so():
    class Silent(FedAvg):
        needs_uncompressed = FedConStrategy.needs_uncompressed

    with pytest.raises(ConfigError, match="it does not declare that compressed uploads are right"):
        Silent(client_lr=0.1, local_steps=1, compression=RULES[0])


def test_the_attribute_s_old_name_works():
    class Older(FedAvg):
        needs_exact = "its theory needs whole uploads"

    with pytest.raises(ConfigError, match="its theory needs whole uploads"):
        Older(client_lr=0.1, local_steps=1, compression=RULES[0])


def test_an_experiment_file_names_it():
    tables = {
        "problem": {"name": "counterexample"},
        "run": {"rounds": 5},
        "algorithm": {
            "name": "FedMiD",
            "client_lr": 0.1,
            "local_steps": 1,
            "compression": {"type": "EF21", "compressor": {"type": "TopK", "fraction": 0.5}},
        },
    }
    assert Experiment(tables).strategy().compression == EF21(TopK(fraction=0.5))
    other = Experiment(tables, overrides=["compression={type = 'Natural'}"])
    assert isinstance(other.strategy(), FedMiD)
    assert other.strategy().compression == Natural()


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


def test_a_mirrorless_form_compresses_too():
    for more in ({"mirror": False}, {"option": "I"}):
        exact = Scaffold(client_lr=1 / 200, local_steps=3, **more, compression=RULES[0])
        found = simulate(exact, q6(), 300, evaluate_every=0).x
        assert found == pytest.approx(optimum(composite=False), abs=1e-3)
    run = OpenRun(FedDR(PSI, step_size=0.05, mirror=False, participation=Full(),
                        compression=RULES[0]), q6_l1()).play(200)  # fmt: skip
    assert run.x == pytest.approx(optimum(composite=True), abs=1e-3)
