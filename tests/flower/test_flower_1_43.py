"""What Flower 1.43 has and does otherwise; everything here passes on earlier versions, too."""

from __future__ import annotations

import inspect
import logging

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid
from flwr.serverapp.strategy import Strategy
from problems import avg, q6, q6_objectives

from flower_fedcon import EarlyStopping, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.strategies import FedAvg

pytestmark = on_grid


def test_a_predicate_stops_a_run_and_sees_each_round(log):
    seen = []

    def should_stop(server_round, result):
        seen.append((server_round, result.evaluate_metrics_clientapp[server_round]["objective"]))
        assert len(result.arrays) == 1
        return server_round == 3

    result = avg().start(FakeGrid(q6_objectives()), num_rounds=5, should_stop=should_stop)
    assert [number for number, _ in seen] == [1, 2, 3]
    assert result.history.stopped
    assert result.history.x.tobytes() == simulate(avg(), q6(), 3).x.tobytes()
    assert seen[-1][1] == result.history["objective"][-1]
    assert "stopped at round 3: the callback should_stop returned True" in log.text


def test_it_is_asked_after_recorded_rounds():
    seen = []
    options = {"should_stop": lambda number, result: seen.append(number), "evaluate_every": 2}
    avg().start(FakeGrid(q6_objectives()), num_rounds=5, **options)
    assert seen == [2, 4, 5]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"should_stop": EarlyStopping(0.1)}, r"EarlyStopping and other .* start.callbacks="),
     ({"should_stop": 3}, "a function of a round's number and the result, as in Flower, got 3"),
     ({"should_stop": lambda *_: True, "evaluate_every": 0}, "give evaluate_every=1")],
)  # fmt: skip
def test_what_it_cannot_be(options, words):
    with pytest.raises(ConfigError, match=words):
        avg().start(FakeGrid(q6_objectives()), num_rounds=2, **options)


def test_in_a_private_run_it_would_tell_of_the_data():
    privacy = GaussianDP(noise_multiplier=1.0, clip=1.0, target_delta=1e-5)
    strategy = FedAvg(client_lr=0.1, local_steps=1, privacy=privacy)
    with pytest.raises(ConfigError, match="the number of rounds would reveal"):
        strategy.start(FakeGrid(q6_objectives()), should_stop=lambda *_: True)


def test_start_takes_all_arguments_of_flower_s_in_their_places():
    flowers = [*inspect.signature(Strategy.start).parameters]
    ours = [*inspect.signature(FedAvg.start).parameters]
    assert ours[: len(flowers)] == flowers


def test_replies_are_pulled_in_each_version_s_way():
    """The argument was renamed, and may be given by its place alone."""

    class Renamed(FakeGrid):
        def pull_messages(self, reply_to_message_ids=None, *, message_ids=None):
            assert message_ids is None
            return super().pull_messages(reply_to_message_ids)

    result = avg().start(Renamed(q6_objectives()), num_rounds=2)
    assert result.history.x.tobytes() == simulate(avg(), q6(), 2).x.tobytes()


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_message_that_cannot_be_sent_is_named(nothing, log):
    """Of which Flower gives no id: None, or an empty one."""

    class Losing(FakeGrid):
        def push_messages(self, messages):
            ids = super().push_messages(messages)
            lost = [m for m in messages if m.content.get("fitins.config", {}).get("client") == 2]
            for message in lost:
                if message.content["fitins.config"]["action"] == "train":
                    ids[list(messages).index(message)] = nothing
                    message.metadata.__dict__["_message_id"] = nothing or ""
            return ids

    history = avg().start(Losing(q6_objectives()), num_rounds=1, round_deadline=1.0).history
    assert history["replies"].tolist() == [5]
    assert "client 2 (the message to it could not be sent" in log.text


def test_a_reply_whose_objects_are_gone_is_named_at_once(log):
    """Flower leaves it out at each pull, and says so in its log alone."""

    class Gone(FakeGrid):
        def pull_messages(self, message_ids):
            told = logging.getLogger("flwr")
            kept = []
            for key in message_ids:
                config = self.pushed[int(key[1:])].content.get("fitins.config", {})
                if (config.get("action"), config.get("client")) == ("train", 2):
                    told.error("Message %s objects unavailable: %s", "abc", "no such object")
                else:
                    kept.append(key)
            return super().pull_messages(kept)

    options = {"num_rounds": 1, "timeout": 60.0, "round_deadline": 1.0}
    history = avg().start(Gone(q6_objectives()), **options).history
    assert history["replies"].tolist() == [5]
    assert np.isfinite(history.x).all()
    words = "its reply cannot be read: Message abc objects unavailable: no such object"
    assert words in log.text
    assert history["seconds"][-1] < 30
