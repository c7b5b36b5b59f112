"""A node answers whatever a server sends it: with an upload, or with the reason why not."""

from __future__ import annotations

import json
import logging
import random

import fuzzing
import numpy as np
import pytest
from contract import EACH, FIRST, strategy
from flwr.app import Context, RecordDict
from harness import OpenRun

from flower_fedcon import Policy
from flower_fedcon.core.round import Round
from flower_fedcon.flower.codec import RequestEncoder
from flower_fedcon.registry import client_class

pytestmark = pytest.mark.fuzz

ODD = [
    "", None, -1, 0, 1, 2**70, float("nan"), float("inf"), 1e308, True, b"\x00", "x", [1, 2], "{}",
    '[[[8]], "float64", false]', '[[[100000000000]], "float64", false]', "[" * 5000, 10**18,
]  # fmt: skip
ODD_SETTINGS = [
    None, -1, 1e400, "x", [], {}, {"type": "L1Ball", "radius": 1.0},
    {"type": "L1", "weight": 1e308}, {"array": "settings.9"}, 10**30,
    {"type": "AOGM", "max_iterations": 2**70},
]  # fmt: skip


def changed(rng, arrays, config):
    """Change one or two things of a message in place."""
    for _ in range(rng.randint(1, 2)):
        kind = rng.randrange(8)
        if kind < 4:
            config[rng.choice(list(config))] = rng.choice(ODD)
        elif kind < 5:
            config.pop(rng.choice(list(config)))
        elif kind < 7 and arrays:
            j = rng.randrange(len(arrays))
            a = arrays[j]
            odd = [a * np.nan, a * 1e300, a.astype("i4"), np.zeros((2, 2)), np.zeros(0), a.sum()]
            arrays[j] = np.asarray(rng.choice(odd))
        elif str(config.get("settings", "")).startswith('{"'):
            settings = json.loads(config["settings"])
            settings[rng.choice(list(settings))] = rng.choice(ODD_SETTINGS)
            config["settings"] = json.dumps(settings)


@EACH
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_node_answers_whatever_it_is_sent(name, caplog):
    caplog.set_level(logging.CRITICAL, "flwr")
    case, rng = FIRST[name], random.Random(name)
    run = OpenRun(strategy(name, case), case.problem()).play()
    whole, common = RequestEncoder(run.server.info).encode(
        Round.begin(run.server).next_request(), 0
    )
    policy = Policy(phases="train,query,certify,evaluate", max_seconds=5)
    answers = []
    count = max(80, fuzzing.CASES // 20)  # for each of the algorithms
    for _ in range(count):
        arrays, config = [a.copy() for a in whole.values()], dict(common)
        changed(rng, arrays, config)
        context = Context(1, 1, {}, RecordDict(), {})
        client = client_class(name)(run.problem.objectives[0], context=context, policy=policy)
        answers.append(client.fit(arrays, config)[2])
        loss, _, said = client.evaluate([np.zeros(8)], config)
        assert ("error" in said) == (loss != loss)
    failed = [answer for answer in answers if "error" in answer]
    assert all(answer["error"] for answer in failed)
    assert count / 8 < len(failed) < count
