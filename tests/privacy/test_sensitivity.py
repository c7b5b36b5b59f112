"""How far one client moves what is released, over every private method, form and type."""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from contract import strategy
from harness import OpenRun
from test_release import PRIVATE, shown, suited

from flower_fedcon import simulate
from flower_fedcon.core.round import Round
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.privacy.clipping import rows
from flower_fedcon.privacy.noise import Grid
from flower_fedcon.registry import strategy_class
from flower_fedcon.schedules import Inverse
from flower_fedcon.strategies.families.local_steps import LocalSteps

Z, CLIP = 0.3, 0.05
RADIUS = Fraction(2**31 * CLIP) / Fraction(Z * CLIP)


class OneRound:
    """A first round with everyone, whose uploads can be changed before they are summed."""

    def __init__(self, case):
        name, settings = case
        first = suited(name, settings)
        made = strategy(name, first, **settings, privacy=GaussianDP(CLIP, Z, 1e-5))
        self.run = OpenRun(made, first.problem())
        self.run.server.private.cohort = lambda: list(range(self.run.server.setup.num_clients))
        self.round = Round.begin(self.run.server)
        while (request := self.round.next_request()) is not None:
            self.round.take(self.run.answer(request))
        self.names = self.round.dispatch.names

    def columns(self):
        """Return what each client uploads, by name: (clients, *shape)."""
        replies = self.round.dispatch.used
        return {
            name: np.concatenate([rows(r.payload[name], len(r.clients)) for r in replies])
            for name in self.names
        }

    def total(self, columns, dtype, stacked):
        """Return the sum without noise, in steps, as whole numbers of any size."""
        n = len(next(iter(columns.values())))
        typed = {name: column.astype(dtype) for name, column in columns.items()}
        payload = typed if stacked else {name: list(column) for name, column in typed.items()}
        reply = replace(
            copy.copy(self.round.dispatch.used[0]), clients=list(range(n)), payload=payload
        )
        down = {
            k: v.astype(dtype) if isinstance(v, np.ndarray) else v
            for k, v in self.round.dispatch.broadcast.items()
        }
        private = self.run.server.private
        about = {n: down[private._about[n]] for n in self.names if n in private._about}
        seen = []
        patched = pytest.MonkeyPatch()
        with patched.context() as patch:
            patch.setattr(Grid, "noise", lambda grid, size: np.zeros(size, np.int64))
            patch.setattr(Grid, "value", lambda grid, k: seen.append(k) or k * grid.step)
            private._noised([reply], self.names, about, 1)
        return seen[0].astype(object)


def hold(one, rng):
    """Change one client's upload, or leave it out; hold the sum to the clip, exactly."""
    columns, dtype = one.columns(), rng.choice([np.float32, np.float64])
    stacked = bool(rng.integers(2))
    n = len(next(iter(columns.values())))
    whole = one.total(columns, dtype, stacked)
    who, scale = int(rng.integers(n)), 10.0 ** rng.uniform(-4, 12)
    if n > 1:
        absent = {name: np.delete(column, who, axis=0) for name, column in columns.items()}
        moved = whole - one.total(absent, dtype, stacked)
        assert sum(k * k for k in moved) <= RADIUS**2
    for name, column in columns.items():
        columns[name] = column.copy()
        columns[name][who] = scale * rng.standard_normal(column.shape[1:])
    moved = whole - one.total(columns, dtype, stacked)
    assert sum(k * k for k in moved) <= 4 * RADIUS**2


@pytest.mark.parametrize("case", PRIVATE, ids=shown)
def test_one_client_moves_the_sum_by_the_clip(case):
    one, rng = OneRound(case), np.random.default_rng(0)
    for _ in range(8):
        hold(one, rng)


@pytest.mark.nightly
@pytest.mark.parametrize("case", PRIVATE, ids=shown)
def test_one_client_never_moves_the_sum_by_more_in_a_hundred_thousand_cases(case):
    one, rng = OneRound(case), np.random.default_rng()
    for _ in range(100_000 // len(PRIVATE)):
        hold(one, rng)


@pytest.mark.parametrize("case", PRIVATE, ids=shown)
def test_what_changes_nothing_is_about_the_broadcast(case):
    one = OneRound(case)
    private, names = one.run.server.private, one.names
    parts = private.nothing(names, one.round.dispatch.broadcast)
    columns = {name: np.stack(part) for name, part in parts.items()}
    before = one.columns()
    assert {n: (c.dtype, c.shape[1:]) for n, c in columns.items()} == {
        n: (c.dtype, c.shape[1:]) for n, c in before.items()
    }
    assert not one.total(columns, next(iter(before.values())).dtype, True).any()


def scheduled(name, first, settings):
    """Return settings with a schedule in place of a client_lr, where a method takes one."""
    kind, lr = strategy_class(name), {**first.settings, **settings}.get("client_lr")
    takes = issubclass(kind, LocalSteps) and not kind.needs_constant_lr and isinstance(lr, float)
    return {**settings, "client_lr": Inverse(lr, 0.5)} if takes else settings


EVERYONE = [case for case in PRIVATE if "Sample" not in shown(case)]  # others are drawn by no seed


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize("case", EVERYONE, ids=shown)
def test_next_to_no_noise_follows_the_run_without(case, engine):
    """Schedules too: what a round's uploads say of the round is what it was."""
    name, settings = case
    first = suited(name, settings)
    settings = scheduled(name, first, settings)
    quiet = GaussianDP(clip=1e4, noise_multiplier=1e-12, target_delta=1e-5)
    found = [
        simulate(strategy(name, first, **settings, privacy=rule), first.problem(), 4,
                 engine=engine, evaluate_every=0).x
        for rule in (None, quiet)
    ]  # fmt: skip
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-6)
