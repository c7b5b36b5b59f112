"""Secure aggregation: sums by Flower's SecAgg+, and what a server sees, uses and refuses."""

from __future__ import annotations

import io
import itertools
import json
import tomllib

import numpy as np
import pytest
from contract import CONTRACTS, FIRST
from contract import strategy as build
from deployment import Deployment
from fake_grid import FakeGrid, on_grid
from flwr.app import Array, ArrayRecord
from pages import ROOT, blocks
from problems import q6_objectives
from processes import wait_until
from row_nodes import APP, model_of, run_config
from secure_nodes import PROTOCOL, SECURE, STAGES, STEPS, SecureGrid, asking, overflowing, start
from test_release import SUMS, shown

from flower_fedcon import FederatedProblem, Policy, Sample, client_app, simulate
from flower_fedcon.core.summed import Summed
from flower_fedcon.errors import AlgorithmError, ConfigError, FedConError
from flower_fedcon.flower import apps
from flower_fedcon.flower.secagg_node import scaled
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.strategies import FedAvg, Scaffnew

pytestmark = on_grid

COIN = Scaffnew(client_lr=0.1, communication_probability=0.5)  # needs everyone, and keeps a state


def plain(objectives, made=STEPS, rounds=1):
    return simulate(made, FederatedProblem(objectives), rounds).x


