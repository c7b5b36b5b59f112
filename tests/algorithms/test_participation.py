"""Rules of participation: turns, chains, traces, and rules of one's own."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from everywhere import agrees_everywhere
from pages import ROOT
from problems import q6_objectives

from flower_fedcon import (
    Available,
    Bernoulli,
    Cyclic,
    Estimated,
    FederatedProblem,
    Full,
    Markov,
    Only,
    Participation,
    Sample,
    simulate,
)
from flower_fedcon.core.participation import Draws
from flower_fedcon.core.rng import COHORT, stream
from flower_fedcon.errors import ConfigError, FedConError, ParticipationError
from flower_fedcon.runs.toml import _rules, argument, parse_value, tabled
from flower_fedcon.strategies import TAMUNA, DualFL, FedAvg, FedDR, FiveGCS

TRACE = [[1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
GAPS = [[0] * 6, TRACE[0], [0] * 6, [0] * 6, *TRACE[1:]]
RULES = [
    Cyclic(groups=4), Cyclic(groups=2, count=2), Markov(stay=0.7, back=0.2),
    Markov(stay=[0.9, 0.1, 0.5, 0.5, 0.8, 0.3], back=0.4, count=2), Available(TRACE),
    Available(TRACE, count=2),
]  # fmt: skip
NEED_MORE = ("Weighted", "Available", "Buffered", "Deadline", "Estimated", "my_rules")
"""Rules in the page's table that are tested elsewhere: weights, files or clocks belong to them."""


def rows_of_the_page() -> list[tuple[str, str]]:
    """Return a rule in a file and in Python, from each row of the page's table."""
    page = (ROOT / "docs" / "participation.md").read_text("utf-8")
    rows = re.findall(r'^\| `(\{type = "(\w+).*?)` \| `(.*?)` \|', page, re.MULTILINE)
    return [(text, code) for text, name, code in rows if name not in NEED_MORE]


PAGE = rows_of_the_page()
RULES += [rule for _, code in PAGE if (rule := eval(code, dict(_rules()))) not in RULES]
EACH = pytest.mark.parametrize("rule", RULES, ids=repr)


def draws(rule: Participation, n: int = 6, seed: int = 0) -> Draws:
    return Draws(rule, n, lambda server_round: stream(seed, COHORT, server_round))


@EACH
def test_cohorts_are_as_often_as_said(rule: Participation) -> None:
    """And the same, in whatever order they are asked for."""
    first, again, rounds = draws(rule), draws(rule), 3000
    cohorts = [first.cohort(t) for t in range(1, rounds + 1)]
    assert all(cohort == sorted(set(cohort)) != [] for cohort in cohorts)
    counts = np.bincount(np.concatenate(cohorts), minlength=6) / rounds
    shares = rule.inclusion(6)
    # A rule of Markov with a count, or with rounds in which nobody is there, states them about.
    assert counts == pytest.approx(shares, abs=0.09 if isinstance(rule, Markov) else 0.03)
    assert np.mean([len(cohort) for cohort in cohorts]) / 6 == pytest.approx(
        rule.rate(6), abs=0.09 if isinstance(rule, Markov) else 0.03
    )
    sizes = {len(cohort) for cohort in cohorts}
    assert sizes == {rule.size(6)} or (rule.size(6) is None and len(sizes) > 1)
    for t in (700, 3, 4, 1, 699, 1500):
        assert again.cohort(t) == cohorts[t - 1]
    later = draws(rule)
    later.resume(40, first.memory(40) if first.remembers else None)
    assert [later.cohort(t) for t in (41, 42, 40)] == [cohorts[40], cohorts[41], cohorts[39]]


@pytest.mark.parametrize(("text", "code"), PAGE)
def test_a_row_of_the_page_is_one_rule(text: str, code: str) -> None:
    rule = argument("participation", parse_value(text))
    assert rule == eval(code, dict(_rules())) == argument("participation", tabled(rule))


def test_the_page_has_a_row_for_each_rule_but_only() -> None:
    page = (ROOT / "docs" / "participation.md").read_text("utf-8")
    assert {name for name in _rules() if f"`{name}(" not in page} == {"Only"}


