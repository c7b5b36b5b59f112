"""A study's figures and its page: the model first, named by outcome; what print needs."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from harness import refusal

from flower_fedcon import simulate
from flower_fedcon.lab.report import study_figures
from flower_fedcon.lab.report.contents import Curves, RunContents, read_folders
from flower_fedcon.lab.report.page import page
from flower_fedcon.lab.report.sections import title
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables.builders import tables


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
    first = ["Coefficients", "Coefficients with 95 % intervals", "On held-out rows"]
    assert titles[:6] == [*first, "Sites&#x27; own estimates", "Rows by site", "In words"]
    assert titles[6:] == ["Summary", "Who took part, and who failed when", "Configuration"]
    assert text.index("In words") < text.index('<div id="charts">')
    assert "FedNewton</span>" not in text
    assert "ill: Logistic regression" in text
    with (runs / "ill" / "coefficients.csv").open() as lines:
        row = next(row for row in csv.DictReader(lines) if row["column"] == "age")
    cells = re.findall(r"<td.*?>(.*?)</td>", text.partition("<tbody>")[2].partition("</tr>")[0])
    ends = [f"{float(row[f'odds_ratio{end}']):.4g}" for end in ("", "_lower", "_upper")]
    assert cells[0] == "age"
    assert cells[-2:] == [ends[0], f"{ends[1]} to {ends[2]}"]


def test_the_words_on_a_cox_model_name_its_strata(runs):
    """A partial likelihood has neither deviance nor dispersion."""
    said = (runs / "days" / "report.txt").read_text()
    assert "stratified by site: each site has its own baseline hazard" in said
    assert not {"Deviance:", "Dispersion:"} & {*said.split()}
    others = (runs / "ill" / "report.txt").read_text()
    assert {"Deviance:", "Dispersion:"} <= {*others.split()}
    assert "stratified by site" not in others


def test_a_page_of_several_studies_is_headed_by_their_titles():
    one, other = (
        Curves(name, [RunContents(name, Path(name), settings={"title": f'"Study {name}"'})], [])
        for name in "ab"
    )
    assert title([one, one]) == "Study a"
    assert title([one, other]) == "Study a, Study b"
    nameless = Curves("c", [RunContents("c", Path("c"))], [])
    assert title([one, nameless]) == "Runs: a, c"


def test_rows_by_site_are_those_of_pandas(runs):
    """Of those trained on; of a site with too few rows of a kind nothing is said."""
    found = (
        pd.read_csv(runs / "score" / "descriptives.csv")
        .set_index(["column", "client"])
        .sort_index()
    )
    sites = {site: pd.read_csv(runs / f"{site}.csv") for site in ("north", "south", "west")}
    sites["(together)"] = pd.concat(sites.values())
    for site, rows in sites.items():
        own = found.loc[("age", site)].iloc[0]
        known = [len(rows), rows["age"].mean(), rows["age"].std()]
        np.testing.assert_allclose(own[["values", "mean", "std_dev"]].astype(float), known)
        own = found.loc[("arm", site)].set_index("category")
        assert own["values"].to_dict() == rows["arm"].value_counts().to_dict()
        np.testing.assert_allclose(own["share"]["new"], (rows["arm"] == "new").mean())
    found = (
        pd.read_csv(runs / "days" / "descriptives.csv").set_index(["column", "client"]).sort_index()
    )
    events = {site: int(rows["died"].sum()) for site, rows in sites.items()}
    assert found.loc["died"]["values"].to_dict() == events
    text = page(read_folders([runs / "score"]), "")
    part = text.partition("<h2>Rows by site")[2].partition("</section>")[0]
    new = sites["north"]["arm"].eq("new")
    assert f"{new.sum()} ({100 * new.mean():.1f} %)" in part
    few = tables(data=f"{runs}/*h.csv", min_rows=40, schema={
        "target": "score", "features": {"age": "numeric", "arm": "categorical"}})  # fmt: skip
    table = few.preparation.described.table
    counts = {
        row[2]: row[3] for row in zip(*table.values(), strict=True) if row[:2] == ("arm", "new")
    }
    known = {site: int(sites[site]["arm"].eq("new").sum()) for site in ("north", "south")}
    assert {site: counts[site] for site in known} == {
        site: n if min(n, len(sites[site]) - n) >= 40 else None for site, n in known.items()
    }
    assert counts["south"] is None  # "old" would be the others, and has fewer than 40


def test_a_column_of_many_categories_is_not_described(tmp_path):
    for k, site in enumerate(("a", "b")):
        rows = "\n".join(f"{j % 150 + 100 * k},{'fm'[j % 2]},{j}" for j in range(300))
        (tmp_path / f"{site}.csv").write_text(f"zip,sex,y\n{rows}\n")
    schema = {"target": "y", "features": dict.fromkeys(["zip", "sex"], "categorical")}
    table = tables(data=f"{tmp_path}/*.csv", schema=schema, l2=1.0).preparation.described.table
    assert set(table["column"]) == {"sex"}
    assert table["values"] == [150, 150, 300] * 2


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
