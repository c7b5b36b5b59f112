"""`fedcon reproduce`: claims beside measurements."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from harness import ran, refusal
from pages import ROOT

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments import claims, measures, reproduce, verdicts
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.sweeps import Sweep

EXPERIMENT = """
title = "Small lasso"
[problem]
name = "lasso"
clients = 4
rows = 12
columns = 20
nonzeros = 3
[run]
rounds = 40
[algorithm]
name = "FedFW"
penalty = 5.0
participation = {sample = 2}
[[compare]]
name = "FedFWPlus"
label = "plus"
penalty = 0.5
"""
CLAIMS = """
paper = "A paper"
figure = "Figure 7"
source = "text"
bound = "measured"
rounds = 40

[quick]
rounds = 20

[[claim]]
what = "it falls"
measure = "ratio"
algorithm = "FedFW"
over = "plus"
column = "objective"
round = [10, 20]
below = 1e9

[[claim]]
what = "it is below nothing | at all"
where = "Section 3"
bound = "stated"
measure = "value"
algorithm = "FedFW"
column = "residual"
below = 0.0

[[claim]]
what = "it is tiny"
source = "ours"
measure = "value"
algorithm = "plus"
column = "bytes"
near = 1.0
within = 0.5

[claim.explained]
fault = "paper"
why = "bytes are what they are"
shown_by = "it falls"
expected = 71680
tolerance = 0.01

[claim.quick.explained]
expected = 35840

