"""What every registered algorithm must do; a pair is tested here by being registered.

`cases/` says for each algorithm on which problem, with which settings, how far it gets.
"""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import cases
import contract
import numpy as np
import pytest
from contract import CONTRACTS, EACH, FIRST, late_rules, rules, strategy
from harness import OpenRun
from nightly import nightly

from flower_fedcon import registry, simulate
from flower_fedcon.card import PARAGRAPHS
from flower_fedcon.errors import AlgorithmError, FedConError, ParticipationError
from flower_fedcon.problems.fitting import scope_in
from flower_fedcon.registry import client_class, strategy_class
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball
from flower_fedcon.testing import CHECKS, default_problem
from flower_fedcon.validation import parameters

TESTS = Path(__file__).parents[1]
FORMS = ["any_shape", "single_precision"]
FIGURES = [
    (nightly if case.at_night else pytest.param)(name, case, id=f"{name}-{case.id}")
    for name, contract in CONTRACTS.items()
    for case in contract.cases + contract.sampled
]


@pytest.mark.parametrize(("name", "case"), FIGURES)
def test_reaches_what_its_card_says(name, case):
    """All clients of a round at once, where a step can; first rounds are worked out by hand."""
    made = strategy(name, case)
    history = simulate(made, case.problem(), case.rounds, evaluate_every=0, engine="stacked")
    assert case.low <= case.error(history.x) <= case.high


def models(strategy, problem, rounds):
    """Return the model after each round."""
    return [simulate(strategy, problem, r).x.item() for r in range(1, rounds + 1)]


ROUNDS = [
    pytest.param(rounds, id=f"{name}-{rounds.__name__}")
    for name, contract in CONTRACTS.items()
    for rounds in contract.first_rounds
]


@pytest.mark.parametrize("case", ROUNDS)
def test_first_rounds(case):
    strategy, problem, expected = case()
    assert models(strategy, problem, len(expected)) == pytest.approx(expected, rel=1e-13)


@EACH
def test_every_algorithm_has_a_hand_computed_round(name):
    assert {rounds()[0].name for rounds in CONTRACTS[name].first_rounds} == {name}


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


KEPT = [
    pytest.param(name, rule, id=f"{name}-{rule}")
    for name, contract in CONTRACTS.items()
    for rule in (rules(name) + late_rules(name) if contract.invariant else [])
]


@pytest.mark.parametrize(("name", "participation"), KEPT)
def test_invariants_hold_after_each_round(name, participation):
    case = FIRST[name]
    run = OpenRun(strategy(name, case, participation=participation), case.problem())
    for _ in range(40):
        CONTRACTS[name].invariant(run.play())


@EACH
@pytest.mark.parametrize("check", [check for check in CHECKS if check not in FORMS])
def test_every_algorithm(name, check):
    """What `flower_fedcon.testing` checks, on the first case of each."""
    case = FIRST[name]
    CHECKS[check](strategy(name, case), case.problem())


@EACH
@pytest.mark.parametrize("check", FORMS)
def test_forms_of_a_model(name, check):
    """On the small problems, as `check_algorithm` does without a problem."""
    contract = CONTRACTS[name]
    oracle = {"constraint": L1Ball(2.0), "regularizer": L1(0.1)}
    given = {contract.oracle: oracle[contract.oracle]} if contract.oracle else {}
    if contract.oracle is None and "regularizer" in parameters(strategy_class(name)):
        given = {"regularizer": None}
    made = strategy_class(name)(**given, **contract.small)
    CHECKS[check](made, default_problem(made))


@pytest.mark.parametrize("name", [name for name, held in CONTRACTS.items() if held.sampled])
def test_another_seed_draws_other_cohorts(name):
    """One seed fixes every byte: `CHECKS` say that."""
    case = CONTRACTS[name].sampled[0]
    made = strategy(name, case)
    one, other = (simulate(made, case.problem(), 10, seed=s, evaluate_every=0).x for s in (1, 2))
    assert one.tobytes() != other.tobytes()


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
    with pytest.raises(FedConError, match=r"min_replies must be at most .* got 99"):
        simulate(strategy(name, case, min_replies=99), case.problem(), 1)


