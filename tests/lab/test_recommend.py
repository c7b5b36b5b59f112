"""`fedcon recommend`: what it sees in a problem, what fits, and where its figures come from."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal
from pages import ROOT, blocks

from flower_fedcon import FederatedProblem, Full, Sample, simulate
from flower_fedcon.core.scales import MARGIN
from flower_fedcon.core.scope import Scope
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.advice import ask, studies
from flower_fedcon.lab.advice.candidates import candidates
from flower_fedcon.lab.advice.facts import facts_of
from flower_fedcon.lab.advice.trial import try_out
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.objectives import LogisticRegression, Quadratic
from flower_fedcon.problems import l1_logistic, low_rank, quadratics
from flower_fedcon.problems.fitting import why_unfit
from flower_fedcon.registry import algorithms, own_algorithms
from flower_fedcon.regularizers import L1, NuclearNorm
from flower_fedcon.runs.toml import write_value
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedFW, FedFWPlus

SIMS = ROOT / "sims"


def small(**added):
    """Four clients with mu = 1 and L = 4."""
    clients = [Quadratic(np.diag([1.0, 4.0]), np.array([b, 1.0])) for b in range(4)]
    return FederatedProblem(clients, **added)


def advised(problem, rule=Full(), **options):  # noqa: B008  (it is frozen)
    facts = facts_of(problem, rule)
    found, others = candidates(problem, rule, facts, studies.nearest(facts), **options)
    return [each.kind.__name__ for each in found], others, found


# --- what is seen --------------------------------------------------------------------------------


def test_a_weight_of_zero_adds_nothing():
    assert facts_of(small(regularizer=L1(0.0)), Full()).term == ""


def test_facts_of_a_problem():
    facts = facts_of(small(regularizer=L1(0.1)), Sample(count=1))
    assert (facts.clients, facts.size, facts.layers, facts.rate) == (4, 2, 1, 0.25)
    assert (facts.smoothness, facts.strong_convexity, facts.stated) == (4.0, 1.0, True)
    assert (facts.term, facts.constrained, facts.convex) == ("L1", False, True)
    assert facts_of(small(constraint=L1Ball(1.0)), Full()).constrained


class Plain:
    """x'Qx/2, with no constants of its own."""

    def __init__(self, *diagonal):
        self.diagonal = np.array(diagonal)

    x0 = np.zeros(2)

    def value(self, x):
        return float(x @ (self.diagonal * x)) / 2

    def gradient(self, x):
        return self.diagonal * x


def test_unstated_constants_are_probed():
    facts = facts_of(FederatedProblem([Plain(2.0, 7.0)], x0=np.zeros(2)), Full())
    assert facts.smoothness == pytest.approx(7.0 * MARGIN, rel=1e-3)
    assert (facts.stated, facts.strong_convexity, facts.convex) == (False, None, True)
    assert not facts_of(FederatedProblem([Plain(2.0, -1.0)], x0=np.zeros(2)), Full()).convex
    assert not facts_of(quadratics(clients=3, columns=8, smallest=-1, radius=2.0), Full()).convex


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_it_is_probed_as_runs_do_in_any_units(unit, caplog):
    clients = [Plain(*(np.array(own) / unit**2)) for own in ((2.0, 7.0), (1.0, 3.0), (-1.0, 4.0))]
    problem = FederatedProblem(clients, x0=np.array([1.0, 2.0]) * unit)
    with caplog.at_level(logging.INFO):
        simulate(FedAvg(), problem, 1)
    facts = facts_of(problem, Full())
    assert facts.smoothness == pytest.approx(7.0 * MARGIN / unit**2, rel=1e-3)
    assert f"L is about {facts.smoothness:.3g}, by their gradients" in caplog.text
    assert not facts.convex


# --- what fits -----------------------------------------------------------------------------------


