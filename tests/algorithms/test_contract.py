"""What every registered algorithm must do; a pair is tested here by being registered.

`cases/` says for each algorithm on which problem, with which settings, how far it gets.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import cases
import contract
import numpy as np
import pytest
from contract import CONTRACTS, EACH, EACH_RULE, FIRST, build, strategy
from contract import rules as rules  # other tests take it from here
from harness import OpenRun, wire_exchange

from flower_fedcon import FederatedProblem, registry, simulate
from flower_fedcon.errors import AlgorithmError, ConfigError, FedConError, ParticipationError
from flower_fedcon.objectives import Quadratic
from flower_fedcon.registry import client_class, strategy_class
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball

TESTS = Path(__file__).parents[1]
FIGURES = [
    pytest.param(name, case, id=f"{name}-{case.id}")
    for name, contract in CONTRACTS.items()
    for case in contract.cases + contract.sampled
]


@pytest.mark.parametrize(("name", "case"), FIGURES)
def test_reaches_what_its_card_says(name, case):
    history = simulate(strategy(name, case), case.problem(), case.rounds, evaluate_every=0)
    assert case.low <= case.error(history.x) <= case.high


REFUSED = [
    pytest.param(name, rule, id=f"{name}-{rule}")
    for name, contract in CONTRACTS.items()
    for rule in contract.refuses
]


@pytest.mark.parametrize(("name", "participation"), REFUSED)
def test_cohorts_it_cannot_work_with_are_refused(name, participation):
    case = FIRST[name]
    with pytest.raises(ParticipationError, match=r"got (Sample|Bernoulli).*use "):
        simulate(strategy(name, case, participation=participation), case.problem(), 1)


@EACH_RULE
def test_records_carry_the_same_iterates(name, participation):
    """Through Flower's records and contexts, with a new client object for every message."""
    case = FIRST[name]
    made = strategy(name, case, participation=participation)
    run, direct = (OpenRun(made, case.problem()) for _ in range(2))
    exchange, _ = wire_exchange(run)
    for _ in range(12):
        run.round(exchange)
        direct.play()
        assert run.x.tobytes() == direct.x.tobytes()
    assert run.server.uplink_bytes == direct.server.uplink_bytes
    assert run.server.counts == direct.server.counts


@EACH_RULE
def test_invariants_hold_after_each_round(name, participation):
    check, case = CONTRACTS[name].invariant, FIRST[name]
    run = OpenRun(strategy(name, case, participation=participation), case.problem())
    for _ in range(40):
        run.play()
        assert run.x.shape == case.problem().x0.shape
        assert np.isfinite(run.x).all()
        if check is not None:
            check(run)


def small_problem(name: str, objectives: list[Any]) -> FederatedProblem:
    oracle, objectives = CONTRACTS[name].oracle, [CONTRACTS[name].wrap(o) for o in objectives]
    given = {"constraint": L1Ball(2.0), "regularizer": L1(0.1)}
    return FederatedProblem(objectives, **({oracle: given[oracle]} if oracle else {}))


def run_small(name: str, objectives: list[Any]) -> Any:
    problem = small_problem(name, objectives)
    return simulate(build(name, problem, **CONTRACTS[name].small), problem, 20).x


@EACH
def test_matrices_and_layers_are_vectors(name):
    """A model's shape is the user's affair: the iterates are those of the flat model."""
    rng = np.random.default_rng(3)
    flat = [Quadratic(np.eye(6) * (1 + j), rng.standard_normal(6)) for j in range(3)]
    expected = run_small(name, [Reshaped(o, [(6,)]) for o in flat])
    found = run_small(name, [Reshaped(o, [(2, 3)]) for o in flat])
    assert found.shape == (2, 3)
    assert found.ravel() == pytest.approx(expected, abs=1e-12)
    found = run_small(name, [Reshaped(o, [(2, 2), (2,)], layered=True) for o in flat])
    assert [layer.shape for layer in found] == [(2, 2), (2,)]
    assert np.concatenate([layer.ravel() for layer in found]) == pytest.approx(expected, abs=1e-12)