[[claim]]
what = "only in the full run"
measure = "slope"
algorithm = "plus"
column = "residual"
below = 10.0
quick = false
"""
OURS = 'source = "ours"\nbound = "measured"\n'
VALUE = '[[claim]]\nwhat = "x"\nmeasure = "value"\nalgorithm = "a"\ncolumn = "c"\n'
NAMED = EXPERIMENT.replace('"FedFW"', '"FedFW"\nlabel = "a"').replace('"plus"', '"b"')


def claims_of(folder, text, experiment=NAMED):
    """Return the claims of a text, on an experiment with the algorithms a and b."""
    (folder / "claims").mkdir(exist_ok=True)
    (folder / "n.toml").write_text(experiment)
    (folder / "claims" / "n.toml").write_text(text)
    return claims.Claims(folder / "claims" / "n.toml")


def over_seeds(*values):
    """Return runs of `a`, by their seeds, that record `c` in one round or several."""
    rounds = [[value] if isinstance(value, float) else value for value in values]
    return {("a", seed): [{"round": r, "c": c} for r, c in enumerate(own, 1)]
            for seed, own in enumerate(rounds)}  # fmt: skip


def judged(runs, sweep=None, **keys):
    """Return the verdict on a claim of ours, over as many seeds as there are runs."""
    claim = {"what": "x", "where": "y", "source": "ours", "bound": "order", "measure": "value",
             "algorithm": "a", "column": "c", **keys}  # fmt: skip
    seeds = sorted({seed for _, seed, *_ in runs})
    return verdicts.judge(claim, runs, seeds, "file", Sweep.of(sweep or {}))


@pytest.fixture
def fedcon(run_command):
    """Run the command in a folder with one experiment and its claims."""
    Path("sims/claims").mkdir(parents=True)
    Path("sims/small.toml").write_text(EXPERIMENT)
    Path("sims/claims/small.toml").write_text(CLAIMS)
    return run_command


def test_verdicts(fedcon):
    arguments = ["--quick", "--workers", "1", "--json", "out/a.json", "--markdown", "out/a.md"]
    code, out, error = fedcon("reproduce", "small", *arguments)
    assert (code, error) == (1, "")  # a claim fails
    assert (
        "Of 2 claims of the papers 1 holds, 0 fail for a reason that is shown, and 1 fails without "
        "one; of 1 claims of ours 0 hold, and 1 fails for a reason that is shown. "
        "No longer as recorded: 1; 1 not run; "
    ) in out
    for words in (
        "it falls",
        "explained: small, it is tiny: the paper's: bytes are what they are (shown by \"it falls",
        "Section 3",
        "Figure 7",
    ):
        assert words in out

    found = json.loads(Path("out/a.json").read_text())
    assert [claim["verdict"] for claim in found["claims"]] == ["pass", "fail", "explained"]
    assert len(found["claims"][0]["values"]) == 2
    assert found["left_out"] == 1
    assert set(found["seconds"]) == {"small"}

    lines = Path("out/a.md").read_text().splitlines()
    assert lines[0].startswith("Of 2 claims of the papers 1 holds")
    assert lines[2:5] == ["### A paper", "", f"| {' | '.join(reproduce.TITLES)} |"]
    assert len(lines) == 14
    assert lines[7].startswith("| it is below nothing \\| at all (Section 3; text) | **")
    assert lines[7].endswith("; claimed < 0 (stated); one seed; `small` | fails |  |")
    assert lines[9] == f"### {reproduce.OURS}"
    assert lines[13].endswith('the paper\'s: bytes are what they are. Shown by "it falls" |')


def test_the_full_run_in_two_processes(fedcon):
    code, out, _ = fedcon("reproduce", "--workers", "2")
    assert code == 1
    assert "Of 3 claims of the papers 2 hold" in out
    assert (
        "of ours 0 hold, and 1 fails for a reason that is shown. No longer as recorded: 1; " in out
    )


def test_finished_runs_are_not_repeated(fedcon):
    of_optimum = CLAIMS.replace('column = "residual"', 'column = "relative"')  # not 0 here
    Path("sims/claims/small.toml").write_text(of_optimum)
    toy = re.sub(r'"lasso".*?\[run\]', '"counterexample"\n[run]', EXPERIMENT, flags=re.DOTALL)
    Path("sims/small.toml").write_text(toy)
    command = ["reproduce", "--workers", "1", "--run-dir", "kept", "--json"]
    _, out, _ = fedcon(*command, "a.json")
    assert "found" not in out
    _, out, _ = fedcon(*command, "b.json")
    assert out.count(", found") == 2
    first, second = (json.loads(Path(f"{name}.json").read_text()) for name in "ab")
    assert first["claims"] == second["claims"]
    Path("sims/small.toml").write_text(toy.replace("penalty = 0.5", "penalty = 0.4"))
    _, out, _ = fedcon(*command, "c.json")
    assert out.count(", found") == 1


def test_an_explained_claim_fails_when_it_leaves_what_is_expected(fedcon):
    holding = CLAIMS.replace("below = 0.0", "below = 1e9")
    Path("sims/claims/small.toml").write_text(holding)
    ran(fedcon, "reproduce", "--quick")
    Path("sims/claims/small.toml").write_text(holding.replace("35840", "36500"))
    code, out, _ = fedcon("reproduce", "--quick")
    assert code == 1
    assert "fail: small, it is tiny: the explanation expects 36500 within 1 %; off by 1.8 %" in out


def test_a_claim_without_evidence_counts_as_not_explained(fedcon):
    unknown = CLAIMS.replace('fault = "paper"', 'fault = "unknown"')
    unknown = unknown.replace('shown_by = "it falls"\n', "").replace("below = 0.0", "below = 1e9")
    Path("sims/claims/small.toml").write_text(unknown)
    out = ran(fedcon, "reproduce", "--quick")
    assert "not explained: small, it is tiny: bytes are what they are (expected 35840" in out
    assert "0 fail for a reason that is shown, and 1 fails without one. No longer" in out


@pytest.mark.parametrize(("median", "verdict"), [(True, "pass"), (False, "fail")])
def test_the_median_over_seeds_is_judged_where_a_claim_says_so(median, verdict):
    found = judged(over_seeds(0.25, 0.5, 9.0), below=1.0, median=median)
    assert found.verdict == verdict
    assert found.values == ((0.5,) if median else (0.25, 0.5, 9.0))
    if median:
        assert found.measured == "0.5 (0.25 to 9)"


def test_the_table_says_of_how_many_seeds_an_exponent_is_the_means():
    claim = {"measure": "scaling", "of_mean": True, "near": 1.0, "within": 0.1}
    sweep = {"problem.clients": [1, 4]}
    runs = {
        ("a", seed, x): [{"round": 1, "c": x * (1 + seed)}] for seed in range(3) for x in (1.0, 4.0)
    }
    assert judged(runs, sweep, **claim).measured.endswith(", of the mean of 3 seeds")
    one = {key: rows for key, rows in runs.items() if key[1] == 0}
    assert "mean" not in judged(one, sweep, **claim).measured


@pytest.mark.parametrize(("expected", "verdict"), [(0.9, "not explained"), (0.5, "fail")])
@pytest.mark.parametrize("threshold", [{"above": 1.0}, {"near": 2.0, "within": 0.1}])
def test_an_explanation_can_expect_the_worst_alone(threshold, expected, verdict):
    explained = {"fault": "unknown", "why": "", "expected": expected, "tolerance": 0.01,
                 "worst": True}  # fmt: skip
    found = judged(over_seeds(2.0, 0.9, 1.5), explained=explained, **threshold)
    assert found.verdict == verdict


def test_quick_replaces_entries():
    text = f'{VALUE}below = 1.0\nround = 9\nquick = {{round = 3, above = 2.0}}\nbound = "order"\n'
    table = tomllib.loads(text)["claim"][0]
    whole, quick = (claims._checked(table, {"source": "text"}, quick=q) for q in (False, True))
    assert whole["below"] == 1.0
    assert (quick["round"], quick["above"], "below" in quick) == (3, 2.0, False)


@pytest.mark.parametrize(
    ("measure", "keys", "expected"),
    [
        ("value", {"algorithm": "a", "round": [1, 4]}, [8.0, 2.0]),
        ("value", {"algorithm": "a"}, [1.0]),
        ("ratio", {"algorithm": "a", "over": ["b"], "round": 4}, [0.5]),
        ("lead", {"algorithm": "a", "over": "b", "round": [1, 4]}, [4.0, -2.0]),
        ("order", {"algorithms": ["a", "b"], "round": [1, 4]}, [2.0, 0.5]),
        ("pairs", {"algorithms": ["a", "b"], "over": ["b", "a"], "round": 4}, [0.5, 2.0]),
        ("spread", {"algorithms": ["a"], "over": ["c"], "since": 4}, [0.25]),
        ("spread", {"algorithms": ["c"], "over": ["a"], "changes": True}, [math.sqrt(31 / 7)]),
        ("first", {"algorithm": "a", "level": 2.5}, [4.0]),
        ("first", {"algorithm": "a", "level": 0.5}, [math.inf]),
        ("first", {"algorithm": "a", "level": 8.5, "rising": True}, [math.inf]),
        ("first", {"algorithm": "a", "level": 2.5, "rising": True}, [1.0]),
        ("first", {"algorithm": "a", "over": ["b"], "level": 4.0, "of": "bytes"}, [200.0]),
        ("cost", {"algorithms": ["a", "b"], "level": 4.0}, [2.0, 1.0]),
        ("cost", {"algorithms": ["b", "a"], "level": 2.0, "of": "bytes"}, [math.inf, 400.0]),
        ("count", {"algorithm": "a", "level": 3.0}, [2.0]),
        ("bounded", {"algorithm": "a", "terms": [[16.0, -1.0]]}, [1.0]),
        ("bounded", {"algorithm": "b", "terms": [[36.0, -1.0], [0.0, 1.0]]}, [1.0]),
        ("bounded", {"algorithm": "a", "terms": [[32.0, -1.0]], "take": "least"}, [0.25]),
        ("slope", {"algorithm": "a"}, [-1.0]),
        ("slope", {"algorithm": "b", "since": 2}, [0.0]),
        ("share", {"algorithm": "a", "over": ["a", "b"]}, [0.0, 0.5]),
        ("share", {"algorithm": "a", "over": "b", "since": 4}, [1.0]),
    ],
)
def test_measures(measure, keys, expected):
    rounds = [1, 2, 4, 8]
    rows = {
        "a": [{"round": n, "c": 8.0 / n, "bytes": 100.0 * n} for n in rounds],
        "b": [{"round": n, "c": 4.0, "bytes": 1.0} for n in rounds],
        "c": [{"round": n, "c": float(n % 8), "bytes": 1.0} for n in rounds],
    }
    found = measures.MEASURES[measure].find({"column": "c", **keys}, rows.__getitem__)
    assert found == pytest.approx(expected, abs=1e-12)


def test_costs_are_shown_with_their_algorithms(tmp_path):
    claim = '[[claim]]\nwhat = "x"\nmeasure = "cost"\nalgorithms = ["a", "b"]\ncolumn = "c"\n'
    claim += 'level = 1.0\nof = "megabytes"\n'
    text = f"{OURS}{claim}near = [2.5, 3.0]\nwithin = 0.3\n{claim}above = 2.7\n"
    near, above = claims_of(tmp_path, text).judge({
        (label, 0): [{"round": 1, "c": 2.0, "megabytes": 1.0}, {"round": 2, "c": c, "megabytes": m}]
        for label, c, m in (("a", 1.0, 2.0), ("b", 0.5, 3.0))
    })  # fmt: skip
    assert (near.verdict, near.measured) == ("pass", "a: 2, b: 3 (off by 20 %)")
    assert (above.verdict, above.measured) == ("fail", "a: 2, b: 3")


def test_each_seed_may_have_its_own_limit(tmp_path):
    """The worst is that which has the least room below, or above, its own."""
    claim = f"{VALUE}round = [1, 2]\n"
    text = (
        f"seeds = [0, 1]\n{OURS}{claim}below = [3.0, 2.0]\n{claim}below = [2.0, 3.0]\n"
        f"{claim}above = [2.0, 0.4]\n{claim}below = 3.0\n"
    )
    found = claims_of(tmp_path, text).judge(over_seeds([2.5, 2.25], [1.75, 0.5]))
    assert [v.verdict for v in found] == ["pass", "fail", "pass", "pass"]
    assert [v.claimed for v in found] == ["< 3, 2", "< 2, 3", "> 2, 0.4", "< 3"]
    worst = [v.measured.partition(" ")[0] for v in found]
    assert worst == ["1.75", "2.5", "0.5", "2.5"]


def test_not_a_number_passes_nothing(tmp_path):
    text = f"{OURS}{VALUE}above = 0.0\n{VALUE}near = 0.0\nwithin = 1.0\n"
    found = claims_of(tmp_path, text).judge(over_seeds(math.nan))
    assert [v.verdict for v in found] == ["fail", "fail"]
    shown = reproduce.to_json(reproduce.Reproduction(found, {}, 0.0, 0))
    assert json.loads(shown)["claims"][0]["values"] == [None]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"ratio"', '"ration"', "measure must be one of"),
        ('measure = "ratio"\n', "", "measure is missing"),
        ('"slope"', '"bounded"\nterms = [1.0]', "terms holds pairs of numbers, [c, p] for c t^p"),
        ("below = 1e9", "below = 1e9\nof = 3", "unknown key 'of'"),
        ("below = 1e9", "bellow = 1e9", "did you mean 'below'"),
        ("below = 1e9", "", "give one of below, above, and near"),
        ("below = 1e9", "below = 1e9\nabove = 2.0", "give one of below, above, and near"),
        ("below = 1e9", 'below = "x"', "below must be a number or a list, got 'x'"),
        ("below = 1e9", "below = [1e9, 2e9]", "one for each seed, 1 in all, got 2"),
        ("within = 0.5", "", "near and within belong together"),
        ('over = "plus"\n', "", "over is missing"),
        ('over = "plus"', 'over = "pluss"', "did you mean 'plus'"),
        ('column = "objective"', 'column = "objectiv"', "did you mean 'objective'"),
        ("round = [10, 20]", "round = [10, 21]", "round 21 is not recorded"),
        ("near = 1.0", "near = [1.0, 2.0]", "near has 2 numbers for 1 measured"),
        ("[quick]\nrounds = 20", "[quick]\nround = 20", "[quick]: unknown key 'round'"),
        ("rounds = 20", "rounds = 2.5", "rounds must be a whole number"),
        ("paper =", "papers =", "did you mean 'paper'"),
        ("paper = ", "paper", "not valid TOML"),
        ('paper = "A paper"', 'experiment = "none.toml"', "cannot read sims/none.toml"),
        ('paper = "A paper"', 'set = ["rund=3"]', "did you mean 'rounds'"),
        ('paper = "A paper"', "seeds = [-1]", "seeds must be a whole number >= 0"),
        ('source = "text"\n', "", "source is missing: it is one of 'text'"),
        ('source = "text"', 'source = "paper"', "source must be one of 'text', \"authors' code\""),
        ('bound = "measured"\n', "", "bound is missing"),
        ("tolerance = 0.01\n", "", "tolerance is missing: an explanation has fault"),
        ('fault = "paper"', 'fault = "theirs"', "fault must be one of 'paper', 'ours', 'data'"),
        ('fault = "paper"', 'fault = "unknown"', 'fault = "unknown" contradicts shown_by'),
        ('shown_by = "it falls"', 'shown_by = "it fall"', "did you mean 'it falls'"),
        ("near = 1.0", 'near = 1.0\nwhy = "x"', "why and shown_by are in explained"),
        ('shown_by = "it falls"', 'shown_by = "it is tiny"', "is not another claim that holds"),
        ('shown_by = "it falls"', 'shown_by = "smaller: it falls"', "is not another claim that"),
        ("expected = 35840", 'expected = ["x"]', "expected holds numbers only"),
        ("expected = 35840", "expected = [1, 2]", "expected has 2 numbers for 1 measured"),
    ],
)
def test_errors_in_claims_are_one_line(fedcon, old, new, words):
    assert old in CLAIMS
    Path("sims/claims/small.toml").write_text(CLAIMS.replace(old, new, 1))
    assert words in refusal(fedcon, "reproduce", "small", "--quick", "--workers", "1")


def test_outside_a_clone_the_packages_claims_are_found(run_command):
    out = ran(run_command, "reproduce", "counterexample", "--quick", "--workers", "1")
    assert "Of 1 claims of the papers 1 holds; " in out


def test_other_refusals(fedcon):
    assert "did you mean 'small'" in refusal(fedcon, "reproduce", "smal")
    assert "holds no claims" in refusal(fedcon, "reproduce", "--sims", "nowhere")
    assert "workers" in refusal(fedcon, "reproduce", "--workers", "0")
    text = CLAIMS.replace('paper = "A paper"', 'requires = "no.data"')
    Path("sims/claims/small.toml").write_text(text)
    out = ran(fedcon, "reproduce")
    assert "No longer as recorded: 0; 4 not run; " in out


# --- seeds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, False),
        ({"participation": {"only": 1}}, False),
        ({"participation": {"sample": 1}}, True),
        ({"participation": {"bernoulli": 0.5}}, True),
        ({"name": "FedAvg", "client_lr": 0.1, "batch_size": 1}, True),
        ({"name": "FedAvg", "client_lr": 0.1}, False),
        ({"name": "Scaffnew", "client_lr": 0.1}, True),
        ({"problem": {"gradient_noise": 0.1}}, True),
        ({"problem": {"name": "lasso"}}, True),
        ({"problem": {"name": "six_quadratics"}}, True),
    ],
)
def test_what_is_drawn(change, expected):
    own = {"name": "FedFW", "penalty": 1.0} if "name" not in change else {}
    problem = {"name": "counterexample"} | change.pop("problem", {})
    tables = {"problem": problem, "run": {"rounds": 1}, "algorithm": own | change}
    experiment = Experiment(tables)
    assert experiment.draws(experiment.labels[0]) is expected


@pytest.mark.parametrize(
    ("bound", "seeds", "shown"),
    [
        ("order", "[0]", "one seed: an hour each"),
        ("order", "[0, 1, 2]", "3 seeds: an hour each"),
        ("order", "[0, 1, 2, 3, 4]", "5 seeds"),
        ("independent", "[0]", "one seed: an hour each"),
        ("independent", "[0, 1, 2]", "3 seeds: an hour each"),
        ("independent, of everyone", "[0]", "-"),
        ("independent, of everyone", "[0, 1, 2]", "-"),
    ],
)
def test_the_table_says_over_how_many_seeds(tmp_path, bound, seeds, shown):
    """A number computed for the same data is about no other; of cohorts it is as any other."""
    bound, _, everyone = bound.partition(", ")
    experiment = NAMED.replace("{sample = 2}", '"full"') if everyone else NAMED
    text = (
        f'source = "ours"\nbound = "{bound}"\nseeds = {seeds}\nfew_seeds = "an hour each"\n'
        f'vary = ["problem.seed"]\n{VALUE}above = 0.0\n'
    )
    found = claims_of(tmp_path, text, experiment).judge(over_seeds(*[1.0] * 5))
    (claim,) = reproduce.grouped(found)[reproduce.OURS]
    seeds = [part for part in claim.cells()[1].split("; ") if "seed" in part]
    assert seeds == ([] if shown == "-" else [shown])


@pytest.mark.parametrize(
    ("vary", "count", "drawn"), [("", 2, 5), ("", 4, 1), ('vary = ["problem.seed"]\n', 4, 5)]
)
def test_where_everyone_takes_part_the_runs_seeds_draw_nothing(tmp_path, vary, count, drawn):
    """Five seeds of cohorts of everyone are one run, of one set of data, unless they draw these."""
    text = (
        f'source = "ours"\nbound = "order"\nseeds = [0, 1, 2, 3, 4]\n{vary}[sweep]\n'
        f'"algorithm.participation.sample" = [2, 4]\n{VALUE}above = 0.0\nat = [{count}]\n'
    )
    found = claims_of(tmp_path, text, NAMED.replace("{sample = 2}", '"full"'))
    assert found.drawn(found.claims[0]) == drawn


def test_a_claim_that_holds_can_say_on_what_that_depends(tmp_path):
    text = f'source = "text"\nbound = "order"\n{VALUE}above = 0.0\nwhy = "y"\nshown_by = "z"\n'
    text += VALUE.replace('"x"', '"z"') + "above = 0.0\n"
    found = claims_of(tmp_path, text)
    assert found.shown == ["n: z"]
    assert [(v.note, v.shown_by) for v in found.judge(over_seeds(1.0))] == [("y", ("z",)), ("", ())]
    assert [v.note for v in found.judge(over_seeds(-1.0))] == ["", ""]


def test_a_claim_re_cut_after_a_run_is_a_companion(tmp_path):
    text = f'source = "text"\nbound = "measured"\n{VALUE}above = 0.0\ncompanion = true\n'
    assert claims_of(tmp_path, text).shown == ["n: x"]
    assert claims_of(tmp_path, text + 'quick = {what = "y"}\n').shown == ["n: x", "n: y"]
    why = '[claim.explained]\nfault = "unknown"\nwhy = "y"\nexpected = 1.0\ntolerance = 0.1\n'
    with pytest.raises(ConfigError, match="does not hold cannot be a companion"):
        claims_of(tmp_path, text + why)


@pytest.mark.parametrize(("source", "shown"), [("text", ["n: x"]), ("ours", [])])
def test_what_a_paper_says_stays_its_own_where_it_shows_why_one_of_ours_fails(
    tmp_path, source, shown
):
    other = VALUE.replace('"x"', '"slope"')
    why = '[claim.explained]\nfault = "ours"\nwhy = "y"\nexpected = 1.0\ntolerance = 0.1\n'
    text = f'bound = "theory"\n{VALUE}above = 0.0\nsource = "text"\n{other}above = 0.0\n'
    text += f'source = "{source}"\n{why}shown_by = "x"\n'
    assert claims_of(tmp_path, text).shown == shown


def test_the_tally_tells_papers_claims_apart():
    """By how they end; companions are not counted."""
    held = verdicts.Verdict("n", "x", "", "text", "", "order", "", "pass", "", (), says="x")
    failed = replace(held, verdict="explained", fault="data")
    found = [
        held, replace(held, says="y"), replace(failed, says="z"),
        replace(held, says="u", verdict="not explained"), replace(held, says="v", companion=True),
        replace(held, source="ours"), replace(failed, source="ours", says="w"),
    ]  # fmt: skip
    assert reproduce.tally(found) == (
        "Of 5 claims of the papers 2 hold, 1 fails for a reason that is shown, 1 fails without "
        "one, and 1 is not judged; of 2 claims of ours 1 holds, and 1 fails for a reason that is "
        "shown."
    )
    assert list(reproduce.grouped(found[::-1])) == ["", reproduce.OURS]


def test_a_claim_is_as_good_as_the_worst_of_its_parts():
    held = verdicts.Verdict("n", "a", "", "text", "< 1", "order", "0.5", "pass", "", (), says="x")
    failed = replace(held, what="b", verdict="explained", note="ours: y", shown_by=("c",))
    shows = replace(held, what="c", companion=True)
    (claim,) = reproduce.grouped([held, failed, shows])[""]
    assert claim.cells() == [
        "x (text)",
        "(a) a: **0.5**; claimed < 1 (order); `n`\n(b) b: **0.5**; claimed < 1 (order); `n`\n"
        "(c) companion: c: **0.5**; claimed < 1 (order); `n`",
        "explained",
        "(b) ours: y. Shown by (c)",
    ]
    depends = replace(held, note="by its step", shown_by=("c",))
    (claim,) = reproduce.grouped([depends, shows])[""]
    assert claim.cells()[2:] == ["holds", "by its step. Shown by (b)"]
    (alone,) = reproduce.grouped([shows])[""]
    assert alone.cells()[2] == "not judged"


def test_measurements_of_an_earlier_run_are_taken_for_what_is_not_named(fedcon):
    fedcon("reproduce", "--workers", "1", "--json", "a.json", "--markdown", "a.md")
    text = Path("sims/claims/small.toml").read_text()
    Path("sims/claims/small.toml").write_text(text.replace("bytes are", "they are"))
    _, out, _ = fedcon("reproduce", "--from", "a.json", "--json", "b.json", "--markdown", "b.md")
    assert "1/2" not in out
    first, second = (json.loads(Path(f"{name}.json").read_text()) for name in "ab")
    assert second["claims"][2]["note"] == "the paper's: they are what they are"
    first["claims"][2]["note"] = second["claims"][2]["note"]
    assert first["claims"] == second["claims"]
    unknown = text.replace('fault = "paper"', 'fault = "unknown"').replace("shown_by =", "# ")
    Path("sims/claims/small.toml").write_text(unknown)
    fedcon("reproduce", "--from", "a.json", "--json", "b.json")
    assert json.loads(Path("b.json").read_text())["claims"][2]["verdict"] == "not explained"
    Path("sims/claims/small.toml").write_text(text.replace('"it is tiny"', '"it is small"'))
    assert "has no measurement of small: it is small; name small" in refusal(
        fedcon, "reproduce", "--from", "a.json"
    )
    assert "is of a run without --quick" in refusal(
        fedcon, "reproduce", "--from", "a.json", "--quick"
    )
    _, out, _ = fedcon("reproduce", "small", "--from", "a.json", "--workers", "1")
    assert "2/2" in out


PANEL = """
[[panel]]
title = "(a) lasso"
column = "residual"
algorithms = ["FedFW", "plus"]
differs = "it is small"

