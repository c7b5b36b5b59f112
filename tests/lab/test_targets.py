"""Tables for papers: what runs spend until they come to a level."""

from __future__ import annotations

import csv
import re
import statistics
from pathlib import Path

import pytest
from harness import ran, refusal
from left import rows_of

from flower_fedcon import read_runs
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.run_tables import TuningOptions
from flower_fedcon.lab.experiments.runner import Played
from flower_fedcon.lab.experiments.targets import (
    Cell,
    Target,
    TargetTable,
    targets_of,
    with_spread,
)
from flower_fedcon.lab.experiments.tuning import _score
from flower_fedcon.runs.history import EarlyStopping, History
from flower_fedcon.runs.relative import with_relative


@pytest.fixture
def runs(fedcon, undrawn):
    """Play three methods with three seeds, in the folder `many`."""
    command = ["compare", "small.toml", "--rounds", "60", "--seeds", "0,1,2", "--run-dir", "many"]
    ran(fedcon, *command, "--set", "participation.sample=2")
    return {
        slug: [rows_of(f"many/{slug}/seed-{n}") for n in range(3)]
        for slug in ("fedfw", "fedfwplus", "mirror-2-steps")
    }


def test_spreads_by_rounding_add_no_digits():
    cases = {
        (0.0, 2.8e-17): ("0", "2.8e-17"),
        (1e-30, 2.8e-17): ("0", "2.8e-17"),
        (-6.2e-18, 2.3e-17): ("-6e-18", "2.3e-17"),
        (1.0, 2.8e-17): ("1", "2.8e-17"),
        (-123456.7, 1.4e-11): ("-1.23e+05", "1.4e-11"),
        (1.23456789, 1.2e-7): ("1.23456789", "0.00000012"),
    }
    assert {pair: with_spread(*pair) for pair in cases} == cases
    table = TargetTable([(Target("gap"), "gap")], {"FedAvg": [Cell([2e-17, -2e-17], 2)]}, "mean")
    assert table.texts("FedAvg") == ["0 ± 2.8e-17"]
    assert "& $0 \\pm 2.8 \\cdot 10^{-17}$ " in table.latex()


