"""Many clients to a message: the local engine's histories, and its faults; Ray is left out here."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest
from agreement import interrupted, untimed
from contract import CONTRACTS, build
from flwr.app import Error, Message
from problems import avg, l1ls, q6, q6_limited, q6_objectives
from sites import problem, run, written

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.compressors import EF21, TopK
from flower_fedcon.engines import blocks
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.registry import algorithms
from flower_fedcon.strategies import Scaffold

pytestmark = pytest.mark.usefixtures("fake_ray")
STEPS = {"client_lr": 0.02, "local_steps": 2}


def asked(message):
    """Return the request in a message."""
    return blocks._loads(blocks.messages.block_content(message))[2]


def both(strategy, problem, rounds=6, *, block=4, **options):
    """Return the history with blocks of clients, once it is the local engine's."""
    there = simulate(strategy, problem, rounds, engine="ray", clients_per_message=block, **options)
    here = simulate(strategy, problem, rounds, **options)
    assert there.x.tobytes() == here.x.tobytes()
    assert untimed(there) == untimed(here)
    return there


@pytest.mark.parametrize("name", algorithms())
def test_every_algorithm_has_the_local_history(name):
    contract = CONTRACTS[name]
    case = contract.sampled[0] if contract.sampled else contract.cases[0]
    problem = case.problem()
    both(build(name, problem, **case.settings), problem, 8, certificates=True, seed=5)


