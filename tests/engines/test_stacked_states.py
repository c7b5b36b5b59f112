"""The states of all clients in arrays: whose memory is whose, and what is kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.core.acknowledgements import in_one_round
from flower_fedcon.engines.stacked_states import States
from flower_fedcon.sets.atoms import CoordinateAtom


class State(NamedTuple):
    x: Any
    y: Any


def test_states_that_share_memory_are_copied():
    """A step's new array is kept as it is only if nothing else that it returned lies in it."""
    states = States(State, 3, 1)
    new = np.ones((3, 4))
    for uploads, state, kept in [
        ((), State(np.ones((3, 4)), 1.0), True),
        ((CoordinateAtom(np.ones(3, int), 1.0, (3, 4), new.dtype),), State(new, 1.0), True),
        ((new[1:],), State(new, 1.0), False),
        ((), State(new, new), False),
        ((), State(new, new[:, :2]), False),
        ((), State(np.ones((4, 3)).T, 1.0), False),
    ]:
        states._arrays[0].clear()
        for _ in range(2):  # the first makes room
            states._write(0, slice(0, 3), state, uploads)
        assert (states._arrays[0]["x"] is state.x) == kept
        assert np.array_equal(states._arrays[0]["x"], state.x)
    states._write(0, slice(0, 2), State(np.zeros((2, 4)), 1.0))
    assert states._arrays[0]["x"].sum() == 4


def test_a_place_that_is_outdated_takes_no_memory():
    """What a step leaves may lie there; clients that then step alone find it empty, not missing."""
    states, clients, rows = States(State, 2, 1), np.arange(2), slice(0, 2)
    for last in (0, 1, 2):
        rounds = in_one_round(last, 2)
        if not states.acknowledge_everyone(rounds):
            assert states.acknowledge(clients, rounds).all()
            states.keys(clients, rounds)
        assert last == 0 or states.read(clients, rows).x.tolist() == [[last], [last]]
        assert [len(arrays) for arrays in states._arrays].count(0) == (2 if last == 0 else 1)
        states.set_pending(clients, rows, last + 1, State(np.full((2, 1), last + 1.0), 1.0), ())
        states.all_pending(last + 1)
    assert states.acknowledge_everyone(in_one_round(3, 2))
    states.set_pending(clients[:1], slice(0, 1), 4, State(np.full((1, 1), 4.0), 1.0), ())
    found = states.everyone(np.array([4, 3]))
    assert found.x.tolist() == [[4.0], [3.0]]
