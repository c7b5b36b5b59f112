"""Secure aggregation: sums by Flower's SecAgg+, and what a server sees, uses and refuses."""

from __future__ import annotations

import io
import itertools
import json
import tomllib

import numpy as np
import pytest
from deployment import Deployment
from fake_grid import FakeGrid, on_grid
from flwr.app import Error, Message
from pages import ROOT, blocks
from problems import q6_objectives
from processes import wait_until
from row_nodes import APP, model_of, run_config

from flower_fedcon import FederatedProblem, Policy, Sample, client_app, simulate
from flower_fedcon.core.summed import Summed
from flower_fedcon.errors import AlgorithmError, ConfigError, FedConError
from flower_fedcon.flower import apps
from flower_fedcon.flower.secagg_node import scaled
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.regularizers import Indicator
from flower_fedcon.sets import L2Ball
from flower_fedcon.strategies import FedAvg, FedMiD, Scaffnew

SECURE = SecAggPlus(clipping_range=8.0)
STEPS = FedAvg(client_lr=0.1, local_steps=3)
STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")


def stage(message):
    """Return the stage of the protocol that a message asks for; None for another message."""
    configs = message.content.config_records.get("secaggplus_configs")
    return None if configs is None else configs.get("stage")


class SecureGrid(FakeGrid):
    """Keeps what reaches the server, and lets nodes die: `dies` has (node's client, stage)."""

    def __init__(self, objectives, dies=(), **more):
        super().__init__(objectives, **more)
        self.dies, self.seen, self.asked_for = list(dies), [], []

    def replies_to(self, message):
        now, client = stage(message), 1000 - message.metadata.dst_node_id
        self.asked_for.append((client, now))
        if (client, now) in self.dies:
            self.dies.remove((client, now))
            return [Message(Error(0, "it has died"), reply_to=message)]
        found = super().replies_to(message)
        self.seen += [(client, now, reply) for reply in found]
        return found


