"""A whole study on four SuperNodes: four hospitals, their own intercepts, errors, what each finds.

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

HEART = Path(__file__).parents[2] / "examples" / "heart"
FEATURES = {"age": "numeric", "sex": "categorical", "exang": "categorical", "oldpeak": "numeric"}
PHASES = "train,evaluate,prepare,certify,statistics,alone"
FILES = ("coefficients.csv", "heterogeneity.csv", "quality.json")
ROUNDS = 6


@pytest.mark.nightly
@pytest.mark.deployment
def test_a_resumed_study_on_four_nodes_has_the_numbers_of_this_process(tmp_path):
    app, schema = tmp_path / "app", tmp_path / "app" / "schema.toml"
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
            "num-partitions": 4,
        }
        for file in files
    ]
    asked = {"l1": 0.0, "inference": "robust", "site-effects": "own", "heterogeneity": True}
    each = {"run-dir": str(tmp_path / "there"), "evaluate-every": ROUNDS, **asked}
    with Deployment(tmp_path / "flower", configs) as deployment:
        deployment.run(app, {**each, "num-server-rounds": 1}, timeout=600)
        again = {**each, "num-server-rounds": ROUNDS, "resume": True}
        output = deployment.run(app, again, timeout=900).output
    problem = tables(
        data=list(map(str, files)), schema=str(schema), inference="robust", site_effects="own",
        heterogeneity=True,
    )  # fmt: skip
    simulate(FedNewton(problem.regularizer), problem, ROUNDS, run_dir=tmp_path / "here")
    for name in FILES:
        known = (tmp_path / "here" / name).read_bytes()
        assert (tmp_path / "there" / name).read_bytes() == known, name
    assert "[ROUND 1/" not in output
    assert "std err" in output
    found = pd.read_csv(tmp_path / "there" / "coefficients.csv", index_col="column")
    assert (found["odds_ratio_lower"] < found["odds_ratio"]).all()
    quality = json.loads((tmp_path / "there" / "quality.json").read_text())
    assert {name: "auc" in own for name, own in quality["sites"].items()} == dict.fromkeys(
        ["cleveland", "hungarian", "switzerland", "va"], True
    )
    write_report([tmp_path / "there"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("Forest plot, odds ratio") == 1 + len(found)
