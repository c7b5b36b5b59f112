"""A whole study on four SuperNodes: four hospitals, own or random intercepts, what each finds.

On loopback, by a run that ends early and is resumed. What takes no deployment is in
test_sites_on_nodes.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from deployment import Deployment

from flower_fedcon import simulate
from flower_fedcon.lab.report.page import write_report
from flower_fedcon.problems import tables
from flower_fedcon.strategies import FedNewton

HEART = Path(__file__).parents[3] / "examples" / "heart"
SITES = ["cleveland", "hungarian", "switzerland", "va"]
FEATURES = {"age": "numeric", "sex": "categorical", "exang": "categorical", "oldpeak": "numeric"}
PHASES = "train,evaluate,prepare,certify,statistics,alone"
FILES = ("coefficients.csv", "quality.json")
ROUNDS = 6


def studied(folder, **asked):
    """Play a study on four nodes in two parts, and in this process; return what the nodes' said."""
    app, schema = folder / "app", folder / "app" / "schema.toml"
    shutil.copytree(HEART / "app", app)
    head = schema.read_text().partition("[features]")[0]
    rows = "\n".join(f'{name} = "{kind}"' for name, kind in FEATURES.items())
    schema.write_text(f"{head}[features]\n{rows}\n")
    files = sorted(HEART.glob("*.csv"))
    configs = [
        {
            "data": str(file),
            "name": file.stem,
            "policy.phases": PHASES,
            "policy.min-cell": 1,
            "predictions-dir": str(folder / "own"),
            "num-partitions": 4,
        }
        for file in files
    ]
    settings = {name.replace("_", "-"): value for name, value in asked.items()}
    each = {"run-dir": str(folder / "there"), "evaluate-every": ROUNDS, "l1": 0.0, **settings}
    with Deployment(folder / "flower", configs) as deployment:
        deployment.run(app, {**each, "num-server-rounds": 1}, timeout=600)
        again = {**each, "num-server-rounds": ROUNDS, "resume": True}
        output = deployment.run(app, again, timeout=900).output
    problem = tables(data=list(map(str, files)), schema=str(schema), **asked)
    simulate(FedNewton(problem.regularizer), problem, ROUNDS, run_dir=folder / "here")
    for name in FILES:
        known = (folder / "here" / name).read_bytes()
        assert (folder / "there" / name).read_bytes() == known, name
    assert "[ROUND 1/" not in output
    assert "std err" in output
    return pd.read_csv(folder / "there" / "coefficients.csv", index_col="column")


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_resumed_study_on_four_nodes_has_the_numbers_of_this_process(tmp_path):
    found = studied(tmp_path, inference="robust", site_effects="own", heterogeneity=True)
    known, there = (tmp_path / place / "heterogeneity.csv" for place in ("here", "there"))
    assert there.read_bytes() == known.read_bytes()
    assert (found["odds_ratio_lower"] < found["odds_ratio"]).all()
    quality = json.loads((tmp_path / "there" / "quality.json").read_text())
    assert {name: "auc" in own for name, own in quality["sites"].items()} == dict.fromkeys(
        SITES, True
    )
    write_report([tmp_path / "there"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("Forest plot, odds ratio") == 1 + len(found)


@pytest.mark.nightly
@pytest.mark.deployment
def test_random_intercepts_of_four_hospitals(tmp_path):
    found = studied(tmp_path, site_effects="random")
    assert 0 < found.loc["(site sd)", "p_value"] < 0.05
    own = {site: pd.read_csv(tmp_path / "own" / f"{site}.effects.csv") for site in SITES}
    effects = [own[site].loc[0, "random_intercept"] for site in SITES]
    assert all(own[site].loc[0, "group"] == site for site in SITES)
    assert min(effects) < 0 < max(effects)
    here, there = (json.loads((tmp_path / p / "model.json").read_text()) for p in ("here", "there"))
    assert there["site_sd"] == here["site_sd"] == found.loc["(site sd)", "per_unit"]