def numbers_in(value):
    """Yield every array that some bytes hold, or that a list of them holds."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from numbers_in(one)
    elif isinstance(value, bytes) and value.startswith(b"\x93NUMPY"):
        yield np.load(io.BytesIO(value))


# --- the same iterates, within the tolerance -----------------------------------------------------


@on_grid
@pytest.mark.parametrize("cohort", [None, 4])
def test_a_sum_is_that_of_the_plain_run_within_its_step(cohort, log):
    more = {} if cohort is None else {"participation": Sample(count=cohort)}
    strategy = FedAvg(client_lr=0.1, local_steps=3, **more)
    plain = simulate(strategy, FederatedProblem(q6_objectives()), 1)
    result = strategy.start(FakeGrid(q6_objectives()), num_rounds=1, secure_aggregation=SECURE)
    off = np.abs(result.history.x - plain.x).max()
    assert 0 < off < SECURE.step("delta", cohort or 6)
    assert f"is off by less than {SECURE.step('delta', cohort or 6):.1e} (delta)" in log.text
    assert result.history["replies"][-1] == (cohort or 6)
    assert result.history["uplink_bytes"][-1] > 1000 * (cohort or 6)  # keys and shares, too


@on_grid
def test_the_error_is_that_of_the_levels():
    """Coarse levels, so that it can be seen: unbiased, and below a step."""
    coarse = SecAggPlus(clipping_range=8.0, quantization_range=2**10)
    strategy = FedAvg(client_lr=0.1, local_steps=1)
    plain = simulate(strategy, FederatedProblem(q6_objectives()), 1).x
    errors = [
        strategy.start(FakeGrid(q6_objectives()), num_rounds=1, secure_aggregation=coarse).history.x
        - plain
        for _ in range(3)
    ]
    assert 1e-4 < np.abs(errors).max() < coarse.step("delta", 6) == 16 / 1024


# --- what the server sees ------------------------------------------------------------------------


@on_grid
def test_the_server_never_holds_a_single_upload():
    grid = SecureGrid(q6_objectives())
    strategy = FedAvg(client_lr=0.1, local_steps=3, min_replies=3)
    strategy.start(grid, num_rounds=2, secure_aggregation=SECURE)
    plain = SecureGrid(q6_objectives())
    strategy.start(plain, num_rounds=1)
    uploads = {
        client: next(numbers_in([a.data for a in reply.content["fitres.parameters"].values()]))
        for client, _, reply in plain.seen
        if "fitres.parameters" in reply.content and len(reply.content["fitres.parameters"])
    }
    assert sorted(uploads) == list(range(6))
    masked = [(c, r.content) for c, s, r in grid.seen if s == STAGES[2]]
    assert len(masked) == 12
    for client, content in masked[:6]:
        assert [len(record) for record in content.array_records.values()] == [0]
        assert dict(content["fitres.metrics"]) == {"client": client, "round": 1}  # and no work
        assert dict(content["fitres.num_examples"]) == {"num_examples": 1}
        weight, vector = numbers_in(content["secaggplus_configs"]["masked_params"])
        level = (uploads[client] + 8) / 16 * SECURE.levels(6)
        assert np.abs(vector - level).min() > 2  # not the upload, in no entry
        assert weight[0] != SECURE.levels(6)
    # Nor does anything else that has come hold numbers of the upload's size.
    for _, now, reply in grid.seen:
        if now in STAGES and now != STAGES[2]:
            records = reply.content.config_records["secaggplus_configs"].values()
            assert not list(itertools.chain(*map(numbers_in, records)))
            assert not reply.content.array_records


@on_grid
def test_an_unmasked_array_beside_the_vector_is_not_read(log):
    class Leaky(SecureGrid):
        def replies_to(self, message):
            now, found = stage(message), super().replies_to(message)
            if now == STAGES[2] and message.metadata.dst_node_id == 1000:
                found[0].content["fitres.parameters"] = plain_arrays()
            return found

    STEPS.start(Leaky(q6_objectives()), num_rounds=1, secure_aggregation=SECURE)
    assert "dropped the reply of client 0: its reply holds arrays that are not masked" in log.text


def plain_arrays():
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({"0": Array(np.ones(3))})


def test_a_sum_gives_away_no_part():
    column = Summed("delta", np.ones(2), 3, 10)
    with pytest.raises(AlgorithmError, match="'delta', and the server has only the sum"):
        column.part(0)


# --- nodes that die ------------------------------------------------------------------------------


@on_grid
@pytest.mark.parametrize("when", STAGES)
def test_a_node_dies_in_the_middle_of_a_round(when):
    """The round is that of those whose uploads are in the sum."""
    grid = SecureGrid(q6_objectives(), dies=[(2, when)])
    result = STEPS.start(grid, num_rounds=1, secure_aggregation=SECURE)
    left = [f for j, f in enumerate(q6_objectives()) if j != 2 or when == "unmask"]
    expected = simulate(STEPS, FederatedProblem(left), 1).x
    assert np.abs(result.history.x - expected).max() < SECURE.step("delta", 6)
    assert result.history["replies"][-1] == len(left)
    trained = [client for client, now in grid.asked_for if now == STAGES[2]]
    assert len(trained) == (6 if when in STAGES[2:] else 5)  # nobody trains twice for it


@on_grid
def test_a_round_with_too_few_is_asked_again_as_a_whole(log):
    """And what a client has done for the sum that did not come is pending, and dropped."""
    grid = SecureGrid(q6_objectives(), dies=[(2, STAGES[2])])
    strategy = Scaffnew(client_lr=0.1, communication_probability=0.5)  # needs everyone
    result = strategy.start(grid, num_rounds=3, secure_aggregation=SECURE)
    plain = simulate(strategy, FederatedProblem(q6_objectives()), 3)
    assert np.abs(result.history.x - plain.x).max() < 30 * SECURE.step("v", 6)
    assert result.history["retries"][-1] == 1
    unmasked = [client for client, now in grid.asked_for if now == "unmask"]
    assert len(unmasked) == 18  # of the attempt that failed, nobody
    assert "dropped the reply of client 2: the client failed: it has died" in log.text


@on_grid
def test_a_node_that_comes_back_without_its_state_readmits_and_the_round_starts_over():
    class Forgetful(SecureGrid):
        forgot = False

        def replies_to(self, message):
            trains = [c for c, now in self.asked_for if now == STAGES[2]]
            if not self.forgot and len(trains) == 6 and stage(message) == STAGES[0]:  # in round 2
                self.forgot = True
                for name in [*self.nodes[1000].state]:
                    del self.nodes[1000].state[name]
            return super().replies_to(message)

    strategy = Scaffnew(client_lr=0.1, communication_probability=0.5)
    grid = Forgetful(q6_objectives())
    result = strategy.start(grid, num_rounds=4, secure_aggregation=SECURE)
    assert (grid.forgot, result.history["lost"][-1]) == (True, 1)


# --- nodes that leave the range, and nodes that insist -------------------------------------------


@on_grid
def test_a_client_beyond_the_range_takes_no_part_and_says_so(log):
    objectives = [*q6_objectives()[:5], LeastSquares(1e4 * np.eye(3), np.ones(3))]
    shape = q6_objectives()[0].shape
    objectives[5] = LeastSquares(np.ones((1, *shape)), np.array([1e6]))
    result = STEPS.start(FakeGrid(objectives), num_rounds=1, secure_aggregation=SECURE)
    expected = simulate(STEPS, FederatedProblem(objectives[:5]), 1).x
    assert np.abs(result.history.x - expected).max() < SECURE.step("delta", 6)
    words = "dropped the reply of client 5: an entry of its upload lies beyond the range of the sum"
    assert words in log.text
    assert "1e+0" not in log.text.split(words)[1][:200]  # and not by how much


class Searching(SecureGrid):
    """A server that looks for the size of a client's upload: another range in each round."""

    def __init__(self, *given, ranges, **more):
        super().__init__(*given, **more)
        self.ranges = iter(ranges)

    def replies_to(self, message):
        if stage(message) == "collect_masked_vectors":
            config = message.content.config_records["fitins.config"]
            asked = json.loads(config["sum"])
            config["sum"] = json.dumps(asked | {"ranges": {"delta": next(self.ranges)}})
        return super().replies_to(message)