class Reshaped:
    """An objective on a matrix, or on a list of layers."""

    def __init__(self, objective: Any, shapes: list[tuple[int, ...]], *, layered: bool = False):
        self.objective, self.shapes, self.layered = objective, shapes, layered
        self.shape = shapes if layered else shapes[0]

    def _flat(self, x):
        return np.concatenate([a.ravel() for a in x]) if self.layered else x.ravel()

    def value(self, x):
        return self.objective.value(self._flat(x))

    def gradient(self, x):
        flat = self.objective.gradient(self._flat(x))
        ends = np.cumsum([np.prod(s) for s in self.shapes])[:-1]
        parts = [p.reshape(s) for p, s in zip(np.split(flat, ends), self.shapes, strict=True)]
        return parts if self.layered else parts[0]


@EACH
def test_single_precision_stays_single(name):
    rng = np.random.default_rng(4)
    data = [(np.eye(5) * (1 + j), rng.standard_normal(5)) for j in range(3)]
    double = run_small(name, [Quadratic(*d) for d in data])
    single = run_small(name, [Quadratic(*(a.astype(np.float32) for a in d)) for d in data])
    assert single.dtype == np.float32
    assert single == pytest.approx(double, abs=1e-4)


@EACH
def test_a_seed_fixes_every_byte_and_another_does_not(name):
    contract = CONTRACTS[name]
    case = contract.sampled[0] if contract.sampled else contract.cases[0]
    made = strategy(name, case)
    first, same, other = (
        simulate(made, case.problem(), 10, seed=s, evaluate_every=0).x for s in (1, 1, 2)
    )
    assert first.tobytes() == same.tobytes()
    if contract.sampled:
        assert first.tobytes() != other.tobytes()


@EACH
def test_arguments_out_of_range_are_refused(name):
    case = FIRST[name]
    for key, value in case.settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        for wrong in (-1, float("nan"), "many"):
            with pytest.raises(FedConError, match=key):
                strategy(name, case, **{key: wrong})
    with pytest.raises(FedConError, match="participation must be"):
        strategy(name, case, participation=0.5)
    with pytest.raises(FedConError, match="min_replies is 99, but there are"):
        simulate(strategy(name, case, min_replies=99), case.problem(), 1)


# --- what a pair's two files promise each other ---------------------------------------------------


