"""Tables of methods and rules as papers print them, and differences over the same seeds."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal
from scipy import stats

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.crossed import crossed
from flower_fedcon.lab.experiments.histories import panels_of, places_of, seeds_of
from flower_fedcon.lab.experiments.paired import Difference, difference, paired
from flower_fedcon.lab.experiments.targets import Cell, Target, targets_of

LEVEL = 1e-3
RULES = {"tenth": "{fraction = 0.1}", "half": "{fraction = 0.5}"}
ROUNDS = {
    ("FedAvg", "tenth"): [math.nan] * 3 + [285] + [math.nan] * 6,
    ("FedAvg", "half"): [20, 30, 25, 35, 30, 40, 20, 30, 25, 35],
    ("Mirror, 2", "tenth"): [50, 60, 55, 65, 60, 70, 50, math.nan, 55, 65],
    ("Mirror, 2", "half"): [10, 20, 15, 20, 20, 25, 15, 20, 15, 20],
}
"""Rounds to the level by seed, NaN where it is not reached."""


def write_run(folder: Path, label: str, rule: str, seed: int, rounds: float) -> None:
    """Leave what a run does that is read here: it reaches the level in its last row, or never."""
    folder.mkdir(parents=True)
    last = LEVEL / 2 if math.isfinite(rounds) else 1.0
    rows = [(1, 1.0, 4e6, 4e6), (int(rounds) if math.isfinite(rounds) else 900, last, 8e6, 8e6)]
    text = "round,residual,uplink_bytes,downlink_bytes\n"
    text += "".join(f"{','.join(map(str, row))}\n" for row in rows)
    (folder / "history.csv").write_text(text)
    (folder / "config.toml").write_text(
        f'[problem]\nname = "x"\n[run]\nrounds = 900\nseed = {seed}\n[algorithm]\nname = "FedAvg"\n'
        f'label = "{label}"\nparticipation = {rule}\nlocal_steps = 2\n'
    )


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of two methods with two rules, and a cell without a run."""
    home = tmp_path / "study"
    for (method, name), every in ROUNDS.items():
        label = f"{method}, {name}"
        slug = label.replace(", ", "-").replace(" ", "-").lower()
        for seed, rounds in enumerate(every):
            write_run(home / slug / f"seed-{seed}", label, RULES[name], seed, rounds)
    (home / "config.toml").write_text(
        '[problem]\nname = "x"\n[run]\nrounds = 900\n[algorithm]\nname = "FedAvg"\n'
        '[[compare]]\nname = "FedMiD"\nlabel = "Mirror, 2"\n[[compare]]\nname = "FedDR"\n'
        f"[sweep]\nparticipation = [{', '.join(RULES.values())}]\n"
        f'names.participation = ["tenth", "half"]\nrun.seed = {list(range(10))}\n'
    )
    labels = [f"{m}, {n}" for m in ("FedAvg", "Mirror, 2", "FedDR") for n in RULES]
    (home / "cells.json").write_text(json.dumps(labels))
    (home / "failed.json").write_text(json.dumps({"FedDR, tenth": "it broke"}))
    return home