def test_what_is_spent_to_a_level(fedcon, runs):
    ends = sorted(rows[-1]["residual"] for rows in runs["fedfw"])
    level = (ends[0] + ends[1]) / 2  # two seeds of FedFW may not arrive
    to = [Target("residual", 3.0), Target("residual", level)]
    found = targets_of([Path("many")], to, ["rounds", "bytes", "uplink_bytes"])
    assert list(found.rows) == ["FedFW", "FedFWPlus", "Mirror, 2 steps"]
    for slug, cells in zip(runs, found.rows.values(), strict=True):
        expected = []
        for target in to:
            firsts = [
                next((row for row in rows if row["residual"] <= target.level), None)
                for rows in runs[slug]
            ]
            there = [row for row in firsts if row is not None]
            expected.append([row["round"] for row in there])
            both = [row["uplink_bytes"] + row["downlink_bytes"] for row in there]
            expected.append([number / 1e6 for number in both])
            expected.append([row["uplink_bytes"] for row in there])
        assert [cell.spent for cell in cells] == expected
        assert {cell.total for cell in cells} == {3}
    assert len(found.rows["FedFW"][3].spent) < 3
    counted = targets_of([Path("many")], to[:1], ["gradients", "examples"]).rows["FedFW"]
    rounds_there = found.rows["FedFW"][0].spent
    assert counted[0].spent == [2 * number for number in rounds_there]  # of two clients each
    assert all(e > g for e, g in zip(counted[1].spent, counted[0].spent, strict=True))

    last = targets_of([Path("many")], [Target("residual")], ["rounds", "bytes"], "median")
    assert last.titles == ["residual at the end"]
    assert [cell.spent for (cell,) in last.rows.values()] == [
        [rows[-1]["residual"] for rows in histories] for histories in runs.values()
    ]
    assert "at the end" in last.latex()
    assert last.csv().splitlines()[1].startswith("FedFW,residual,,residual,")

    options = ["--to", "residual=3.0", "--to", f"residual={level}", "--of", "rounds"]
    out = ran(fedcon, "table", "many", *options, "-o", "t/a.csv", "-o", "t/a.tex")
    rounds = found.rows["Mirror, 2 steps"][0].spent
    shown = " ± ".join(with_spread(statistics.fmean(rounds), statistics.stdev(rounds)))
    assert shown in out
    with Path("t/a.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 6
    assert float(lines[4]["mean"]) == statistics.fmean(rounds)
    assert (lines[1]["arrived"], lines[1]["runs"]) == (str(len(found.rows["FedFW"][3].spent)), "3")
    tex = Path("t/a.tex").read_text()
    assert tex.count("\\\\") == 5  # two rows of heads, three of numbers
    assert tex.count("&") == 10
    assert "residual $\\le 3$" in tex
    assert "\\toprule" in tex
    _, out, _ = fedcon("table", "many", "--to", "residual=3.0", "--middle", "median")
    low, high = min(rounds), max(rounds)
    assert f"{statistics.median(rounds):.3g} ({low:.3g} to {high:.3g})" in out


def test_relative_is_a_column_where_the_optimum_is_known(tmp_path):
    """It is (F - F*)/|F*| of each run, for tables and figures; a metric of that name stays."""
    rows = [{"round": float(k), "objective": -2.0 + gap, "residual": gap, "seconds": 1.0,
             "uplink_bytes": 1.0, "downlink_bytes": 1.0}
            for k, gap in enumerate((1.0, 0.25, 1e-4))]  # fmt: skip
    assert [row["relative"] for row in with_relative(rows)] == pytest.approx([0.5, 0.125, 5e-5])
    own = [{**row, "relative": 7.0} for row in rows]
    assert with_relative(own) == own
    zero = [{**row, "objective": row["residual"]} for row in rows]
    assert with_relative(zero) == zero
    played = Played(rows)
    assert _score(played, TuningOptions(metric="relative", level=0.2)).value == 1.0
    folder = tmp_path / "one"
    folder.mkdir()
    names = list(rows[0])
    lines = [",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]
    (folder / "history.csv").write_text("\n".join(lines) + "\n")
    table = targets_of([folder], [Target("relative", 0.2)], ["rounds"])
    assert [cell.spent for (cell,) in table.rows.values()] == [[1.0]]
    stop = EarlyStopping(0.2, "relative")
    assert [bool(stop(row)) for row in rows] == [False, True, True]


def test_cells():
    heads = [(Target("kkt", 1e-6), "rounds")]
    labels = {"50% of L_1": Cell([10.0, 14.0], 3), "b": Cell([], 2), "c": Cell([7.0], 1)}
    table = TargetTable(heads, {label: [cell] for label, cell in labels.items()}, "mean")
    assert [table.texts(label) for label in labels] == [
        ["12.0 ± 2.8 (2 of 3)"], ["never (0 of 2)"], ["7"]
    ]  # fmt: skip
    tex = table.latex()
    assert "50\\% of L\\_1 & $12.0 \\pm 2.8$ (2/3)" in tex
    assert tex.endswith(
        "\\par\\smallskip{\\footnotesize Mean and standard deviation over the seeds; where not all "
        "runs arrived, over those alone that did.\\par}\n"
    )
    assert table._replace(rows={"c": [Cell([7.0], 1)]}).notes == []
    of_bytes = table._replace(heads=[(Target("kkt", 1e-6), "uplink")])
    assert "MB: 10^6 bytes over all clients" in of_bytes.notes[-1]
    assert "b & --- (0/2)" in tex
    assert "c & $7$" in tex
    assert "kkt $\\le 10^{-6}$" in tex
    large = TargetTable(heads, {"a": [Cell([2.5e7, 2.5e7], 2)]}, "mean")
    assert "a & $2.5 \\cdot 10^{7} \\pm 0$ " in large.latex()
    median = table._replace(middle="median")
    assert median.texts("50% of L_1") == ["12 (10 to 14), 2 of 3"]
    assert "$12$ [$10$, $14$] (2/3)" in median.latex()


def test_refusals(fedcon):
    ran(fedcon, "run", "small.toml", "--rounds", "2", "--run-dir", "one")
    for options, words in (
        (["--to", "residual="], "write a name and a number"),
        (["--to", "residual=x"], "write a name and a number"),
        (["--to", "residua=1"], "did you mean 'residual'"),
        (["--to", "F-F*=1e-3"], "F - F* has the name 'residual'"),
        (["--to", "residual=99", "--of", "gradient"], "did you mean 'gradients'"),
        (["--to", "residual=99", "--of", "byte"], "did you mean 'bytes'"),
        (["--to", "residual=99", "--middle", "mode"], "middle must be one of"),
        (["--to", "residual=99", "-o", "a.txt"], "must end in .tex or .csv"),
    ):
        assert words in refusal(fedcon, "table", "one", *options)
    Path("empty").mkdir()
    assert "holds no run" in refusal(fedcon, "table", "empty", "--to", "residual=1")


def test_all_runs_as_one_frame(fedcon, runs):
    ran(fedcon, "run", "small.toml", "--rounds", "4", "--run-dir", "more/one")
    frame = read_runs("many", "more")
    assert len(frame) == 9 * 60 + 4
    assert list(frame.columns[:9]) == [
        "folder", "label", "algorithm", "problem", "participation", "engine", "seed",
        "problem_seed", "round",
    ]  # fmt: skip
    assert set(frame["label"]) == {"FedFW", "FedFWPlus", "Mirror, 2 steps"}
    own = frame[(frame["label"] == "Mirror, 2 steps") & (frame["seed"] == 1)]
    assert own["residual"].tolist() == [row["residual"] for row in runs["mirror-2-steps"][1]]
    assert set(own["algorithm"]) == {"FedMiD"}
    assert set(own["participation"]) == {"sample = 2"}
    with pytest.raises(ConfigError, match="holds no run"):
        read_runs("many", "nowhere")
    one = History(None, runs["fedfw"][0])
    assert one.to_frame()["round"].tolist() == list(range(1, 61))
    assert re.fullmatch(r"many/fedfw/seed-0", frame["folder"].iloc[0])