def test_what_fits_follows_from_the_problem():
    names, others, _ = advised(small(regularizer=L1(0.1)))
    assert {"FedDR", "CompositeFL", "DualFL", "Scaffnew"} <= set(names)
    assert others["FedFW"] == "needs constraint, which the problem does not have"
    assert others["Scaffold"].startswith("uses neither a constraint nor a regularizer")
    assert others["AveragedFW"].startswith("is refuted")
    names, others, found = advised(small(constraint=L1Ball(1.0)))
    assert {"FedFW", "FedFWPlus", "FedDR"} <= set(names)
    settings = {each.kind: each.settings for each in found}
    assert settings[FedFW]["penalty"] == pytest.approx(20 * settings[FedFWPlus]["penalty"])
    assert len(names) + len(others) == len(algorithms()) + len(own_algorithms())


def test_sampling_leaves_out_what_needs_everyone():
    names, others, _ = advised(small(), Sample(count=2))
    assert others["Scaffnew"] == "needs every client in every round (all clients share one coin)"
    assert {"Scaffold", "FedDyn", "DualFL"} <= set(names)
    everyone = {kind.__name__ for kind in algorithms().values() if kind.needs_everyone}
    assert not everyone & set(names)


def test_without_strong_convexity_or_convexity_less_fits():
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(9, 3)), rng.choice([-1.0, 1.0], 9)) for _ in range(3)]
    _, others, _ = advised(FederatedProblem([LogisticRegression(A, y) for A, y in rows]))
    assert {"TAMUNA", "LoCoDL", "FiveGCS", "DualFL"} <= set(others)
    assert others["DualFL"].startswith("needs strongly convex objectives")
    problem = quadratics(clients=3, columns=8, smallest=-1, radius=2.0)
    names, others, found = advised(problem)
    assert {"FedDR", "FedFW", "FedFWPlus"} <= set(names)
    frank_wolfe = next(each for each in found if each.kind.__name__ == "FedFW")
    assert frank_wolfe.settings["schedule"] == "nonconvex"
    assert others["FedNewton"] == "is stated for convex objectives, and these are not"


def test_a_functional_constraint_has_its_own_methods():
    problem, rule = ask.ask_problem(lambda text, default: answers(text, added="functional"))
    assert advised(problem, rule)[0] == ["FedSGM"]
    assert studies.nearest(facts_of(problem, rule)) is None


def test_methods_that_need_more_of_the_objectives_do_not_fit_without_it():
    """Before, they were counted, and failed when they were tried."""

    class Squares:
        shape = (2,)
        smoothness = strong_convexity = 1.0

        def value(self, x):
            return float(x @ x / 2)

        def gradient(self, x):
            return x

    names, others, _ = advised(small())
    assert "FedNewton" in names
    assert others["FedSGM"] == "is for a constraint on the objectives' own values"
    _, others, _ = advised(FederatedProblem([Squares(), Squares()], x0=np.ones(2)))
    assert others["FedNewton"].startswith("is for objectives with hessian(x)")


def test_own_algorithms_are_for_what_they_declare_or_their_card_says():
    class Silent(FedAvg):
        name = "silent"

    class Declared(FedAvg):
        name = "declared"
        scope = Scope("convex")

    def why(kind, problem, **known):
        card = replace(FedAvg.card(), problem=problem)
        known = {"strongly_convex": False, "convex": True, **known}
        return why_unfit(card, kind, **known, each=False, sampled=False)

    assert why(Silent, "min F, f_i mu-strongly convex").startswith("is for strongly convex")
    assert why(Silent, "min F") == why(Silent, "min F", convex=False) == ""
    assert why(Declared, "min F, f_i mu-strongly convex") == ""
    assert why(Declared, "min F", convex=False).startswith("is stated for convex objectives")


def test_a_bias_and_large_uploads_come_last():
    names, _, found = advised(l1_logistic(clients=4, rows=8, columns=60))
    biased = [each.exact for each in found]
    assert biased == sorted(biased, reverse=True)
    exact = [each.kind.__name__ for each in found if each.exact]
    assert exact[-1] == "FedNewton"
    assert {"FedMiD", "FedAvg"} <= set(names) - set(exact)