@on_grid
def test_no_range_is_searched_for_in_a_run():
    halved = (8.0 * 0.5 ** (k // 6) for k in itertools.count())
    grid = Searching(q6_objectives(), ranges=halved)
    words = "refused: the range of 'delta' is 8 in this run, not 4: a run has one"
    with pytest.raises(FedConError, match=words):
        STEPS.start(grid, num_rounds=2, max_retries=0, secure_aggregation=SECURE)


@on_grid
def test_a_range_below_a_node_s_own_is_refused_before_it_has_trained():
    fine = SecAggPlus(clipping_range=1e-4)
    grid = FakeGrid(q6_objectives(), make=lambda load: client_app(load, policy=Policy()))
    with pytest.raises(FedConError, match=r"policy.min-range = 0.001, not 0.0001 of 'delta'"):
        STEPS.start(grid, num_rounds=1, max_retries=0, secure_aggregation=fine)


@on_grid
def test_a_client_beyond_the_range_says_so_once_and_takes_no_more_part():
    objectives = q6_objectives()
    far = LeastSquares(np.ones((1, *objectives[0].shape)), np.array([1e6]))
    grid = SecureGrid([*objectives[:5], far])
    gradient, asked = far.gradient, []
    far.gradient = lambda x: asked.append(x) or gradient(x)
    history = STEPS.start(
        grid, num_rounds=3, max_retries=0, evaluate_every=1, secure_aggregation=SECURE
    ).history
    assert history["replies"].tolist() == [5, 5, 5]
    assert len(asked) <= 3  # in the first round alone, whatever it would send later


def overflowing(privacy=None):
    """Return a method whose step fails on rows with a long gradient, and nodes: one has such."""
    shape = q6_objectives()[0].shape
    nothing = LeastSquares(np.zeros((1, *shape)), np.zeros(1))
    long = LeastSquares(np.full((1, *shape), 30.0), np.ones(1))
    ball, most = Indicator(L2Ball(1.0)), 1.7e308
    made = FedMiD(
        ball, client_lr=most, local_steps=1, server_prox_only=False, privacy=privacy, server_lr=1.0
    )
    return made, SecureGrid([*[nothing] * 5, long])


@on_grid
def test_a_step_that_fails_is_told_as_a_value_beyond_the_range(log):
    """By the length of a step a server would else find a gradient's length, bit by bit."""
    made, grid = overflowing()
    history = made.start(grid, num_rounds=2, evaluate_every=0, secure_aggregation=SECURE).history
    assert history["replies"].tolist() == [5]
    told = [r for c, now, r in grid.seen if c == 5 and now == "collect_masked_vectors"]
    errors = {reply.content["fitres.metrics"]["error"] for reply in told}
    assert len(errors) == 1
    assert "lies beyond the range of the sum" in errors.pop()


@on_grid
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
        STEPS.start(grid, num_rounds=1, max_retries=0, secure_aggregation=SECURE)


@on_grid
def test_a_node_may_insist_on_sums(log):
    def make(load):
        return client_app(load, policy=Policy(min_summed=4))

    result = STEPS.start(
        FakeGrid(q6_objectives(), make=make), num_rounds=1, secure_aggregation=SECURE
    )
    assert result.history["replies"][-1] == 6
    with pytest.raises(FedConError, match=r"policy.min-summed = 4, not its upload alone"):
        STEPS.start(FakeGrid(q6_objectives(), make=make), num_rounds=1, max_retries=0)
    low = SecAggPlus(clipping_range=8.0, reconstruction_threshold=3)
    with pytest.raises(FedConError, match=r"policy.min-summed = 4, not a sum of 3 clients"):
        STEPS.start(
            FakeGrid(q6_objectives(), make=make),
            num_rounds=1,
            max_retries=0,
            secure_aggregation=low,
        )


@on_grid
def test_a_node_gives_its_key_or_its_seed_and_never_both():
    class Greedy(SecureGrid):
        def replies_to(self, message):
            if stage(message) == "unmask":
                message.content["secaggplus_configs"]["dead_nids"] = [1000]
            return super().replies_to(message)

    with pytest.raises(FedConError, match="node 1000 both active and dead"):
        STEPS.start(Greedy(q6_objectives()), num_rounds=1, max_retries=0, secure_aggregation=SECURE)


@on_grid
@pytest.mark.parametrize(
    ("now", "name"), [("unmask", "active_nids"), ("collect_masked_vectors", "srcs")]
)
def test_a_list_of_one_name_repeated_unmasks_nobody(now, name):
    """Flower compares the lists' lengths with the threshold, and not how many nodes they name."""

    class Repeating(SecureGrid):
        def replies_to(self, message):
            if stage(message) == now:
                asked_of = message.content["secaggplus_configs"]
                asked_of[name] = [asked_of[name][0]] * len(asked_of[name])
                if now == "unmask":
                    asked_of["dead_nids"] = sorted({*self.nodes} - {*asked_of[name]})
            return super().replies_to(message)

    with pytest.raises(FedConError, match=r"names node \d+ twice in one list"):
        STEPS.start(
            Repeating(q6_objectives()), num_rounds=1, max_retries=0, secure_aggregation=SECURE
        )


@on_grid
def test_a_node_masks_its_vector_with_all_whose_keys_it_has():
    """One that masks it with a few, called dead later, would have it unmasked alone."""

    class Sparing(SecureGrid):
        def replies_to(self, message):
            if stage(message) == "collect_masked_vectors" and message.metadata.dst_node_id == 1000:
                asked_of = message.content["secaggplus_configs"]
                for name in ("srcs", "ctxts"):
                    asked_of[name] = asked_of[name][:3]
            return super().replies_to(message)

    grid = Sparing(q6_objectives())
    STEPS.start(grid, num_rounds=1, max_retries=0, secure_aggregation=SECURE)
    ((told, *_),) = [
        [r.content for c, now, r in grid.seen if c == 0 and now == "collect_masked_vectors"]
    ]
    assert "has sent the keys of node 99" in told["fitres.metrics"]["error"]


@on_grid
def test_no_other_answer_than_an_upload_is_summed():
    class Curious(SecureGrid):
        def replies_to(self, message):
            if stage(message) == "collect_masked_vectors":
                message.content["fitins.config"]["action"] = "certify"
            return super().replies_to(message)

    with pytest.raises(FedConError, match="uploads of rounds are summed, and not answers to cer"):
        STEPS.start(
            Curious(q6_objectives()), num_rounds=1, max_retries=0, secure_aggregation=SECURE
        )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        *(
            ({"v": np.array([far, 0])}, "an entry of its upload lies beyond the range of the sum")
            for far in (4.01, np.nan, np.inf)
        ),
        ({"w": np.zeros(2)}, r"this client uploads \['w'\], the server asked for \['v'\]"),
    ],
)
def test_a_client_checks_itself(values, words):
    with pytest.raises(ConfigError, match=words):
        scaled(values, {}, '{"ranges": {"v": 4.0}, "about": {}}')


