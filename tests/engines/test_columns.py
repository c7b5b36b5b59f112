"""The local engine's answers in columns."""

import pytest

from flower_fedcon.engines.local import _in_columns as in_columns


def test_alike_payloads_are_one_reply() -> None:
    (reply,) = in_columns([1, 4], 3, [{"a": 1.0, "b": 2.0}, {"b": 4.0, "a": 3.0}], ())
    assert (reply.clients, reply.round) == ([1, 4], 3)
    assert reply.payload == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


@pytest.mark.parametrize("other", [{"b": 2.0}, {"a": 2.0, "b": 2.0}, {}])
def test_payloads_of_other_names_are_replies_of_their_own(other: dict[str, float]) -> None:
    """The gate names the one that differs."""
    replies = in_columns([0, 1], 3, [{"a": 1.0}, other], ({"evaluations": 1.0}, {}))
    assert [reply.clients for reply in replies] == [[0], [1]]
    assert [reply.payload for reply in replies] == [
        {"a": [1.0]},
        {name: [value] for name, value in other.items()},
    ]
    assert [list(reply.work) for reply in replies] == [[{"evaluations": 1.0}], [{}]]