def test_methods_and_rules(study: Path) -> None:
    flat = targets_of([study], [Target("residual", LEVEL)], ["rounds"])
    table = crossed(flat, [study], ["method"], ["participation"])
    assert table.titles == ["tenth", "half"]
    assert table.stub == "Method"
    mean, spread = statistics.fmean(ROUNDS["FedAvg", "half"]), 6.6
    assert {row: table.texts(row) for row in table.rows} == {
        "FedAvg": ["285 (1 of 10)", f"{mean:.1f} ± {spread}"],
        "Mirror, 2": ["58.9 ± 7.0 (9 of 10)", "18.0 ± 4.2"],
    }
    assert table.failed == {"FedDR, tenth": "it broke"}  # no run of it, so no row
    tex = table.latex()
    assert " & \\multicolumn{2}{c}{rounds to residual $\\le 10^{-3}$} \\\\" in tex
    assert "\\cmidrule(lr){2-3}\n & tenth & half \\\\" in tex
    assert "FedAvg & $285$ (1/10) & $29.0 \\pm 6.6$ \\\\" in tex
    assert "FedDR, tenth & \\multicolumn{2}{l}{failed: it broke}" in tex
    lines = list(csv.DictReader(io.StringIO(table.csv())))
    assert (lines[0]["method"], lines[0]["participation"]) == ("FedAvg", "tenth")
    assert [lines[0][name] for name in ("mean", "low", "high", "arrived", "runs")] == [
        "285.0", "", "", "1", "10"
    ]  # fmt: skip
    assert (lines[-1]["method"], lines[-1]["failed"]) == ("FedDR, tenth", "it broke")

    other = crossed(flat, [study], ["participation"], ["method"])
    assert list(other.rows) == ["tenth", "half"]
    assert other.titles == ["FedAvg", "Mirror, 2"]
    assert other.rows["half"][1].spent == table.rows["Mirror, 2"][1].spent
    for rows, columns in ((["method"], []), ([], ["participation"])):  # the rest is the other
        again = crossed(flat, [study], rows, columns)
        assert again.rows == table.rows
        assert again.titles == table.titles
    median = crossed(flat._replace(middle="median"), [study], ["method"], ["participation"])
    assert median.texts("FedAvg") == ["285 (1 of 10)", "30 (20 to 40)"]
    assert median.texts("Mirror, 2")[0] == "60 (50 to 70), 9 of 10"


def test_several_numbers_in_each_column(study: Path) -> None:
    to = [Target("residual", LEVEL), Target("residual")]
    flat = targets_of([study], to, ["rounds", "bytes"])
    table = crossed(flat, [study], ["method"], ["participation"])
    assert len(table.titles) == 6
    assert table.titles[0] == "tenth: rounds to residual 0.001"
    assert table.titles[5] == "half: residual at the end"
    tex = table.latex()
    assert " & \\multicolumn{3}{c}{tenth} & \\multicolumn{3}{c}{half} \\\\" in tex
    assert "\\cmidrule(lr){2-4} \\cmidrule(lr){5-7}" in tex
    assert "\\begin{tabular}{lrrrrrr}" in tex
    assert tex.count("at the end") == 2


def test_a_cell_without_a_run_is_marked(study: Path) -> None:
    (study / "failed.json").write_text(json.dumps({"FedAvg, tenth": "it broke"}))
    flat = targets_of([study], [Target("residual", LEVEL)], ["rounds"])
    table = crossed(flat, [study], ["method"], ["participation"])
    assert table.texts("FedAvg")[0] == "failed"
    assert not table.failed
    assert "FedAvg & failed & $29.0" in table.latex()
    assert table.csv().splitlines()[1].endswith(",0,0,failed")
    (study / "failed.json").write_text("{}")
    for run in (study / "fedavg-tenth").glob("seed-*"):
        (run / "history.csv").unlink()
    table = crossed(targets_of([study], [Target("residual")], []), [study], ["method"], [])
    assert table.texts("FedAvg")[0] == ""
    assert len(table.csv().splitlines()) == 4


def test_what_may_not_share_a_cell(study: Path) -> None:
    flat = targets_of([study], [Target("residual")], [])
    with pytest.raises(ConfigError, match=r"'FedAvg, tenth' and 'Mirror, 2, tenth' would share"):
        crossed(flat, [study], ["local_steps"], ["participation"])
    with pytest.raises(ConfigError, match="method cannot be in --rows and in --columns"):
        crossed(flat, [study], ["method"], ["method"])
    with pytest.raises(ConfigError, match="no run has the setting 'local_step': did you mean"):
        crossed(flat, [study], ["local_step"], [])
    both = crossed(flat, [study], ["method", "local_steps"], ["participation"])
    assert list(both.rows) == ["FedAvg, local_steps 2", "Mirror, 2, local_steps 2"]
    assert both.stub == "Method, local steps"
    places = places_of([study], ["participation", "method"])
    assert places["Mirror, 2, half"] == (("half", "Mirror, 2"), "")
    assert panels_of([study], "participation")["Mirror, 2, half"] == ("half", "Mirror, 2")


# --- differences over seeds ----------------------------------------------------------------------