def test_first_settings_are_left_to_the_rules():
    _, _, found = advised(small(regularizer=L1(0.1)))
    settings = {each.kind.__name__: each.settings for each in found}
    assert settings["FedDR"] == settings["CompositeFL"] == settings["DualFL"] == {}


def test_a_trial_ranks_by_what_was_reached():
    problem = small(constraint=L1Ball(1.0))
    trials = try_out(problem, advised(problem)[2], 5)
    assert all(trial.error == "" for trial in trials)
    feasible = [t.last["objective"] for t in trials if t.infeasible <= 1e-6]
    assert feasible == sorted(feasible)
    assert all(t.infeasible <= 1e-6 for t in trials[: len(feasible)])


def test_a_trial_of_some_length_chooses_steps_by_a_race():
    problem = small(regularizer=L1(0.1))
    found = advised(problem)[2]
    trials = {trial.candidate.kind.__name__: trial for trial in try_out(problem, found, 20)}
    raced = {name: t for name, t in trials.items() if "auto" in t.candidate.settings.values()}
    assert {"FedDR", "CompositeFL", "FedDualAvg"} <= set(raced)
    for name, trial in raced.items():
        if name != "FRECON":  # whose memory of gradients begins at 0: 20 rounds decide nothing
            assert trial.chosen.partition("=")[0] in trial.candidate.settings, name
        assert trial.last["round"] == 20
    assert trials["CompositeFL"].last["objective"] < problem.optimum.value + 1e-6


def test_a_trial_races_for_steps_also_where_nothing_is_stated():
    class Own:
        def __init__(self, f):
            self.value, self.gradient, self.shape = f.value, f.gradient, f.shape

    problem = FederatedProblem([Own(f) for f in small().objectives], regularizer=L1(0.1))
    found = [each for each in advised(problem)[2] if each.kind.__name__ in ("FedDR", "CompositeFL")]
    for trial in try_out(problem, found, 20):
        assert trial.chosen.startswith(("step_size=", "client_lr=")), trial
    rare = FederatedProblem(problem.objectives * 5, regularizer=L1(0.1))
    few = advised(rare, Sample(count=1))[2]
    (trial,) = try_out(rare, [each for each in few if each.kind.__name__ == "FedDR"], 20)
    assert trial.chosen == "not decided"  # with 1 of 20 clients a turn takes 10 rounds
    (trial,) = try_out(problem, found[:1], 19)
    assert trial.chosen == ""


# --- the figures ---------------------------------------------------------------------------------


def test_the_nearest_study():
    def name(problem, rule):
        return studies.nearest(facts_of(problem, rule)).name

    logistic = l1_logistic(clients=40, rows=5, columns=6, nonzeros=2)
    assert name(logistic, Sample(count=9)) == "participation_20"
    assert name(logistic, Full()) == "participation_100"
    assert name(small(), Sample(count=2)) == "participation_smooth_50"
    assert name(small(constraint=L1Ball(1.0)), Full()) == "fedfw_lasso"
    assert name(low_rank(clients=8), Full()) == "feddualavg_low_rank"


@pytest.mark.parametrize("study", studies.studies(), ids=lambda study: study.name)
def test_the_figures_are_of_the_studies_as_they_are(study):
    """A study that was changed is measured anew."""
    experiment = Experiment.load(SIMS / f"{study.name}.toml")
    assert [each.label for each in study.measured] == experiment.labels
    for each in study.measured:
        stated = experiment.settings(each.label)
        assert each.settings == {key: write_value(value) for key, value in stated.items()}
    assert study.limit == experiment.run_options.rounds
    assert study.command == f"fedcon compare sims/{study.name}.toml --rounds {study.limit}"


def test_every_study_has_figures():
    assert [study.name for study in studies.studies()] == list(studies.STUDIES)
    for study in studies.studies():
        assert min(each.rounds or math.inf for each in study.measured) < study.limit