ASKED = {
    "batches": Scaffold(**STEPS, batch_size=4),
    "compression": avg(compression=EF21(TopK(fraction=0.3))),
    "privacy": avg(privacy=GaussianDP(clip=1.0, noise_multiplier=0.0, target_delta=1e-5)),
    "bound": avg(norm_bound=5.0),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_a_strategy_may_ask_for_is_as_in_this_process(name):
    both(ASKED[name], FederatedProblem(l1ls(7).objectives))


def test_blocks_may_be_of_unequal_sizes(fake_ray):
    problem = FederatedProblem(l1ls(7).objectives)
    both(Scaffold(**STEPS), problem, 2, block=3)
    assert fake_ray.supernodes == 3
    assert [asked(m).clients for m in fake_ray.sent] == 2 * [[0, 3, 6], [1, 4], [2, 5]]
    few = Scaffold(**STEPS, participation=Sample(count=2))
    both(few, problem, 2, block=3)  # whoever is asked is dealt out anew
    assert [len(asked(m).clients) for m in fake_ray.sent] == 4 * [1]


@pytest.mark.parametrize(("clients", "nodes"), [(6, 3), (2, 2), (4, 4)])
def test_by_default_there_are_two_blocks_for_each_worker(clients, nodes, fake_ray):
    simulate(avg(), FederatedProblem(q6_objectives()[:clients]), 1, engine="ray")
    assert fake_ray.supernodes == len(fake_ray.sent) == nodes


def test_a_message_holds_the_broadcast_once(fake_ray):
    objectives = [Quadratic(np.eye(50), np.ones(50)) for _ in range(40)]
    sizes = {}
    for block in (10, 40):
        simulate(avg(), FederatedProblem(objectives), 1, engine="ray", clients_per_message=block)
        (*_, last) = fake_ray.sent
        sizes[block] = len(blocks.messages.block_content(last))
    assert sizes[40] - sizes[10] < 30 * 40  # of the model: 400 bytes a client


class FailsAtFirst(Quadratic):
    """Raises until the model has moved."""

    def gradient(self, x):
        if np.linalg.norm(x) < 0.2:
            raise ZeroDivisionError("too near the start")
        return super().gradient(x)


def test_a_client_that_fails_in_a_block_fails_alone():
    problem = with_third(FailsAtFirst)
    strategy = Scaffold(client_lr=1 / 40, local_steps=2, min_replies=5)
    history = both(strategy, problem, 8, block=3)
    assert history["replies"].tolist() == [5, 6, 6, 6, 6, 6, 6, 6]
    with pytest.raises(RoundError, match=r"client 2: the client failed: ZeroDivisionError\('too"):
        simulate(avg(min_replies=6), problem, 2, engine="ray", clients_per_message=6)


def lose(what):
    """Return what happens to the second message of round 2: an error, or nothing comes at all."""

    def meddle(number, message, replies):
        if number != 5:
            return replies
        return [Message(Error(0, "the worker died"), reply_to=message)] if what == "died" else []

    return meddle


@pytest.mark.parametrize("what", ["died", "silent"])
def test_a_lost_message_is_the_loss_of_each_reply_in_it(what, fake_ray, monkeypatch):
    """Their states have not moved: asked again, they answer as if they had not been asked."""
    monkeypatch.setattr("flower_fedcon.engines.ray._HOUR", 0.0)
    fake_ray.meddle = lose(what)
    problem = q6()
    strategy = Scaffold(client_lr=1 / 40, local_steps=2, min_replies=6)
    history = simulate(strategy, problem, 4, engine="ray", clients_per_message=2, timeout=0.5)
    assert [asked(m).clients for m in fake_ray.sent[3:8]] == [[0, 3], [1, 4], [2, 5], [1], [4]]
    assert history["retries"].tolist() == [0, 1, 1, 1]
    fake_ray.meddle = None
    calm = simulate(strategy, problem, 4)
    assert history.x.tobytes() == calm.x.tobytes()
    assert history["uplink_bytes"].tolist() == calm["uplink_bytes"].tolist()


def test_what_was_lost_with_a_message_may_be_left_out(fake_ray):
    fake_ray.meddle = lose("died")
    strategy = Scaffold(client_lr=1 / 40, local_steps=2, min_replies=3)
    history = simulate(strategy, q6(), 3, engine="ray", clients_per_message=2)
    assert history["replies"].tolist() == [6, 4, 6]


def left(folder, **more):
    """Leave a run between two checkpoints."""
    options = {"engine": "ray", "run_dir": folder, "checkpoint_every": 2}
    interrupted(Scaffold(client_lr=1 / 40, local_steps=2), q6(), 5, 9, **options)


def test_states_are_written_with_checkpoints_alone(tmp_path):
    left(tmp_path)
    written = [p.stat().st_mtime_ns for p in (tmp_path / "clients").rglob("state")]
    assert len(written) == 6
    assert max(written) <= (tmp_path / "checkpoint").stat().st_mtime_ns


def test_a_state_that_is_lost_in_a_block_is_given_back(tmp_path):
    problem, strategy = q6(), Scaffold(client_lr=1 / 40, local_steps=2)
    left(tmp_path)
    (lost,) = (tmp_path / "clients").rglob("4-*/state")
    lost.unlink()
    options = {"engine": "ray", "run_dir": tmp_path, "resume": True}
    history = simulate(strategy, problem, 9, clients_per_message=3, **options)
    assert history["lost"].tolist()[3:] == [0, 1, 1, 1, 1, 1]
    assert history.x.tobytes() == simulate(strategy, problem, 9).x.tobytes()


def test_a_worker_with_another_version_is_named(monkeypatch):
    """As on a machine of a cluster that was forgotten."""
    train = blocks._train

    def elsewhere(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "__version__", "0.0.1")
            return train(*arguments)

    monkeypatch.setattr(blocks, "_train", elsewhere)
    with pytest.raises(RoundError, match=r"runs flower-fedcon .*, this worker 0\.0\.1: install"):
        simulate(avg(), q6(), 1, engine="ray")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"engine": "ray", "clients_per_message": 0},
         "clients_per_message must be a whole number >= 1, got 0"),
        ({"clients_per_message": 2}, 'clients_per_message=2 is for engine="ray", not for'),
        ({"timeout": 5}, 'timeout=5 is for engine="ray", not for'),
        ({"engine": "ray", "timeout": -1}, "timeout must be finite and > 0, got -1"),
    ],
)  # fmt: skip
def test_what_ray_cannot_do_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        simulate(avg(), q6(), 1, **options)


def test_queries_hold_between_messages():
    """FedSGM asks before it steps; what it holds in between comes along with the step's message."""
    problem = q6_limited()
    case = CONTRACTS["fedsgm"].cases[0]
    both(build("fedsgm", problem, **case.settings), problem, 5)


# --- clients that hang, or take their worker along ------------------------------------------------


def with_third(kind):
    """Return Q6, whose third client is of this kind."""
    objectives = list(q6_objectives())
    objectives[2] = kind(objectives[2].Q, objectives[2].b)
    return FederatedProblem(objectives)