def cell(*costs: float) -> Cell:
    there = [cost for cost in costs if math.isfinite(cost)]
    return Cell(there, len(costs), {str(seed): cost for seed, cost in enumerate(costs)})


def test_differences_are_scipys() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(10, 2, 12), rng.normal(9, 2, 12)
    found, test = difference(cell(*a), cell(*b), "mean"), stats.ttest_rel(a, b)
    interval = test.confidence_interval(0.95)
    assert found == pytest.approx(
        (np.mean(a - b), interval.low, interval.high, test.pvalue, 12, 12), rel=1e-12
    )
    found = difference(cell(*a), cell(*b), "median")
    d = np.sort(a - b)
    assert found.middle == pytest.approx(np.median(d))
    assert (found.low, found.high) == pytest.approx((d[2], d[9]))  # 96 % by the binomial
    assert found.p == pytest.approx(stats.wilcoxon(a, b, method="exact").pvalue, rel=1e-12)
    many = rng.normal(0.3, 1, 30)
    long = difference(cell(*many), cell(*[0.0] * 30), "median")
    assert long.p == pytest.approx(stats.wilcoxon(many).pvalue)


def test_intervals_hold_what_they_say() -> None:
    """The interval of means, and of medians, over 2000 draws of eight seeds."""
    rng, held = np.random.default_rng(0), {"mean": 0, "median": 0}
    rejected = dict(held)
    for _ in range(2000):
        a, b = rng.normal(1, 1, 8), rng.normal(0, 1, 8)
        for middle in held:
            one = difference(cell(*a), cell(*b), middle)
            held[middle] += one.low <= 1 <= one.high
            none = difference(cell(*(a - 1)), cell(*b), middle)
            rejected[middle] += none.p < 0.05
    assert 0.935 < held["mean"] / 2000 < 0.965
    assert held["median"] / 2000 > 0.98  # 99.2 %: the next interval has only 93 %
    assert all(0.03 < number / 2000 < 0.065 for number in rejected.values())


def test_ties_and_equal_differences() -> None:
    for middle in ("mean", "median"):  # as of methods that do not depend on the seed
        for first, apart in ((5, 2), (3, 0)):
            same = difference(cell(first, first + 1, first + 2), cell(3, 4, 5), middle)
            assert same[:3] == (apart,) * 3
            assert math.isnan(same.p)
    assert difference(cell(3, 4, 5), cell(3, 4, 6), "median").p == 1
    d = [5, 5, 5, 5, 10, -5]  # ranks 3, 3, 3, 3, 6, 3
    signs = [[1 if n >> i & 1 else -1 for i in range(6)] for n in range(64)]
    sums = [abs(sum(s * r for s, r in zip(own, [3, 3, 3, 3, 6, 3], strict=True))) for own in signs]
    expected = sum(total >= 15 for total in sums) / 64
    assert difference(cell(*d), cell(*[0] * 6), "median").p == pytest.approx(expected)
    few = difference(cell(1, 2, 4, 5, 9), cell(0, 0, 0, 0, 0), "median")
    assert math.isnan(few.low)
    assert few.middle == 4
    gone = difference(cell(1, math.nan, 3), cell(1, 2, 3), "mean")
    assert (gone.pairs, gone.total) == (2, 3)


def test_differences_on_the_table(study: Path) -> None:
    flat = targets_of([study], [Target("residual", LEVEL)], ["rounds"])
    table = crossed(flat._replace(failed={}), [study], ["method"], ["participation"])
    compared = paired(table, "FedAvg")
    a, b = (np.array(ROUNDS[name, "half"]) for name in ("Mirror, 2", "FedAvg"))
    expected = stats.ttest_rel(a, b)
    low, high = expected.confidence_interval(0.95)
    assert compared.texts("Mirror, 2") == [
        "too few pairs (1 of 10)", f"-11.0 ({low:.1f} to {high:.1f}), p < 0.001"
    ]  # fmt: skip
    assert compared.notes[0] == (
        "mean difference to FedAvg over the same seeds, with its 95 % interval and the p-value of "
        "the paired t-test, two-sided"
    )
    assert f"--- (1/10) & $-11.0$ [${low:.1f}$, ${high:.1f}$], $p < 0.001$" in compared.latex()
    assert "95 \\% interval" in compared.latex()
    lines = list(csv.DictReader(io.StringIO(compared.csv())))
    assert lines[0]["against"] == ""
    own = next(line for line in lines if line["method"] == "Mirror, 2" and line["pairs"] == "10")
    assert (own["against"], own["test"]) == ("FedAvg", "paired t")
    assert float(own["p_value"]) == pytest.approx(expected.pvalue)
    median = paired(table._replace(middle="median"), "Mirror, 2")
    assert "Wilcoxon's signed-rank test" in median.notes[0]
    assert median.texts("FedAvg")[1] == "10.0 (10.0 to 15.0), p = 0.002"
    assert paired(flat, "FedAvg, half").rows["FedAvg, tenth"][0].pairs == 1  # type: ignore[union-attr]