def numbers_in(value):
    """Yield every array that some bytes hold, or that a list of them holds."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from numbers_in(one)
    elif isinstance(value, bytes) and value.startswith(b"\x93NUMPY"):
        yield np.load(io.BytesIO(value))


# --- the same iterates, within the tolerance -----------------------------------------------------


@pytest.mark.parametrize("cohort", [None, 4])
def test_a_sum_is_that_of_the_plain_run_within_its_step(cohort, log):
    more = {} if cohort is None else {"participation": Sample(count=cohort)}
    made, several = FedAvg(client_lr=0.1, local_steps=3, **more), cohort or 6
    history = start(made)
    off = np.abs(history.x - plain(q6_objectives(), made)).max()
    assert 0 < off < SECURE.step("delta", several)
    assert f"is off by less than {SECURE.step('delta', several):.1e} (delta)" in log.text
    assert history["replies"][-1] == several
    assert history["uplink_bytes"][-1] > 1000 * several  # keys and shares, too


def test_the_error_is_that_of_the_levels():
    """Coarse levels, so that it can be seen: unbiased, and below a step."""
    coarse, made = SecAggPlus(8.0, quantization_range=2**10), FedAvg(client_lr=0.1, local_steps=1)
    exact = plain(q6_objectives(), made)
    errors = [start(made, secure=coarse).x - exact for _ in range(3)]
    assert 1e-4 < np.abs(errors).max() < coarse.step("delta", 6) == 16 / 1024


@pytest.mark.parametrize("case", [case for case in SUMS if case[0] != "fedsgm"], ids=shown)
def test_every_method_that_needs_sums_alone_has_its_iterates(case):
    """But FedSGM, which asks before the step."""
    name, settings = case
    first = FIRST[name] if "participation" not in settings else CONTRACTS[name].cases[-1]
    problem, method = first.problem(), build(name, first, **settings)
    if len(problem.objectives) < 6:
        pytest.skip("a cohort of fewer than three")
    exact = simulate(method, problem, 2).x
    secure = SecAggPlus(clipping_range=1000.0, num_shares=5)  # of the next ones in a ring
    found = start(
        method, FakeGrid(problem.objectives), 2, secure=secure, initial_arrays=problem.start
    )
    assert np.abs(found.x - exact).max() < 1e-3 * max(1.0, np.abs(exact).max())


# --- what the server sees ------------------------------------------------------------------------


def test_the_server_never_holds_a_single_upload():
    grid, bare = SecureGrid(), SecureGrid()
    made = FedAvg(client_lr=0.1, local_steps=3, min_replies=3)
    start(made, grid, 2)
    made.start(bare, num_rounds=1)
    uploads = {
        client: next(numbers_in([a.data for a in reply.content["fitres.parameters"].values()]))
        for client, _, reply in bare.seen
        if "fitres.parameters" in reply.content and len(reply.content["fitres.parameters"])
    }
    assert sorted(uploads) == list(range(6))
    masked = [(c, r.content) for c, s, r in grid.seen if s == STAGES[2]]
    assert len(masked) == 12
    for client, content in masked[:6]:
        assert [len(record) for record in content.array_records.values()] == [0]
        assert dict(content["fitres.metrics"]) == {"client": client, "round": 1}  # and no work
        assert dict(content["fitres.num_examples"]) == {"num_examples": 1}
        weight, vector = numbers_in(content[PROTOCOL]["masked_params"])
        level = (uploads[client] + 8) / 16 * SECURE.levels(6)
        assert np.abs(vector - level).min() > 2  # not the upload, in no entry
        assert weight[0] != SECURE.levels(6)
    # Nor does anything else that has come hold numbers of the upload's size.
    for _, now, reply in grid.seen:
        if now in STAGES and now != STAGES[2]:
            records = reply.content.config_records[PROTOCOL].values()
            assert not list(itertools.chain(*map(numbers_in, records)))
            assert not reply.content.array_records


def test_an_unmasked_array_beside_the_vector_is_not_read(log):
    def leak(client, now, reply):
        if (client, now) == (0, STAGES[2]):
            reply.content["fitres.parameters"] = ArrayRecord({"0": Array(np.ones(3))})

    start(grid=SecureGrid(tells=leak))
    assert "dropped the reply of client 0: its reply holds arrays that are not masked" in log.text


def test_a_sum_gives_away_no_part():
    column = Summed("delta", np.ones(2), 3, 10)
    with pytest.raises(AlgorithmError, match="'delta', and the server has only the sum"):
        column.part(0)


# --- nodes that die, or reply falsely ------------------------------------------------------------


@pytest.mark.parametrize("when", STAGES)
def test_a_node_dies_in_the_middle_of_a_round(when):
    """The round is that of those whose uploads are in the sum."""
    grid = SecureGrid(dies=[(2, when)])
    history = start(grid=grid)
    left = [f for j, f in enumerate(q6_objectives()) if j != 2 or when == "unmask"]
    assert np.abs(history.x - plain(left)).max() < SECURE.step("delta", 6)
    assert history["replies"][-1] == len(left)
    trained = [client for client, now in grid.asked_for if now == STAGES[2]]
    assert len(trained) == (6 if when in STAGES[2:] else 5)  # nobody trains twice for it


def test_a_round_with_too_few_is_asked_again_as_a_whole(log):
    """And what a client has done for the sum that did not come is pending, and dropped."""
    grid = SecureGrid(dies=[(2, STAGES[2])])
    history = start(COIN, grid, 3)
    assert np.abs(history.x - plain(q6_objectives(), COIN, 3)).max() < 30 * SECURE.step("v", 6)
    assert history["retries"][-1] == 1
    unmasked = [client for client, now in grid.asked_for if now == "unmask"]
    assert len(unmasked) == 18  # of the attempt that failed, nobody
    assert "dropped the reply of client 2: the client failed: it has died" in log.text


def test_a_node_that_comes_back_without_its_state_readmits_and_the_round_starts_over():
    forgot = []

    def forget(now, message, grid):
        trains = [c for c, asked in grid.asked_for if asked == STAGES[2]]
        if not forgot and len(trains) == 6 and now == STAGES[0]:  # in round 2
            forgot.extend(grid.nodes[1000].state)
            for name in forgot:
                del grid.nodes[1000].state[name]

    history = start(COIN, SecureGrid(asks=forget), 4)
    assert forgot
    assert history["lost"][-1] == 1


@pytest.mark.parametrize("now", STAGES)
@pytest.mark.parametrize("what", ["empty", "words", "numbers"])
def test_a_false_reply_ends_nothing(now, what):
    def broken(client, asked, reply):
        if (client, asked) == (0, now):
            record = reply.content[PROTOCOL]
            for key in list(record):
                if what == "empty":
                    del record[key]
                else:
                    record[key] = "?" * 40 if what == "words" else [7, 8]

    history = start(grid=SecureGrid(tells=broken))
    assert history["replies"][-1] == (6 if now == "unmask" else 5)
    assert np.isfinite(history.x).all()


# --- nodes that leave the range ------------------------------------------------------------------


def test_a_client_beyond_the_range_says_so_once_and_takes_no_more_part(log):
    near = q6_objectives()[:5]
    far = LeastSquares(np.ones((1, *near[0].shape)), np.array([1e6]))
    gradient, asked = far.gradient, []
    far.gradient = lambda x: asked.append(x) or gradient(x)
    history = start(grid=SecureGrid([*near, far]))
    assert np.abs(history.x - plain(near)).max() < SECURE.step("delta", 6)
    words = "dropped the reply of client 5: an entry of its upload lies beyond the range of the sum"
    assert words in log.text
    assert "1e+0" not in log.text.split(words)[1][:200]  # and not by how much
    asked.clear()
    history = start(grid=SecureGrid([*near, far]), rounds=3, retry=False, evaluate_every=1)
    assert history["replies"].tolist() == [5, 5, 5]
    assert len(asked) <= 3  # in the first round alone, whatever it would send later


def test_a_step_that_fails_is_told_as_a_value_beyond_the_range():
    """By the length of a step a server would else find a gradient's length, bit by bit."""
    made, grid = overflowing()
    assert start(made, grid, 2, evaluate_every=0)["replies"].tolist() == [5]
    told = [r for c, now, r in grid.seen if c == 5 and now == STAGES[2]]
    (error,) = {reply.content["fitres.metrics"]["error"] for reply in told}
    assert "lies beyond the range of the sum" in error