def test_rows_of_a_trace_in_which_nobody_is_there_pass() -> None:
    for t in range(1, 10):
        assert draws(Available(GAPS)).cohort(t) == draws(Available(TRACE)).cohort(t)


def test_only_a_file_that_is_shorter_than_the_run_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pattern in Python is meant to be repeated; a record is noted, and warned of by nothing."""
    file = tmp_path / "trace.csv"
    np.savetxt(file, GAPS, fmt="%d", delimiter=",")
    problem = FederatedProblem(q6_objectives())

    def notes(rule: Participation, rounds: int) -> list[logging.LogRecord]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            simulate(FedAvg(client_lr=0.01, participation=rule), problem, rounds)
        return [record for record in caplog.records if "is repeated" in record.getMessage()]

    for rule in (Available(str(file)), Estimated(Available(file))):
        (note,) = notes(rule, 4)
        assert note.levelno == logging.INFO
        assert "has 3 rows with available clients, and the run 4 rounds" in note.getMessage()
        assert not notes(rule, 3)
    assert not notes(Available(GAPS), 4)


def test_chains_stay_as_long_as_they_should() -> None:
    rule = Markov(stay=0.95, back=0.05)
    chain = draws(rule, 40)
    there = np.array([np.isin(np.arange(40), chain.cohort(t)) for t in range(1, 2001)])
    assert there.mean() == pytest.approx(0.5, abs=0.05)
    left = (there[:-1] & ~there[1:]).sum() / there[:-1].sum()
    assert left == pytest.approx(0.05, abs=0.01)


@EACH
def test_engines_and_resumption(rule: Participation, tmp_path: Path) -> None:
    problem = FederatedProblem(q6_objectives())
    strategy = FedAvg(client_lr=0.05, local_steps=2, participation=rule)
    agrees_everywhere(strategy, problem, tmp_path, rounds=23, engines=("stacked", "jax"))
    other = FedAvg(client_lr=0.05, local_steps=2, participation=Sample(count=2))
    with pytest.raises(FedConError, match="participation was"):
        simulate(other, problem, 30, resume=True, run_dir=tmp_path)


@EACH
def test_methods_that_keep_state(rule: Participation) -> None:
    problem = FederatedProblem(q6_objectives())
    strategy = FedDR(None, step_size=1.0, participation=rule)
    assert simulate(strategy, problem, 3000, evaluate_every=0).x == pytest.approx(
        problem.optimum.x, abs=1e-8
    )


def test_methods_whose_theory_is_of_uniform_cohorts_refuse() -> None:
    problem = FederatedProblem(q6_objectives())
    for kind in (DualFL, FiveGCS, TAMUNA):
        for rule in (RULES[0], RULES[2], RULES[4]):
            with pytest.raises(ParticipationError, match="Sample"):
                simulate(kind(participation=rule), problem, 1)


def test_who_takes_part_unequally_is_said(caplog: pytest.LogCaptureFixture) -> None:
    problem = FederatedProblem(q6_objectives())

    class Favourites(Participation):
        def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
            chosen = rng.choice(num_clients, 2, replace=False, p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
            return list(chosen)

        def rate(self, num_clients: int) -> float:
            return 2 / num_clients

    class Fair(Favourites):
        def draw(self, num_clients: int, rng: np.random.Generator) -> list[int]:
            return list(rng.permutation(num_clients)[:2])

    def said(rule: Participation) -> str:
        caplog.clear()
        simulate(FedAvg(client_lr=0.05, local_steps=2, participation=rule), problem, 1)
        return caplog.text

    caplog.set_level(logging.WARNING, "flwr")
    for rule in (Favourites(), RULES[3], RULES[4]):
        assert "clients take part unequally often" in said(rule)
    for rule in (Fair(), Full(), Sample(count=2), Bernoulli(0.3), Only(1), RULES[2], Cyclic(3)):
        assert "unequally" not in said(rule)


class Own(Participation):
    """A rule of one's own, right but for what a test changes."""

    def rate(self, num_clients: int) -> float:
        return 0.5


def counts(self: Any, num_clients: int, rng: np.random.Generator) -> list[int]:
    self.rounds = getattr(self, "rounds", 0) + 1
    return [self.rounds % num_clients]