def test_differences_that_are_refused(study: Path) -> None:
    flat = targets_of([study], [Target("residual", LEVEL)], ["rounds"])
    with pytest.raises(ConfigError, match="no row is called so: did you mean 'FedAvg, half'"):
        paired(flat, "FedAvg, hal")
    ten = cell(*range(10))
    heads = [(Target("residual", LEVEL), "rounds")]
    rows = {"a": [ten], "b": [Cell(ten.spent[:9], 9, {str(i): 1.0 for i in range(9)})]}
    table = flat._replace(heads=heads, rows=rows, failed={})
    with pytest.raises(
        ConfigError, match=r"b ran with the seeds 0, 1, .* 8, and a with 0, .* 9: d"
    ):
        paired(table, "a")
    two = table._replace(rows={"a": [cell(1, 2)], "b": [cell(2, 3)]})
    with pytest.raises(ConfigError, match="at least 3 seeds, and b and a ran with 2: repeat"):
        paired(two, "a")
    twice = table._replace(rows={"a": [ten], "b": [Cell([1.0, 2.0], 2, {"0": 1.0})]})
    with pytest.raises(ConfigError, match="two runs of b have the same seed"):
        paired(twice, "a")
    with pytest.raises(ConfigError, match="no other row"):
        paired(table._replace(rows={"a": [ten]}), "a")


def test_seeds_of_runs(tmp_path: Path) -> None:
    for name, text in (("a", "[run]\nseed = 3\n"), ("b", "[run]\nseed = 1\n[problem]\nseed = 2\n"),
                       ("c", "[problem]\nseed = 4\n")):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(text)
    (tmp_path / "d").mkdir()
    assert seeds_of(sorted(tmp_path.iterdir())) == ["3", "1, problem 2", "problem 4", "d"]


def test_the_command(fedcon, study: Path) -> None:
    to = ("--to", f"residual={LEVEL}")
    out = ran(fedcon, "table", str(study), *to, "--rows", "method", "--columns", "participation",
              "--against", "FedAvg", "-o", "t/a.tex", "-o", "t/a.csv")  # fmt: skip
    assert "each cell: rounds to residual 0.001" in out
    assert "285 (1 of 10)" in out
    assert "too few pairs (1 of 10)" in out
    assert "paired t-test" in out
    assert Path("t/a.tex").read_text().count("\\begin{tabular}") == 2
    assert "p_value" in Path("t/a.csv").read_text()
    words = refusal(fedcon, "table", str(study), *to, "--rows", "method,participation",
                    "--against", "FedDR")  # fmt: skip
    assert "no row is called so" in words


def test_seeds_of_a_comparison_are_pairs(fedcon, undrawn) -> None:
    command = ["compare", "small.toml", "--rounds", "4", "--seeds", "0,1,2", "--run-dir", "many"]
    ran(fedcon, *command)
    to = ("--to", "residual", "--against", "FedFW")
    assert "mean difference to FedFW" in ran(fedcon, "table", "many", *to)
    ran(fedcon, *command[:5], "0,1", "--run-dir", "few")
    assert "at least 3 seeds" in refusal(fedcon, "table", "few", *to)
    table = targets_of([Path("many")], [Target("residual")], [])
    assert isinstance(paired(table, "FedFW").rows["FedFWPlus"][0], Difference)
