"""A study's figures and its page: the model first, named by outcome; what print needs."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest
from harness import refusal

from flower_fedcon import simulate
from flower_fedcon.lab.report import study_figures
from flower_fedcon.lab.report.contents import read_folders
from flower_fedcon.lab.report.page import page
from flower_fedcon.problems.tables import tables
from flower_fedcon.strategies import FedNewton


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A logistic run with all that a page shows, a linear one, and one of survival times."""
    where, rng = tmp_path_factory.mktemp("study"), np.random.default_rng(3)
    for k, site in enumerate(("north", "south", "west")):
        with (where / f"{site}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["age", "arm", "ill", "score", "days", "died"])
            for _ in range(90):
                age, arm = rng.normal(60, 9), rng.choice(["new", "old"])
                ill = rng.random() < 1 / (1 + np.exp(-0.05 * (age - 60) - 0.2 * k))
                days = rng.exponential(300)
                rows.writerow([age, arm, int(ill), age + rng.normal(), days, int(days < 500)])
    features = {"age": "numeric", "arm": {"type": "categorical", "reference": "old"}}
    for name, schema, settings in (
        ("ill", {"target": "ill", "positive": ["1"], "test_fraction": 0.3},
         {"heterogeneity": True, "site_effects": "common"}),
        ("score", {"target": "score"}, {"site_effects": "own"}),
        ("days", {"target": "days", "event": "died", "curve_times": [100, 200, 400],
                  "curve_by": "arm"}, {}),
    ):  # fmt: skip
        made = tables(data=f"{where}/*.csv", schema={**schema, "features": features},
                      inference="model", **settings)  # fmt: skip
        simulate(FedNewton(made.regularizer), made, 8, run_dir=where / name)
    return where


def test_a_page_of_tables_begins_with_the_model(runs):
    text = page(read_folders([runs / "ill"]), "")
    titles = re.findall("<h2>(.*?)</h2>", text)
    first = ["Coefficients", "Coefficients with 95 % intervals", "On rows held out"]
    assert titles[:5] == [*first, "What sites find alone", "In words"]
    assert titles[5:] == ["Summary", "Who took part, and who failed when", "Configuration"]
    assert text.index("In words") < text.index('<div id="charts">')
    assert "FedNewton</span>" not in text
    assert "ill: Logistic regression" in text
    with (runs / "ill" / "coefficients.csv").open() as lines:
        row = next(row for row in csv.DictReader(lines) if row["column"] == "age")
    cells = re.findall(r"<td.*?>(.*?)</td>", text.partition("<tbody>")[2].partition("</tr>")[0])
    ends = [f"{float(row[f'odds_ratio{end}']):.4g}" for end in ("", "_lower", "_upper")]
    assert cells[0] == "age"
    assert cells[-2:] == [ends[0], f"{ends[1]} to {ends[2]}"]


def test_runs_are_named_by_outcome_and_model(runs):
    found = read_folders([runs / "ill", runs / "score", runs / "days"])
    assert [each.label for each in found] == [
        "ill: Logistic regression",
        "score: Linear regression, an intercept for each site",
        "days: Cox regression",
    ]
    twice = read_folders([runs / "ill", runs / "ill"])
    assert twice[0].label == "ill: Logistic regression (FedNewton)"
    assert len({each.label for each in twice}) == 2
    (runs / "ill" / "model.json").rename(runs / "model.json")
    try:
        (run,) = read_folders([runs / "ill"])[0].runs
        assert run.label == "FedNewton"
        (runs / "ill" / "model.json").write_text("{")
        (run,) = read_folders([runs / "ill"])[0].runs
        assert "outcome and model are not known" in run.missing[0]
    finally:
        (runs / "model.json").replace(runs / "ill" / "model.json")


def drawn(monkeypatch, folders, kind):
    """The figure that would be written."""
    figures = []
    monkeypatch.setattr(study_figures, "save_figure", lambda figure, _: figures.append(figure))
    study_figures.plot_study(folders, kind, [])
    return figures[0]


def test_a_forest_plot_has_the_file_s_numbers(runs, monkeypatch):
    figure = drawn(monkeypatch, [runs / "ill", runs / "score"], "forest")
    first, second = figure.axes[:2]
    assert [label.get_text() for label in first.get_yticklabels()] == ["age", "arm=new"]
    assert first.get_xscale() == "log"
    assert second.get_xscale() == "linear"
    with (runs / "ill" / "coefficients.csv").open() as lines:
        row = next(csv.DictReader(lines))
    ends = [float(row[f"odds_ratio_{end}"]) for end in ("lower", "upper")]
    np.testing.assert_allclose(first.lines[0].get_xdata(), ends, rtol=1e-12)
    beside = [label.get_text() for own in figure.axes[2:] for label in own.get_yticklabels()]
    assert f"{float(row['odds_ratio']):.3g} ({ends[0]:.3g} to {ends[1]:.3g})" in beside


@pytest.mark.parametrize(
    ("kind", "run", "panels"),
    [("sites", "ill", 2), ("roc", "ill", 1), ("calibration", "ill", 1), ("survival", "days", 1)],
)
def test_each_kind_is_written(runs, run_command, tmp_path, kind, run, panels, monkeypatch):
    paths = [tmp_path / f"figure.{suffix}" for suffix in ("png", "svg", "pdf")]
    named = [word for path in paths for word in ("-o", str(path))]
    code, said, _ = run_command("plot", str(runs / run), "--kind", kind, *named)
    assert (code, said.count("figure: ")) == (0, 3)
    for path, start in zip(paths, (b"\x89PNG", b"<?xml", b"%PDF"), strict=True):
        assert path.read_bytes().startswith(start)
    figure = drawn(monkeypatch, [runs / run], kind)
    titles = [axis.get_title() for axis in figure.axes]
    assert sum(map(bool, titles)) == panels


def test_what_a_run_has_not_is_refused(runs, run_command, tmp_path):
    out = ["-o", str(tmp_path / "a.png")]
    for kind, words in (("sites", "heterogeneity = true"), ("roc", "test_fraction"),
                        ("survival", "curve_times")):  # fmt: skip
        assert words in refusal(run_command, "plot", str(runs / "score"), "--kind", kind, *out)
    said = refusal(run_command, "plot", str(runs / "score"), "--kind", "forrest", *out)
    assert "forest" in said
    both = ["plot", str(runs / "score"), "--kind", "forest", "--y", "kkt", *out]
    assert "--kind draws no history" in refusal(run_command, *both)
