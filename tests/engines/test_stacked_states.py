"""The arrays of the stacked engine's states: whose memory is whose, also in the mirror."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from harness import OpenRun
from test_stacked import made, objectives, opened
from test_stacked_faults import Faulty

from flower_fedcon import compiled as door
from flower_fedcon.clients.scaffold import ScaffoldClient
from flower_fedcon.core.acknowledgements import Versions, in_one_round
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.engines import local, stacked
from flower_fedcon.engines.stacked_states import States
from flower_fedcon.sets.atoms import CoordinateAtom


def scaffold(**settings: Any) -> tuple[OpenRun, Any]:
    """Return a run and an engine, one of whose clients may upload what is bad."""
    run = OpenRun(*made("scaffold", objectives("least squares"), **settings))
    engine = opened(Faulty, run)
    engine.bad = {}
    return run, engine


def of_clients(run: OpenRun, engine: Any) -> list[Any]:
    """What the clients hold, as far as the server has acknowledged it."""
    rounds = run.server.acknowledgements.rounds.tolist()
    states = [engine._states.acknowledged(j, last) for j, last in enumerate(rounds)]
    return [np.zeros_like(run.state.c) if state is None else state.c for state in states]


def hostile(seed: int) -> list[tuple[bytes, ...]]:
    """What the server holds after each of some rounds in which uploads are bad and states go."""
    run, engine = scaffold(min_replies=5)
    rng, seen = np.random.default_rng(seed), []
    for now in range(1, 31):
        event, client = rng.choice(["calm", "bad", "lost", "restarted"], p=[0.6, 0.2, 0.1, 0.1]), 3
        if event in ("lost", "restarted"):
            states, engine = engine.save(), opened(Faulty, run)
            gone = [client] if event == "lost" else []
            engine.load([Versions() if j in gone else v for j, v in enumerate(states)])
        engine.bad = {now: client} if event == "bad" else {}
        run.round(engine)
        mirror = run.state.mirror.rows["c"]
        for own, held in zip(mirror, of_clients(run, engine), strict=True):
            assert own.tobytes() == held.tobytes(), (now, event)
        seen.append((run.x.tobytes(), run.state.c.tobytes(), mirror.tobytes()))
    assert {"dropped", "lost"} <= run.server.counts.keys()
    return seen


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_it_holds_bit_for_bit_what_the_uploads_would_make_of_it(seed, compiled, monkeypatch):
    if compiled:
        monkeypatch.setattr(door, "WORTHWHILE", 0)
    found = hostile(seed)
    monkeypatch.setattr(Uploads, "held", lambda *_, **__: None)
    assert found == hostile(seed)


def test_it_has_the_clients_array_until_a_reply_is_dropped():
    """Then it moves by what the others have sent; and the engine has states in two places."""
    run, engine = scaffold(min_replies=5)
    engine.bad = {3: 2}
    for now, shared in enumerate([True, True, False, False], start=1):
        run.round(engine)
        held = [arrays.get("c") for arrays in engine._states._arrays]
        rows = run.state.mirror.rows["c"]
        assert any(rows is array for array in held) == shared, now
        assert np.shares_memory(rows, run.state.mirror.own("c")) == (now == 3)


class Clipping(ScaffoldClient):
    """Its c_i is not what the server makes of its upload."""

    def upload(self, state, down, done):
        sent, after = super().upload(state, down, done)
        return sent, after._replace(c=np.clip(after.c, -0.1, 0.1))


class Forgetful(ScaffoldClient):
    """Its c_i is one array for all clients, as large as an array with an entry for each."""

    def upload(self, state, down, done):
        sent, after = super().upload(state, down, done)
        return sent, after._replace(c=np.zeros_like(down["x"]))


class Louder(ScaffoldClient):
    """It sends another upload than that which its c_i follows."""

    def step(self, state, down):
        sent, after = super().step(state, down)
        return {"delta": 1.5 * sent["delta"]}, after


@pytest.mark.parametrize("kind", [Clipping, Forgetful, Louder])
def test_clients_of_ones_own_are_followed_by_what_they_send(kind, monkeypatch):
    monkeypatch.setattr(stacked, "client_class", lambda _: kind)
    monkeypatch.setattr(local, "client_class", lambda _: kind)
    found = []
    for engine in (local.LocalEngine, stacked.StackedEngine):
        run = OpenRun(*made("scaffold", objectives("least squares", 6)))
        clients = opened(engine, run)
        for _ in range(3):
            run.round(clients)
        found.append(run.state.mirror.rows["c"])
    assert found[0].shape == found[1].shape
    assert np.abs(found[0] - found[1]).max() <= 1e-12


def test_who_writes_copies_first():
    rows = np.zeros((2, 3))
    mirror = Mirror({"c": np.ones((2, 3))})
    mirror.take(c=rows)
    assert mirror.rows["c"] is rows
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = 1.0
    mirror.add([1], c=np.ones((1, 3)))
    assert rows.sum() == 0
    assert mirror.rows["c"].sum() == 3


def test_states_that_the_mirror_has_are_copied_before_some_change():
    """A client that is readmitted alone, say: what it gets may be anything to the engine."""
    run, engine = scaffold()
    run.round(engine)
    states, mirror = engine._states, run.state.mirror.rows["c"]
    before, last = mirror.copy(), np.array([1])
    assert states.acknowledge(np.arange(7), np.ones(7, int)).all()
    other = states.read(np.array([4]), slice(4, 5))._replace(c=np.full((1, 6), 9.0))
    states.readmit(np.array([4]), slice(4, 5), last, other)
    assert states.acknowledged(4, 1).c.tolist() == [9.0] * 6
    assert mirror.tobytes() == before.tobytes()
    assert states.acknowledged(3, 1).c.tobytes() == before[3].tobytes()


# --- states alone ---------------------------------------------------------------------------------


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
