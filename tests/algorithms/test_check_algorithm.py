"""`check_algorithm`: what it finds in algorithms that do what they must not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from own_algorithm import Own, OwnClient
from problems import q6, q6_ball

from flower_fedcon import registry, simulate
from flower_fedcon.errors import AlgorithmError, RoundError, StateLostError
from flower_fedcon.registry import register
from flower_fedcon.schedules import Cosine
from flower_fedcon.strategies import FedAvg, FedFW, FedProx
from flower_fedcon.testing import CHECKS, check_algorithm, default_problem

STEPS = {"client_lr": 0.05, "local_steps": 2}


@pytest.fixture(autouse=True)
def _nothing_stays_registered(monkeypatch):
    monkeypatch.setattr(registry, "_own", {})


def made(server: dict[str, Any] | None = None, client: dict[str, Any] | None = None) -> Any:
    """Return the pair of one's own with some methods replaced, registered."""
    kind = type("Mine", (Own,), {"name": "mine", "__module__": __name__, **(server or {})})
    own = {"algorithm": "mine", "__module__": __name__, **(client or {})}
    register(kind, type("MineClient", (OwnClient,), own))
    return kind(**STEPS)


@pytest.mark.parametrize(
    "settings", [{"client_lr": Cosine(0.1, rounds=20)}, {"client_lr": 0.1, "batch_size": 5}]
)
def test_schedules_and_minibatches_are_no_fault(settings):
    check_algorithm(FedAvg(**settings))


def test_a_sound_pair_passes():
    check_algorithm(made())
    check_algorithm(made(), q6())
    check_algorithm(FedFW(q6_ball().constraint, penalty=1.0), q6_ball())


def test_it_is_silent_if_nothing_fails(caplog, capfd):
    check_algorithm(made())
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


def test_a_state_that_changes_in_place_is_named():
    def adds(self, state, uploads):
        state.w.__iadd__(uploads.mean("delta"))
        return state

    words = "state_unchanged: `aggregate` changes its state in place"
    with pytest.raises(AlgorithmError, match=words):
        check_algorithm(made({"aggregate": adds}))
    problem = q6()
    before = problem.start.copy()
    simulate(made({"aggregate": adds}), problem, 3)
    assert (problem.start == before).all()


def counts_rounds(self, state, uploads):
    self.seen = getattr(self, "seen", 0) + 1
    return Own.aggregate(self, state, uploads)


def draws_anew(self, state, down):
    noise = np.random.default_rng().standard_normal(down["w"].shape)
    return {"delta": 1e-9 * noise}, None


def hoards(self, state, down):
    self.hoard = getattr(self, "hoard", 0.0) + 1.0
    return {"delta": self.hoard * self.gradient(down["w"]) * -1e-3}, None


def widens(self, state, uploads):
    w, m = Own.aggregate(self, state, uploads)
    return type(state)(w.astype(np.float64), m)


def squares(self, state, down):
    w = down["w"]
    if w.ndim != 1:
        w = w.reshape(-1)
    return {"delta": -1e-2 * np.sort(self.gradient(down["w"]).reshape(w.shape)).reshape(
        down["w"].shape)[::-1]}, None  # fmt: skip


def clips(self, state, down):
    g = self.gradient(down["w"])
    return {"delta": -0.1 * g / max(1.0, float(np.linalg.norm(g)))}, None


def clips_each(self, state, down):
    g = self.gradient(down["w"])
    norm = np.sqrt((g * g).sum(axis=self.model_axes, keepdims=True))
    return {"delta": -0.1 * g / np.maximum(1.0, norm)}, None


def test_a_step_for_all_clients_at_once_looks_at_each():
    check_algorithm(made({}, {"step": clips_each}))
    registry._own.clear()
    with pytest.raises(AlgorithmError, match=r"^Mine fails 1 of 16 checks: same_stacked: .*axes"):
        check_algorithm(made({}, {"step": clips}))
    registry._own.clear()
    check_algorithm(made({}, {"step": clips, "one_at_a_time": "clips by one norm"}))


def grows(self, state, down):
    return {"delta": 1e200 * down["w"] + 1e200}, None


@pytest.mark.parametrize(
    ("server", "client", "words"),
    [
        ({"aggregate": counts_rounds}, {}, "strategy_unchanged: a run changes the bound one"),
        ({}, {"step": draws_anew}, "seeded: two runs with one seed differ"),
        ({}, {"step": hoards}, "same_through_records: round 2 .* the iterates differ over a wire"),
        ({}, {"step": hoards}, "lost_replies: a reply that was lost and repeated changes"),
        ({"aggregate": widens}, {}, "single_precision: "),
        ({}, {"step": squares}, "any_shape: a matrix has other iterates"),
        ({}, {"step": grows}, "finite_iterates, seeded.*: round 2: "),
        ({"uplink": ("delte",)}, {}, r"fails (1\d|9) of 16 checks"),
    ],
)
def test_what_is_wrong_is_named(server, client, words):
    with pytest.raises(AlgorithmError, match=f"^Mine fails .*{words}" if ":" in words else words):
        check_algorithm(made(server, client))


class Count(NamedTuple):
    """A state."""

    n: int


def test_state_that_starts_afresh_unnoticed_is_found():
    def step(self, state, down):
        return {"delta": self.gradient(down["w"]) * -1e-2}, Count(state.n + 1)

    def readmit(self, state, client):
        raise StateLostError("it is gone")

    client = {"state_type": Count, "step": step, "initialize": lambda self, down: Count(0)}
    with pytest.raises(AlgorithmError, match=r"1 of 16 checks: lost_state: the reason does not na"):
        check_algorithm(made({"readmit": readmit}, client))
    registry._own.clear()
    check_algorithm(made({}, client))  # the base names the algorithm


def test_it_says_what_does_not_fit():
    with pytest.raises(AlgorithmError, match=r"registered, .*: the problem does not fit: FedP"):
        check_algorithm(FedProx(proximal=1.0), q6_ball())
    with pytest.raises(AlgorithmError, match="registered: unknown algorithm 'own_momentum'"):
        check_algorithm(Own(**STEPS))
    assert default_problem(FedProx(proximal=1.0)).constraint is None
    assert len(CHECKS) == 16


def forgets_the_state(self, state, down):
    return {"delta": -0.1 * self.gradient(down["w"])}


def test_a_step_that_returns_no_pair_is_told_once_with_its_class():
    words = r"MineClient\.step returns a dict: let it return a pair"
    strategy = made({}, {"step": forgets_the_state})
    for engine in ("local", "stacked"):
        with pytest.raises(AlgorithmError, match=words):
            simulate(strategy, q6(), 1, engine=engine)
    with pytest.raises(AlgorithmError, match=words) as failed:
        check_algorithm(strategy)
    assert str(failed.value).count("returns a dict") == 1


def misspells(self, state, down):
    return {"delta": -0.1 * gradient(down["w"])}, None  # noqa: F821


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_an_error_of_a_step_is_told_first_with_its_line(engine):
    place = f"test_check_algorithm.py:{misspells.__code__.co_firstlineno + 1} in misspells"
    with pytest.raises(RoundError) as failed:
        simulate(made({}, {"step": misspells}), q6(), 1, engine=engine)
    cause, _, count = str(failed.value).partition("; so after 3 attempts ")
    assert cause.endswith(f": NameError: name 'gradient' is not defined ({place})")
    assert count == "there are 0 usable replies of 6, and 1 are needed"