[quick]"""


def test_a_figure_is_laid_out_as_the_papers(fedcon):
    path = Path("sims/claims/small.toml")
    path.write_text(CLAIMS.replace("\n[quick]", PANEL, 1))
    _, out, _ = fedcon("reproduce", "--quick", "--workers", "1", "--figures", "drawn")
    assert f"figure: {Path('drawn') / 'paper_apaper.png'}" in out
    assert Path("drawn/paper_apaper.png").stat().st_size > 10_000
    assert reproduce.caption("apaper", [path]) == (
        "Our runs in the layout of the paper's figures. (a) lasso, for Figure 7: it is small."
    )
    assert reproduce.caption("another", [path]) == ""
    path.write_text(CLAIMS.replace("\n[quick]", PANEL.replace("differs", "differ"), 1))
    assert "its entries are title, column, algorithms, differs" in refusal(fedcon, "reproduce")


def test_claims_on_what_is_drawn_have_five_seeds_or_say_why_not():
    for path in sorted((ROOT / "sims" / "claims").glob("*.toml")):
        file = claims.Claims(path)
        few = any(0 < file.drawn(claim) < claims.MANY for claim in file.claims)
        assert few == bool(file.few_seeds), path.stem


def test_claims_are_found_by_a_method_too():
    found = [path.stem for path in reproduce.find(None, ["CompositeFL"])]
    assert {"composite_digits", "multitask"} <= set(found)
    assert found == [path.stem for path in reproduce.find(None, ["compositefl", *found[:1]])]
    assert len(found) < len(reproduce.find())
    with pytest.raises(ConfigError, match=r"unknown claims 'CompositFL'.*no method's.*--list"):
        reproduce.find(None, ["CompositFL"])


@pytest.mark.parametrize(
    ("name", "some", "first_author"),
    [
        ("dadras", {"fedfw_lasso", "chr12a", "movielens"}, "Dadras"),
        ("2408.10090", {"fedfw_lasso", "chr12a", "movielens"}, "Dadras"),
        ("arXiv:2305.10294v2", {"dualfl_condition", "dualfl_mnist"}, "Park"),
        ("2309.01795", {"composite_digits", "multitask"}, "Zhang"),
        ("Richtárik", {"fedexprox", "later_smooth"}, "Richtarik"),
        ("2302.09832", {"later_smooth"}, "Condat"),
        ("S-DANE", {"sdane"}, "Jiang"),
    ],
)
def test_claims_are_found_by_their_papers(name, some, first_author):
    found = [reproduce.Entry.read(path) for path in reproduce.find(None, [name])]
    assert some <= {entry.path.stem for entry in found}
    assert all(first_author in entry.paper for entry in found if "study of" not in entry.paper)


def test_the_list_runs_nothing(fedcon):
    out = ran(fedcon, "reproduce", "--list")
    for cell in ("small", "A paper", "Figure 7", "FedFW, FedFWPlus"):
        assert cell in out
    assert not list(Path().glob("runs*"))
    assert "small" in fedcon("reproduce", "--list", "a paper")[1]
    assert "unknown claims 'B paper'" in refusal(fedcon, "reproduce", "--list", "B paper")