class Hangs(Quadratic):
    """In its gradient, once it has been asked for it three times."""

    asked = 0

    def gradient(self, x):
        Hangs.asked += 1
        if Hangs.asked > 3:
            time.sleep(60)
        return super().gradient(x)


@pytest.mark.parametrize("block", [None, 1, 4])
def test_a_client_that_hangs_costs_its_reply(block, monkeypatch):
    options = {"engine": "ray", "timeout": 0.1, "clients_per_message": block}
    monkeypatch.setattr(Hangs, "asked", 0)
    history = simulate(avg(min_replies=5), with_third(Hangs), 2, **options)
    assert history["replies"].tolist() == [6, 5]
    assert "refused" not in history  # as in the other engines
    Hangs.asked = 0
    with pytest.raises(RoundError, match=r"client 2: refused: .*max-seconds = 0.1, and"):
        simulate(avg(min_replies=6), with_third(Hangs), 2, **options)


# --- tables ---------------------------------------------------------------------------------------


FILES = ("coefficients.csv", "report.txt", "quality.json", "model.json")
STUDIES = {
    "own": {"inference": "robust", "heterogeneity": True},
    "random": {"inference": None, "site_effects": "random"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = written(tmp_path_factory.mktemp("sites"))
    few = pd.read_csv(where / "s1.csv")
    few["any"] = ["yes", "no"] * (len(few) // 2)
    few[:6].to_csv(where / "s9.csv", index=False)  # too few to be fitted alone
    return where


def same_folders(here, there):
    """Expect the same bytes in all that a study is written up from."""
    for name in (*FILES, "heterogeneity.csv"):
        if (here / name).exists() or name in FILES:
            assert (there / name).read_bytes() == (here / name).read_bytes(), name


@pytest.mark.usefixtures("fake_ray")
def test_the_same_numbers_in_ray(folder, tmp_path):
    made = problem(
        folder, "logistic", {"test_fraction": 0.2}, inference="robust", heterogeneity=True
    )
    known = run(made, 6, run_dir=tmp_path / "here", certificates=True).report
    how = {"engine": "ray", "clients_per_message": 3, "run_dir": tmp_path / "run"}
    how["certificates"] = True
    run(made, 1, **how)
    found = run(made, 6, resume=True, **how).report
    same_folders(tmp_path / "here", tmp_path / "run")
    assert found.rows == known.rows
    assert found.errors == known.errors
    assert found.quality.pooled == known.quality.pooled
    for name in ("values", "bse", "ratio", "ratio_df"):
        one, other = (getattr(each.heterogeneity, name) for each in (found, known))
        assert one.tobytes() == other.tobytes()
    (why,) = found.heterogeneity.left_out.values()
    assert "a fit needs more rows than parameters" in why


@pytest.mark.usefixtures("fake_ray")
@pytest.mark.parametrize("each", [1, 3])
def test_random_intercepts_in_ray(folder, tmp_path, each):
    more = {"cluster": "plan", "test_fraction": 0.2}
    made = problem(folder, "logistic", more, **STUDIES["random"])
    run(made, 8, run_dir=tmp_path / "here", certificates=True)
    how = {"engine": "ray", "clients_per_message": each, "run_dir": tmp_path / "run"}
    run(made, 1, **how, certificates=True)
    found = run(made, 8, resume=True, **how, certificates=True).report
    assert found.random.groups > len(made.names)
    same_folders(tmp_path / "here", tmp_path / "run")


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.parametrize(("per_message", "what"), [(None, "own"), (1, "own"), (None, "random")])
def test_a_study_in_flower_s_simulation(per_message, what, folder, tmp_path):
    """Robust errors, own or random intercepts, what each site finds alone: the same bytes."""
    made = problem(folder, "poisson", {"test_fraction": 0.2}, **STUDIES[what])
    run(made, 6, run_dir=tmp_path / "here", certificates=True)
    more = {} if per_message is None else {"clients_per_message": per_message}
    run(made, 6, engine="ray", run_dir=tmp_path / "run", certificates=True, **more)
    same_folders(tmp_path / "here", tmp_path / "run")
    assert "took part: s0 (" in (tmp_path / "run" / "report.txt").read_text()