def in_place(self: Any, memory: Any, server_round: int, num_clients: int, rng: Any) -> Any:
    memory[0] += 1
    return [memory[0] % num_clients], memory


@pytest.mark.parametrize(
    ("name", "methods", "words"),
    [
        ("Counts", {"draw": counts}, "Counts changes as it draws.*define begin and step"),
        ("Global", {"draw": lambda self, n, rng: [int(np.random.default_rng().integers(n))]},
         "Global draws other cohorts from the same generator"),
        ("InPlace", {"begin": lambda self, n, rng: [0], "step": in_place},
         "InPlace.step changes its memory in place"),
        ("Outside", {"draw": lambda self, n, rng: [n]},
         r"Outside: the cohort of round 1 must be .* from 0 to 5.*got \[6\]"),
        ("Twice", {"draw": lambda self, n, rng: [1, 1]},
         r"Twice: the cohort of round 1 must be .* different.*got \[1, 1\]"),
        ("Nothing", {}, "Nothing defines neither draw nor step"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_used(name: str, methods: dict[str, Any], words: str) -> None:
    rule = type(name, (Own,), {"__module__": __name__, **methods})()
    strategy = FedAvg(client_lr=0.05, local_steps=2, participation=rule)
    with pytest.raises(FedConError, match=words):
        simulate(strategy, FederatedProblem(q6_objectives()), 2)


def test_rules_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savetxt("trace.csv", TRACE, fmt="%d", delimiter=",")
    np.save("trace.npy", np.array(TRACE))
    Path("own_rules.py").write_text(
        "from flower_fedcon import Participation\n"
        "class Turn(Participation):\n"
        "    def __init__(self, first=0):\n        self.first = first\n"
        "    def step(self, memory, server_round, num_clients, rng):\n"
        "        return [(self.first + server_round) % num_clients], memory\n"
        "    def rate(self, num_clients):\n        return 1 / num_clients\n"
    )
    for text, first in (
        ('{type = "Cyclic", groups = 4}', [0, 1]),
        ('{type = "Available", trace = "trace.csv"}', [0, 2, 5]),
        ('{type = "Available", trace = "trace.npy", count = 4}', [0, 2, 5]),
        ('{type = "own_rules:Turn", first = 3}', [4]),
    ):
        rule = argument("participation", parse_value(text))
        assert draws(rule).cohort(1) == first
        if "own" not in text:
            assert draws(argument("participation", tabled(rule))).cohort(1) == first
    chain = argument("participation", tabled(RULES[3]))
    assert chain == RULES[3]
    for text, words in (
        ('{type = "Markow", stay = 0.5}', "did you mean 'Markov'"),
        ('{type = "Markov", stay = 0.5}', "needs back"),
        ('{type = "Markov", stay = 0.5, backs = 1}', "did you mean 'back'"),
        ('{type = "own_rules:Turns"}', "did you mean 'Turn'"),
        ('{type = "no_rules:Turn"}', "a module that is installed or lies in"),
        ('{type = "os:getcwd"}', "is not a Participation"),
        ('{type = "Available", trace = "none.csv"}', "cannot read it"),
    ):
        with pytest.raises(ConfigError, match=words):
            argument("participation", parse_value(text))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Cyclic(0), "groups"),
        (lambda: Cyclic(7).rate(6), "only 6 clients"),
        (lambda: Markov(stay=1.1, back=0.5), r"stay.*\[0, 1\]"),
        (lambda: Markov(stay=0.5, back=0.0), r"back.*\(0, 1\]"),
        (lambda: Markov(stay=[0.5, 0.5], back=0.5).rate(6), "2 values.*6 clients"),
        (lambda: Markov(stay=float("nan"), back=0.5), "stay"),
        (lambda: Available([[0, 2]]), "zeros and ones"),
        (lambda: Available([1, 0]), "zeros and ones"),
        (lambda: Available([[0, 0], [0, 0]]), "no client is ever available"),
        (lambda: Available([[1, 0]]).rate(3), "there are 3"),
        (lambda: Available([[1, 0]], count=0), "count"),
    ],
)
def test_refusals(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