# --- false replies -------------------------------------------------------------------------------


@on_grid
@pytest.mark.parametrize("now", STAGES)
@pytest.mark.parametrize("what", ["empty", "words", "numbers"])
def test_a_false_reply_ends_nothing(now, what, log):
    class Broken(SecureGrid):
        def replies_to(self, message):
            asked_now = stage(message)
            found = super().replies_to(message)
            if asked_now == now and message.metadata.dst_node_id == 1000:
                record = found[0].content["secaggplus_configs"]
                for key in list(record):
                    if what == "empty":
                        del record[key]
                    else:
                        record[key] = "?" * 40 if what == "words" else [7, 8]
            return found

    result = STEPS.start(Broken(q6_objectives()), num_rounds=1, secure_aggregation=SECURE)
    assert result.history["replies"][-1] == (6 if now == "unmask" else 5)
    assert np.isfinite(result.history.x).all()


def test_the_page_s_blocks():
    """The app builds, the bounds are those stated, and the node's file is a policy."""
    page = "docs/secure_aggregation.md"
    found = {}
    exec(compile(blocks("python", page)[0], page, "exec"), found)
    assert type(found["app"]).__name__ == "ServerApp"
    node = tomllib.loads(blocks("toml", page)[0])
    flat = {f"policy.{key}": value for key, value in node["policy"].items()}
    assert Policy.of(flat).min_summed == 3
    text = (ROOT / page).read_text(encoding="utf-8")
    for cohort, words in ((5, "3.0e-8"), (1000, "3.8e-6")):
        assert words in text
        assert SECURE.step("delta", cohort) == pytest.approx(float(words), rel=0.02)


def test_a_run_configuration_turns_it_on():
    assert apps._secure({}, SECURE) is SECURE
    given = {"secagg-clipping-range": 2.0, "secagg-num-shares": 5, "secagg-quantization-range": 64}
    assert apps._secure(given, None) == SecAggPlus(2.0, 5, quantization_range=64)
    half = {"secagg-clipping-range": 2, "secagg-num-shares": 0.5}
    assert apps._secure(half, SECURE) == SecAggPlus(2.0, 0.5)
    assert apps._secure({"secagg": True, "secagg-num-shares": 5}, None) == SecAggPlus(None, 5)
    assert apps._secure({"secagg": False}, SECURE) is SECURE
    with pytest.raises(ConfigError, match="secagg-num-shares must be a number, got 'all'"):
        apps._secure({**given, "secagg-num-shares": "all"}, None)


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
    arguments, secured = {"client_lr": 1.0, "local_steps": 1}, {"secagg_clipping_range": 8.0}
    more = {"evaluate_every": 0, "grace": 90.0, **secured}
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
