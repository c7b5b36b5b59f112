"""Clients whose numbers overflow within a local step: shorter steps, the same in every engine."""

from __future__ import annotations

import numpy as np
import pytest
from fake_grid import FakeGrid, on_grid

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.core import answers
from flower_fedcon.core.protocol import Reply, Request
from flower_fedcon.engines.blocks import _told as told_by_worker
from flower_fedcon.engines.local import served
from flower_fedcon.errors import ConfigError, DivergedError, NotFiniteError, RoundError
from flower_fedcon.flower.codec import encode_reply
from flower_fedcon.flower.incoming import Fault, Parts, reply
from flower_fedcon.objectives import Quadratic
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.registry import strategy_class
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L2Ball
from flower_fedcon.strategies import FedAvg, FedMiD, Scaffold

PSI = L1(1e-2)
PROX = "FedMiD", "FedDualAvg", "FastFedDA", "CFedDA", "MCFedDA", "CompositeFL"


class Quartic:
    """x^4/4 + x^2/200 - b'x, which states no L: it bends more and more."""

    shape = (2,)

    def __init__(self, b):
        self.b = np.array(b)

    def value(self, x):
        return float((x**4 / 4 + x**2 / 200 - self.b * x).sum())

    def gradient(self, x):
        return x**3 + x / 100 - self.b


def problem(psi=PSI):
    clients = [Quartic([0.2, b]) for b in (0.1, 0.3, 0.5, 0.7)]
    return FederatedProblem(clients, regularizer=psi)


@pytest.fixture
def too_small(monkeypatch):
    """Let every estimate be so small that a local pass overflows."""
    right = answers.estimate

    def small(*of, **how):
        found = right(*of, **how)
        return found._replace(smoothness=found.smoothness * 1e-4)

    monkeypatch.setattr(answers, "estimate", small)


@pytest.mark.parametrize("name", [*PROX, "FedAvg", "Scaffold"])
@pytest.mark.usefixtures("too_small")
def test_steps_are_shortened(name, caplog):
    """Before, the prox's error ended the run."""
    psi, kind = PSI if name in PROX else None, strategy_class(name)
    strategy = kind(psi, local_steps=8) if psi else kind(local_steps=8)
    with np.errstate(all="ignore"):
        history = simulate(strategy, problem(psi), 40)
    assert "the run starts again from x0" in caplog.text
    assert "no longer finite" in caplog.text
    assert history["objective"].min() < -0.05
    assert (history["objective"][-1] < 0) != ("no lower than at the start" in caplog.text)


@pytest.mark.parametrize("race", [{"client_lr": "auto"}, {"local_steps": "auto"}], ids=str)
@pytest.mark.usefixtures("too_small")
def test_a_race_of_values_that_overflow_goes_on(race, tmp_path):
    """If all of them do, the run goes on by its rules, with shorter steps; and so when resumed."""
    strategy = FedMiD(PSI, **{"local_steps": 8} | race)
    with np.errstate(all="ignore"):
        whole = simulate(strategy, problem(), 80)
        for rounds in (3, 9, 80):
            part = simulate(strategy, problem(), rounds, run_dir=tmp_path, resume=True)
    assert whole["objective"][-1] < -0.05
    assert not any(row["chosen"] for row in whole.race)
    assert part.x.tobytes() == whole.x.tobytes()
    assert part.race == whole.race


@on_grid
@pytest.mark.usefixtures("too_small")
def test_nodes_do_the_same(caplog):
    with np.errstate(all="ignore"):
        here = simulate(FedMiD(PSI, local_steps=8), problem(), 30, evaluate_every=0)
        again = caplog.text.count("are no longer finite")
        assert again
        grid = FakeGrid(problem().objectives)
        there = FedMiD(PSI, local_steps=8).start(grid, num_rounds=30, evaluate_every=0)
    assert there.history.x.tobytes() == here.x.tobytes()
    assert caplog.text.count("are no longer finite") == 2 * again


class Wall:
    """c x - log x, which states no L, and has no gradient where x <= 0."""

    shape = (2,)

    def __init__(self, c):
        self.c = c

    def value(self, x):
        return float((self.c * x - np.log(x)).sum())

    def gradient(self, x):
        return self.c - 1 / x if (x > 0).all() else np.full_like(x, np.nan)


class Steep:
    """A sum of cosh(a x), whose units of x are tiny: it overflows within 1e-8 of the start."""

    shape = (2,)

    def __init__(self, a):
        self.a = a

    def value(self, x):
        return float((np.cosh(self.a * x) - self.a * x / 2).sum())

    def gradient(self, x):
        return self.a * (np.sinh(self.a * x) - 0.5)