def contents(value: Any) -> Any:
    """Return all that a value is made of, as it is now: two are equal if nothing has changed."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: contents(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [type(value), *map(contents, value)]
    if isinstance(value, type | FunctionType) or not hasattr(value, "__dict__"):
        return value
    if is_dataclass(value):  # its fields: what it has worked out from them may be kept
        return type(value), {f.name: contents(getattr(value, f.name)) for f in fields(value)}
    return type(value), contents(vars(value))


@EACH
def test_a_run_leaves_the_caller_s_strategy_as_it_is(name):
    case = FIRST[name]
    made = strategy(name, case)
    held, before = dict(vars(made)), contents(vars(made))
    simulate(made, case.problem(), 5)
    assert contents(vars(made)) == before
    assert all(value is held[key] for key, value in vars(made).items())


@EACH_RULE
def test_rounds_change_the_state_alone(name, participation):
    """What a bound strategy holds is settled before the first round."""
    case = FIRST[name]
    run = OpenRun(strategy(name, case, participation=participation), case.problem())
    bound, start = run.server.strategy, run.state
    held, before = dict(vars(bound)), contents(vars(bound))
    run.play(5)
    assert run.server.strategy is bound
    assert run.state is not start
    assert contents(vars(bound)) == before
    assert all(value is held[key] for key, value in vars(bound).items())


@EACH
def test_a_client_takes_exactly_the_fields_that_it_declares(name):
    case, kind = FIRST[name], client_class(name)
    problem = case.problem()
    info = OpenRun(strategy(name, case), problem).server.info
    assert info.settings.keys() == set(kind.fields)
    assert len(kind.fields) == len(set(kind.fields))
    client = kind(problem.objectives[0])
    client.configure(info)
    for field, value in info.settings.items():
        assert getattr(client, field) is value
        fewer = {key: other for key, other in info.settings.items() if key != field}
        with pytest.raises(ConfigError, match=rf"the settings of {name} without '{field}': run"):
            kind(problem.objectives[0]).configure(replace(info, settings=fewer))
    more = {**info.settings, "surplus": 1.0}
    with pytest.raises(ConfigError, match=rf"the settings of {name} with 'surplus': run"):
        kind(problem.objectives[0]).configure(replace(info, settings=more))


@EACH
def test_the_card_has_all_its_parts(name):
    parts = asdict(strategy_class(name).card())
    del parts["symbols"]  # where the code has the paper's own
    assert parts.keys() == {
        "title", "summary", "problem", "update", "state", "wire", "participation", "aggregation",
        "lost_state", "source",
    }  # fmt: skip
    assert [key for key, text in parts.items() if not text.strip()] == []
    assert "broadcast" in parts["update"] or name == "mcfedda"  # whose rounds are CFedDA's


@EACH
def test_a_misspelt_upload_ends_the_run_at_once(name, monkeypatch):
    case, kind = FIRST[name], client_class(name)
    step, asked = kind.step, []

    def misspelt(self, state, down):
        upload, after = step(self, state, down)
        asked.append(self)
        return {f"{key}_": value for key, value in upload.items()}, after

    monkeypatch.setattr(kind, "step", misspelt)
    run = OpenRun(strategy(name, case), case.problem())
    while not run.server.strategy.expects(run.state):  # rounds in which nothing is uploaded
        run.play()
    names = sorted(run.server.strategy.expects(run.state))
    words = (
        f"the client of {strategy_class(name).__name__} uploads {[f'{key}_' for key in names]}, "
        f"and {strategy_class(name).__name__} declares {names}: correct the names in "
        f"clients/{name}.py, or `uplink` in strategies/{name}.py"
    )
    asked.clear()
    before = run.x.copy()
    with pytest.raises(AlgorithmError, match=f"^{re.escape(words)}$"):
        run.play()
    assert asked == run.clients  # each of them once
    assert run.server.counts == {}
    assert run.x.tobytes() == before.tobytes()
    with pytest.raises(AlgorithmError, match=re.escape(words)):
        simulate(strategy(name, case), case.problem(), 100)


# --- a pair without a contract --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "lack"),
    [
        (None, "there is no such file"),
        ("FIGURES = []\n", "it defines no CONTRACT"),
        ("CONTRACT = {'cases': []}\n", "its CONTRACT is {'cases': []}"),
    ],
)
def test_an_algorithm_without_a_contract_is_told_what_to_write(
    written, lack, tmp_path, monkeypatch
):
    """Here, and where the tests are collected."""
    made_up = "fedmadeup"
    if written is not None:
        (tmp_path / f"{made_up}.py").write_text(written)
    monkeypatch.setattr(cases, "__path__", [*cases.__path__, str(tmp_path)])
    words = (
        rf"^{made_up} is registered, and tests/algorithms/cases/{made_up}\.py does not say what "
        rf"it is held to \({re.escape(lack)}\): write CONTRACT = Contract\(cases=.* "
        r"tests/algorithms/cases/fedavg\.py shows how"
    )
    try:
        with pytest.raises(contract.ContractError, match=words):
            contract.contract(made_up)
        monkeypatch.setattr(registry, "algorithms", lambda: {made_up: None})
        with pytest.raises(Exception, match=words):
            runpy.run_path(contract.__file__)
    finally:
        sys.modules.pop(f"cases.{made_up}", None)
    assert (TESTS / "algorithms" / "cases" / "fedavg.py").exists()
    assert (TESTS / "support" / "contract.py").samefile(contract.__file__)


def test_what_a_contract_fails_to_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "fedbroken.py").write_text("import no_such_module\n")
    monkeypatch.setattr(cases, "__path__", [*cases.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        contract.contract("fedbroken")