def test_a_figure_is_what_its_command_measures(tmp_path, monkeypatch):
    """One of them is measured here, by the code that measured them all."""
    one = {"participation_100": studies.STUDIES["participation_100"]}
    monkeypatch.setattr(studies, "STUDIES", one)
    monkeypatch.setattr(Experiment, "labels", property(lambda _: ["CompositeFL", "FedDR"]))
    (again,) = map(studies._study, studies.json.loads(studies.measure(SIMS, tuple(one))))
    shipped = next(s for s in studies.studies() if s.name == "participation_100")
    assert again.measured == shipped.measured[:2]
    assert again.facts == shipped.facts


# --- the command ---------------------------------------------------------------------------------


def test_the_page_s_commands(run_command, tmp_path):
    (tmp_path / "sims").symlink_to(SIMS)
    recommend, compare = blocks("bash", "docs/choosing.md")[0].splitlines()
    out = ran(run_command, *recommend.split()[1:])
    assert "10, 50 % of them in a round" in out
    assert "nearest study: fedfw_lasso" in out
    study = next(s for s in studies.studies() if s.name == "fedfw_lasso")
    assert study.command in out
    assert "to run them: fedcon compare best.toml" in out
    written = Experiment.load("best.toml")
    assert len(written.labels) == 3
    assert written.participation() == Sample(fraction=0.5)
    ran(run_command, *compare.split()[1:-1], "2")
    assert "best.toml exists already" in refusal(run_command, *recommend.split()[1:])
    measure = blocks("bash", "docs/choosing.md")[1].split()[1:]
    assert "--measure needs -o" in refusal(run_command, *measure[:-2])


def test_figures_are_shown_as_they_are_and_by_bytes(run_command, tmp_path):
    Path("mine.toml").write_text(
        '[problem]\nname = "l1_logistic"\nclients = 20\nrows = 6\ncolumns = 8\nnonzeros = 2\n'
    )
    shipped = next(s for s in studies.studies() if s.name == "participation_20")
    best = {}
    for order, options in (("rounds", []), ("megabytes", ["--bandwidth", "0.5"])):
        out = ran(run_command, "recommend", "mine.toml", "--sample", "0.2", *options)
        first = re.search(r"─\s*\n\s*(\w+) ", out)[1]
        arrived = [m for m in shipped.measured if m.rounds and m.algorithm != "FedDualAvg"]
        best[order] = min(arrived, key=lambda m: getattr(m, order))
        assert first == best[order].algorithm
        figure = best[order]
        assert f"{figure.rounds} rounds, {figure.megabytes:.4g} MB" in out
    assert "s of transfer" in out
    assert "-o best.toml && fedcon compare best.toml" in out


def answers(text, added="l1"):
    known = {"added": added, "strongly": "yes", "How many clients": "5000", "in a round": "50"}
    return next(value for key, value in known.items() if key in text)


def test_questions_stand_in_for_a_file():
    problem, rule = ask.ask_problem(lambda text, default: answers(text))
    facts = facts_of(problem, rule)
    assert (facts.term, facts.strongly_convex, facts.rate) == ("L1", True, 0.01)
    problem, rule = ask.ask_problem(lambda text, default: answers(text, added="nuclear"))
    assert problem.regularizer == NuclearNorm(1e-2)
    for question, answer in (("added", "l2"), ("strongly", "maybe"), ("many clients", "0")):
        with pytest.raises(ConfigError, match=re.escape(answer)):
            ask.ask_problem(lambda t, d, q=question, a=answer: a if q in t else answers(t))


def test_what_it_refuses(run_command):
    assert "run the command in a terminal" in refusal(run_command, "recommend")
    assert "cannot read none.toml" in refusal(run_command, "recommend", "none.toml")
    Path("bad.toml").write_text('[problem]\nname = "digts"\n')
    assert "did you mean 'digits'" in refusal(run_command, "recommend", "bad.toml")
    sims = str(SIMS / "counterexample.toml")
    assert "bandwidth" in refusal(run_command, "recommend", sims, "--bandwidth", "0")
    assert "fraction" in refusal(run_command, "recommend", sims, "--sample", "2")
