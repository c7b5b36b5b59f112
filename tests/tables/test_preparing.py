"""The exchanges that prepare tables, against clients that answer anything, or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon.core.protocol import Reply
from flower_fedcon.errors import RoundError
from flower_fedcon.tables import Schema, Table
from flower_fedcon.tables.agreeing import STAGES, Preparing
from flower_fedcon.tables.builders import prepare
from flower_fedcon.tables.packed_text import packed_text

SCHEMA = Schema("y", {"x": "numeric", "c": "categorical"})


def client(seed):
    rng = np.random.default_rng(seed)
    marks = np.array(["a", "b", ""])[rng.integers(0, 3, size=(9, 1))]
    return Table("t", SCHEMA, rng.normal(size=9), None, rng.normal(size=(9, 1)), marks)


CLIENTS = [client(0), client(1)]


def preparing(alter, retries=1):
    """Two clients, of which the second one's answers are altered at first."""
    asked = []

    def answer(request):
        asked.append((request.round, tuple(request.clients)))
        replies = []
        for c in request.clients:
            told = CLIENTS[c].answer(STAGES[request.round - 1], request.broadcast)
            reply = Reply([c], request.round, {k: [v] for k, v in told.items()}, remote=True)
            replies.append(alter(reply) if c == 1 and len(asked) == alter.first else reply)
        return [reply for reply in replies if reply is not None]

    return Preparing(SCHEMA, ["0", "1"], answer, max_retries=retries), asked


def change(name, value, first=1):
    def alter(reply):
        reply.payload[name] = [value]
        return reply

    alter.first = first
    return alter


def other(make, first=1):
    def alter(reply):
        return make(reply)

    alter.first = first
    return alter


FAULTS = {
    "no number": change("sums", np.array([np.nan])),
    "too large": change("sums", np.array([1e101])),
    "another shape": change("sums", np.zeros(2)),
    "another type": change("observed", np.zeros(1, dtype=np.int64)),
    "half a row": change("observed", np.array([1.5])),
    "fewer than none": change("rows", -1.0),
    "a word": change("rows", np.zeros(1, dtype=np.uint8)),
    "no JSON": change("categories", np.frombuffer(b"{", dtype=np.uint8)),
    "deep JSON": change("categories", np.frombuffer(b"[" * 10**5, dtype=np.uint8)),
    "no names": change("categories", packed_text({"c": [1]})),
    "another column": change("categories", packed_text({"secret": ["a"]})),
    "more than asked": change("more", np.zeros(1)),
    "another exchange": other(lambda r: Reply(r.clients, 2, r.payload)),
    "an error": other(lambda r: Reply(r.clients, r.round, error="disk full")),
    "nothing": other(lambda r: None),
    "a negative square": change("squares", np.array([-1.0]), first=2),
    "a negative count": change("counts", np.array([-1.0, 3.0]), first=2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_cannot_be_used_is_asked_for_again(fault):
    alter = FAULTS[fault]
    exchanges, asked = preparing(alter)
    found = exchanges.agree()
    assert asked.count((alter.first, (1,))) == 1  # of that client alone
    right = prepare(CLIENTS, ["0", "1"])
    assert found.means.tobytes() == right.means.tobytes()
    assert found.scales.tobytes() == right.scales.tobytes()
    assert found.uplink_bytes == right.uplink_bytes
    exchanges, _ = preparing(alter, retries=0)
    with pytest.raises(RoundError, match=r"needs every client's answer \(client 1: "):
        exchanges.agree()
