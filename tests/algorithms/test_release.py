"""What a server needs of its clients' uploads: their sum, where the method says so."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from contract import CONTRACTS, FIRST, strategy
from harness import OpenRun

from flower_fedcon import Full, Sample
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.round import Round
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.registry import algorithms, strategy_class

HALF, WITHOUT = Sample(fraction=0.5), {"mirror": False}
WINDOW = {"window": 2, "amplification": 1.5}
PLAIN = {"uplink": None, "downlink": None}
SUMS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"participation": Full()}) for name in (
        "fedavg", "fedmid", "feddualavg", "fastfedda", "cfedda", "mcfedda", "averagedfw", "fedlin",
        "fedprox", "sdane", "scaffnew", "apdainexact", "fedpd", "fedfw", "fedfwplus", "fednewton",
        "fedmls",
    )),
    ("fedexprox", {"extrapolation": "constant"}),
    ("fedsgm", PLAIN), ("fedsgm", {**PLAIN, "participation": HALF}),
    *((name, {"participation": HALF}) for name in (
        "fedavg", "fedmid", "feddualavg", "fastfedda", "cfedda", "mcfedda", "averagedfw",
        "fedprox", "sdane",
    )),
    ("fastfedda", {"output": "average"}),
    ("scaffold", {**WITHOUT, "option": "I"}), ("scaffold", {**WITHOUT, "participation": HALF}),
    ("scaffold", {**WITHOUT, **WINDOW, "participation": HALF}), ("fedavg", WINDOW),
    ("feddyn", WITHOUT), ("feddyn", {**WITHOUT, "participation": HALF}),
    ("fivegcs", WITHOUT), ("fivegcs", {**WITHOUT, "participation": HALF}),
    ("feddr", WITHOUT), ("feddr", {**WITHOUT, "participation": HALF}),
    ("dualfl", WITHOUT), ("dualfl", {**WITHOUT, "participation": HALF}),
    ("dualfl", {**WITHOUT, "participation": HALF, "form": "block", "momentum": None}),
    ("compositefl", WITHOUT),
    ("frecon", WITHOUT), ("frecon", {**WITHOUT, "participation": HALF, "variant": "cofig"}),
]  # fmt: skip
SINGLE: list[tuple[str, dict[str, Any]]] = [
    ("scaffold", {}), ("scaffold", WINDOW), ("feddyn", {}), ("fivegcs", {}), ("feddr", {}),
    ("dualfl", {}),
    ("dualfl", {"participation": HALF}), ("compositefl", {}), ("compositefl", {"participation":
    Sample(count=3)}), ("fedfw", {"participation": HALF}), ("fedfwplus", {"participation": HALF}),
    ("fednewton", {"participation": HALF}), ("fedexprox", {"extrapolation": "diversity"}),
    ("fedproxal", {}), ("tamuna", {}), ("locodl", {}), ("frecon", {}),
    ("frecon", {"participation": HALF, "variant": "cofig"}),
]  # fmt: skip
NOT_PRIVATE = [
    case
    for case in SUMS
    if case[0] in ("fedsgm", "fednewton", "fedmls", "frecon")
    or case == ("sdane", {"participation": HALF})
]
PRIVATE = [case for case in SUMS if case not in NOT_PRIVATE]


def shown(case):
    name, settings = case
    return "-".join([name, *(str(value) for value in settings.values())])


def mixed(uploads: Uploads) -> Uploads:
    """Return other uploads of the same clients with the same sum.

    Each client has another's; of arrays, more than that.
    """
    columns = {}
    for name in uploads._replies[0].payload:
        values = uploads[name]
        columns[name] = turned = values[1:] + values[:1]
        if all(isinstance(v, np.ndarray | float) for v in values):
            columns[name] = [1.5 * v - 0.5 * w for v, w in zip(values, turned, strict=True)]
    reply = copy.copy(uploads._replies[0])
    reply.clients, reply.payload = list(uploads.clients), columns
    return Uploads([reply], uploads.num_clients)


def arrays(value: Any) -> list[np.ndarray]:
    """Return all numbers of a state."""
    if isinstance(value, Mirror):
        value = value.rows
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, tuple | list):
        return [array for part in value for array in arrays(part)]
    return [] if value is None or isinstance(value, str) else [np.asarray(value, dtype=float)]


def suited(name: str, settings: dict[str, Any]) -> Any:
    """Return the first case; sampled the last, for the first may have two clients only."""
    sampled = isinstance(settings.get("participation"), Sample)
    return CONTRACTS[name].cases[-1] if sampled else FIRST[name]


def both(name: str, settings: dict[str, Any]) -> tuple[OpenRun, list[np.ndarray], list[np.ndarray]]:
    """Return a run after two rounds, and the server's state after a third, and after its mixture.

    A second phase has gone by, where there is one.
    """
    case = suited(name, settings)
    run = OpenRun(strategy(name, case, **settings), case.problem()).play(3)
    round_ = Round.begin(run.server)
    while (request := round_.next_request()) is not None:
        round_.take(run.answer(request))
    uploads, made, state = round_.uploads(), run.server.strategy, run.state
    found = [made.aggregate(copy.deepcopy(state), each) for each in (uploads, mixed(uploads))]
    return run, arrays(found[0]), arrays(found[1])


def distance(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    assert len(one) == len(other)
    return max(
        float(np.abs(a - b).max(initial=0)) / max(1.0, float(np.abs(a).max(initial=0)))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("case", SUMS, ids=shown)
def test_where_the_sum_is_enough_other_uploads_with_it_do_the_same(case):
    run, state, other = both(*case)
    assert run.server.strategy.why_single() == ""
    assert distance(state, other) < 1e-11


@pytest.mark.parametrize("case", SINGLE, ids=shown)
def test_where_it_is_not_they_do_something_else(case):
    run, state, other = both(*case)
    assert run.server.strategy.why_single() != ""
    assert distance(state, other) > 1e-9


@pytest.mark.parametrize("name", algorithms())
def test_every_method_says_which_it_needs(name):
    release = strategy_class(name).release
    assert not (release.single and (release.form or release.about))
    assert set(release.about) <= set(strategy_class(name).uplink)
    run, state, other = both(name, {})
    why = run.server.strategy.why_single()
    assert bool(why) <= bool(release.form or release.single)
    assert why or distance(state, other) < 1e-11


@pytest.mark.parametrize("name", [n for n in algorithms() if strategy_class(n).release.about])
def test_points_lie_about_a_value_of_the_broadcast(name):
    run = OpenRun(strategy(name, FIRST[name]), FIRST[name].problem()).play(2)
    sent = run.server.strategy.broadcast(run.state)
    assert CONTRACTS[name]  # every one has a case
    for center in strategy_class(name).release.about.values():
        assert sent[center].shape == run.x.shape


def test_compressed_uploads_are_refused_although_their_sum_would_do():
    run, state, other = both("fedsgm", {})
    assert "Identity()" in run.server.strategy.why_single()
    assert distance(state, other) < 1e-11