@pytest.mark.parametrize(
    ("values", "words"),
    [
        *(({"v": np.array([far, 0])}, "an entry of its upload lies beyond the range of the sum")
          for far in (4.01, np.nan, np.inf)),
        ({"w": np.zeros(2)}, r"this client uploads \['w'\], the server asked for \['v'\]"),
    ],
)  # fmt: skip
def test_a_client_checks_itself(values, words):
    with pytest.raises(ConfigError, match=words):
        scaled(values, {}, '{"ranges": {"v": 4.0}, "about": {}}')


def test_no_range_is_searched_for_in_a_run():
    """By a server that looks for the size of a client's upload: another range in each round."""
    ranges = (8.0 * 0.5 ** (k // 6) for k in itertools.count())

    def search(now, message, grid):
        if now == STAGES[2]:
            config = message.content["fitins.config"]
            config["sum"] = json.dumps(
                json.loads(config["sum"]) | {"ranges": {"delta": next(ranges)}}
            )

    words = "refused: the range of 'delta' is 8 in this run, not 4: a run has one"
    with pytest.raises(FedConError, match=words):
        start(grid=SecureGrid(asks=search), rounds=2, retry=False)


# --- nodes that insist ---------------------------------------------------------------------------


def test_a_policy_that_cannot_be_had_is_told_the_server():
    """Once the run is under way: the first message of a node is none of the protocol."""
    asked = []

    def policy(context):
        asked.append(context)
        if len(asked) > 6:
            raise ConfigError("policy.min-summed must be at least 1, got 0")
        return Policy()

    grid = FakeGrid(q6_objectives(), make=lambda load: client_app(load, policy=policy))
    with pytest.raises(FedConError, match=r"round 1.*policy\.min-summed must be at least 1"):
        start(grid=grid, retry=False)


@pytest.mark.parametrize(
    ("rule", "secure", "words"),
    [
        ({"min_summed": 4}, SECURE, None),
        ({"min_summed": 4}, None, r"policy.min-summed = 4, not its upload alone"),
        ({"min_summed": 4}, SecAggPlus(8.0, reconstruction_threshold=3),
         r"policy.min-summed = 4, not a sum of 3 clients"),
        ({}, SecAggPlus(1e-4), r"policy.min-range = 0.001, not 0.0001 of 'delta'"),
    ],
)  # fmt: skip
def test_a_node_may_insist_on_sums(rule, secure, words):
    grid = FakeGrid(q6_objectives(), make=lambda load: client_app(load, policy=Policy(**rule)))
    if words is None:
        assert start(grid=grid, secure=secure)["replies"][-1] == 6
        return
    with pytest.raises(FedConError, match=words):
        start(grid=grid, secure=secure, retry=False)


@pytest.mark.parametrize(
    ("when", "values", "words"),
    [
        ("unmask", {"dead_nids": [1000]}, "node 1000 both active and dead"),
        # Flower compares the lists' lengths with the threshold, not how many nodes they name.
        ("unmask", {"active_nids": lambda n: [1000] * len(n), "dead_nids": [*range(995, 1000)]},
         r"names node \d+ twice in one list"),
        (STAGES[2], {"srcs": lambda names: [names[0]] * len(names)},
         r"names node \d+ twice in one list"),
        (STAGES[2], {"record": "fitins.config", "action": "certify"},
         "uploads of rounds are summed, and not answers to cer"),
    ],
    ids=["key and seed", "unmask one", "mask with one", "certify"],
)  # fmt: skip
def test_a_node_answers_nothing_that_would_unmask_one(when, values, words):
    with pytest.raises(FedConError, match=words):
        start(grid=SecureGrid(asks=asking(when, **values)), retry=False)


def test_a_node_masks_its_vector_with_all_whose_keys_it_has():
    """One that masks it with a few, called dead later, would have it unmasked alone."""

    def spare(now, message, grid):
        if now == STAGES[2] and message.metadata.dst_node_id == 1000:
            for name in ("srcs", "ctxts"):
                message.content[PROTOCOL][name] = message.content[PROTOCOL][name][:3]

    grid = SecureGrid(asks=spare)
    start(grid=grid, retry=False)
    (told,) = [r.content for c, now, r in grid.seen if c == 0 and now == STAGES[2]]
    assert "has sent the keys of node 99" in told["fitres.metrics"]["error"]


# --- pages, configurations, a deployment ---------------------------------------------------------


def test_the_page_s_blocks():
    """The app builds, the bounds are those stated, and the node's file is a policy."""
    page, found = "docs/secure_aggregation.md", {}
    exec(compile(blocks("python", page)[0], page, "exec"), found)
    assert type(found["app"]).__name__ == "ServerApp"
    node = tomllib.loads(blocks("toml", page)[0])
    flat = {f"policy.{key}": value for key, value in node["policy"].items()}
    assert Policy.of(flat).min_summed == 3
    text = (ROOT / page).read_text(encoding="utf-8")
    for cohort, words in ((5, "3.0e-8"), (1000, "3.8e-6")):
        assert words in text
        assert SECURE.step("delta", cohort) == pytest.approx(float(words), rel=0.02)


GIVEN = {"secagg-clipping-range": 2.0, "secagg-num-shares": 5, "secagg-quantization-range": 64}


@pytest.mark.parametrize(
    ("config", "own", "found"),
    [
        ({}, SECURE, SECURE),
        (GIVEN, None, SecAggPlus(2.0, 5, quantization_range=64)),
        ({"secagg-clipping-range": 2, "secagg-num-shares": 0.5}, SECURE, SecAggPlus(2.0, 0.5)),
        ({"secagg": True, "secagg-num-shares": 5}, None, SecAggPlus(None, 5)),
        ({"secagg": False}, SECURE, SECURE),
    ],
)
def test_a_run_configuration_turns_it_on(config, own, found):
    assert apps._secure(config, own) == found
    with pytest.raises(ConfigError, match="secagg-num-shares must be a number, got 'all'"):
        apps._secure({**GIVEN, "secagg-num-shares": "all"}, None)


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_node_is_killed_in_the_middle_of_a_round(tmp_path):
    """Five nodes that insist on sums; one hangs in its second round, and is killed."""
    rng, targets = np.random.default_rng(0), []
    configs: list[dict[str, str | int]] = []
    for j in range(5):
        targets.append(rng.uniform(-2, 2, 6))
        np.savez(tmp_path / f"{j}.npz", A=np.sqrt(6) * np.eye(6), b=np.sqrt(6) * targets[j])
        data = {"data": str(tmp_path / f"{j}.npz"), "policy.min-summed": 3}
        configs.append({"partition-id": j, "num-partitions": 5, **data})
    hang, hanging = tmp_path / "hang", tmp_path / "hanging"
    configs[4]["hang"] = str(hang)
    more = {"evaluate_every": 0, "grace": 90.0, "secagg_clipping_range": 8.0}
    arguments = {"client_lr": 1.0, "local_steps": 1}
    config = run_config("FedAvg", arguments, 2, tmp_path / "out", **more)
    with Deployment(tmp_path, configs) as deployment:
        run = deployment.submit(APP, config)
        assert wait_until(lambda: "[ROUND 1/2] 5 of 5 replies" in run.output, 600), run.output
        hang.touch()
        assert wait_until(hanging.exists, 600), run.output
        deployment.kill_node(4)
        output = run.wait(600).output
    assert "[ROUND 2/2] 4 of 5 replies" in output
    x = model_of(tmp_path / "out")
    # A step of 1 leads to the mean of the minimisers of those in the sum: their optimum.
    assert np.abs(x - np.mean(targets[:4], axis=0)).max() < 2 * SecAggPlus(8.0).step("delta", 5)