# --- replies and states that are lost -------------------------------------------------------------


def losing(share: float, seed: int = 5):
    """Return an exchange's `alter` that loses replies."""
    lost = np.random.default_rng(seed)
    return lambda request, reply: [] if lost.random() < share else [reply]


@pytest.mark.parametrize("name", [n for n, c in CONTRACTS.items() if c.sampled])
def test_goes_on_without_a_missing_client(name):
    """Sampled forms apply what arrives, and end where the card says they do."""
    case = CONTRACTS[name].sampled[0]
    run = OpenRun(strategy(name, case), case.problem(), case.rounds, alter=losing(0.2))
    run.server.max_retries = 20
    run.play(case.rounds)
    assert run.server.counts["dropped"] == 0
    assert case.error(run.x) <= 1.3 * case.high


STATES = {name: contract for name, contract in CONTRACTS.items() if contract.lost is not None}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("sampled", [False, True])
def test_a_client_that_lost_its_state_comes_back(name, sampled):
    contract = CONTRACTS[name]
    if sampled and not contract.sampled:
        pytest.skip("refuses cohorts")
    case = contract.sampled[0] if sampled else contract.cases[0]
    made = strategy(name, case)
    calm, run = (OpenRun(made, case.problem(), case.rounds) for _ in range(2))
    half = case.rounds // 2
    run.play(half)
    run.clients[1] = run.new_client(1)
    if contract.invariant is not None and not sampled:  # one round makes it whole
        contract.invariant(run.play())
    if contract.lost == "exact":
        calm.play(run.server.round + 20)
        run.play(20)
        assert run.x.tobytes() == calm.x.tobytes()
    else:
        run.play(case.rounds)
        assert case.low <= case.error(run.x) <= case.high
    assert run.server.counts["lost"] == 1


# --- what a pair's two files promise each other ---------------------------------------------------


@EACH
def test_the_card_has_all_its_parts(name):
    parts = asdict(strategy_class(name).card())
    del parts["symbols"], parts["remarks"]  # where there are any
    takes = parameters(strategy_class(name))
    assert bool(parts.pop("step_sizes")) == bool({"server_optimizer", "client_lr"} & takes.keys())
    steps = {"batch_size", "local_solver"} & {*client_class(name).fields}
    assert bool(parts.pop("clipping")) == bool(steps)
    assert bool(parts.pop("regularizer")) == ("regularizer" in takes)
    assert bool(parts.pop("weights")) != bool(strategy_class(name).needs_everyone)
    assert parts.keys() == {
        "title", "summary", "problem", "update", "state", "wire", "participation", "first_contact",
        "asynchronous", "aggregation", "compression", "release", "lost_state", "not_for", "source",
    }  # fmt: skip
    assert [key for key, text in parts.items() if not text.strip()] == []
    assert "broadcast" in parts["update"] or name == "mcfedda"  # whose rounds are CFedDA's
    assert_all_is_told(strategy_class(name))


def assert_all_is_told(kind):
    """Assert that the card has every word of the module's docstring after its first line."""
    told = " ".join(asdict(kind.card()).values()).split()
    said = inspect.getdoc(sys.modules[kind.__module__]).partition("\n")[2]
    heads = "|".join(PARAGRAPHS)
    assert not re.search(rf"\S +({heads}): ", said)  # a paragraph with a name begins a line
    said = re.sub(rf"(?m)^(?:Round[^\n]*:$|(?:{heads}): )", "", said)
    assert not Counter(said.split()) - Counter(told)


@EACH
def test_the_card_says_which_objectives_it_is_for(name):
    """In words that are read for algorithms without a declared scope."""
    kind = strategy_class(name)
    assert scope_in(kind.card(), kind) == kind.scope


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