BEYOND = pytest.mark.parametrize(
    ("clients", "start"),
    [
        ([Wall(c) for c in (1.0, 2.0, 3.0)], 1.0),
        ([Wall(c) for c in (1.0, 2.0, 3.0)], 100.0),
        ([Steep(1e11 * a) for a in (1.0, 0.5, 2.0)], 0.0),
    ],
    ids=["wall", "far from it", "steep"],
)


@pytest.mark.parametrize("name", ["auto", Scaffold, FedAvg])
@BEYOND
def test_points_without_a_gradient_are_steps_that_are_too_far(clients, start, name, caplog):
    """L is estimated from nearer points; before, the run ended with an error about the start."""
    given = FederatedProblem(clients, x0=np.full(2, start))
    with np.errstate(all="ignore"):
        history = simulate(name if name == "auto" else name(local_steps=5), given, 20)
    assert history["objective"].max() <= given.objective(given.x0)
    assert history["objective"][-1] < given.objective(given.x0)
    assert "no certificate" not in caplog.text


@on_grid
@BEYOND
def test_so_they_are_on_nodes(clients, start, caplog):
    given, strategy = FederatedProblem(clients, x0=np.full(2, start)), FedAvg(local_steps=5)
    with np.errstate(all="ignore"):
        here = simulate(strategy, given, 5, evaluate_every=0)
        there = strategy.start(FakeGrid(clients), given.x0, num_rounds=5, evaluate_every=0)
    assert there.history.x.tobytes() == here.x.tobytes()
    assert "no certificate" not in caplog.text


@pytest.mark.parametrize("fails_at", [1, 2, 5])
def test_a_client_that_fails_is_still_named(fails_at):
    """Its point is not at fault, be it at the start or later."""

    class Failing(Wall):
        calls = 0

        def gradient(self, x):
            self.calls += 1
            if self.calls >= fails_at:
                raise OSError("the disk is full")
            return super().gradient(x)

    given = FederatedProblem([Wall(1.0), Failing(2.0)], x0=np.ones(2))
    with pytest.raises(RoundError, match=r"client_lr.*scales were not told by client 1: OSError"):
        simulate(Scaffold(), given, 5)


def diverging(privacy=None):
    clients = [Quadratic(np.diag([1.0, 4.0]), np.array([b, 1.0])) for b in range(4)]
    made = FedMiD(PSI, client_lr=1e100, local_steps=9, privacy=privacy)
    return made, FederatedProblem(clients, regularizer=PSI)


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_with_steps_of_ones_own_the_error_is_that_of_divergence(engine):
    said = r"0 usable replies of 4.*L1 got a value that is not finite"
    with np.errstate(all="ignore"), pytest.raises(DivergedError, match=said):
        simulate(*diverging(), 5, engine=engine)


def test_of_a_private_run_no_more_is_told():
    privacy = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
    with np.errstate(all="ignore"), pytest.raises(RoundError, match="usable replies") as found:
        simulate(*diverging(privacy), 5)
    assert not isinstance(found.value, DivergedError)


class Failing:
    """A client that fails as it is told."""

    work = {}  # noqa: RUF012

    def __init__(self, error):
        self.error = error

    def serve(self, *_):
        raise self.error


FAULTS = [
    (NotFiniteError("L1 got inf"), True),
    (OverflowError("math range error"), True),
    (FloatingPointError("overflow encountered in exp"), True),
    (ConfigError("no such column"), False),
    (ZeroDivisionError("division by zero"), False),
]


@pytest.mark.parametrize(("error", "diverged"), FAULTS)
def test_the_mark_travels_with_the_reply(error, diverged):
    """From a client to a worker's reply, over the wire, to what the server takes."""
    kept = np.zeros(1, np.int64)
    request = Request([0], 1, kept, {}, kept)
    (made,) = served(request, lambda _: Failing(error), told_by_worker)
    assert made.diverged is diverged
    arrays, examples, config = encode_reply(made)
    found = reply(0, 10, lambda: Parts(arrays, examples, 0.0, config))
    assert isinstance(found, Fault)
    assert found.diverged is diverged
    assert str(error) in found.reason


@pytest.mark.parametrize("mark", [1, "yes", None, 2.0])
def test_a_mark_in_another_form_is_a_fault_as_well(mark):
    _, _, config = encode_reply(Reply([0], 1, error="L1 got inf", diverged=True))
    found = reply(0, 10, lambda: Parts([], 1, 0.0, config | {"diverged": mark}))
    assert isinstance(found, Fault)
    assert not found.diverged


@pytest.mark.parametrize("owner", [PSI, L2Ball(1.0)], ids=repr)
def test_oracles_say_which_values_are_not_finite(owner):
    call = owner.prox if owner is PSI else lambda v, _: owner.project(v)
    with pytest.raises(NotFiniteError, match="not finite"):
        call(np.array([1.0, np.inf]), 1.0)
