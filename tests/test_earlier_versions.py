"""What earlier versions wrote is read: `tests/support/written_by_0_1_0` was written by 0.1.0."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from pages import ROOT

import flower_fedcon
from flower_fedcon import FederatedProblem, Policy, Sample, load_model, read_runs, simulate
from flower_fedcon.clients.scaffold import ScaffoldClientState
from flower_fedcon.core.protocol import RunInfo
from flower_fedcon.flower.stores import FileStore
from flower_fedcon.lab.report.page import write_report
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import Quadratic
from flower_fedcon.problems import tables
from flower_fedcon.strategies import FedNewton, Scaffold

WRITTEN = ROOT / "tests" / "support" / "written_by_0_1_0"


@pytest.fixture
def written(tmp_path):
    """A copy of the files, with a path in place of that of the machine that wrote them."""
    return shutil.copytree(WRITTEN, tmp_path / "written")


def scaffold():
    return Scaffold(client_lr=0.1, local_steps=2, participation=Sample(count=2))


def quadratics():
    return FederatedProblem([Quadratic([[2.0, 0.0], [0.0, 1.0 + j]], [j, 1.0]) for j in range(4)])


def test_they_are_of_that_version():
    for run in ("run", "study"):
        environment = json.loads((WRITTEN / run / "environment.json").read_text())
        assert environment["packages"]["flower-fedcon"] == "0.1.0" != flower_fedcon.__version__


def test_a_checkpoint_goes_on_and_says_what_has_changed(written, caplog):
    calm = simulate(scaffold(), quadratics(), 9)
    resumed = simulate(scaffold(), quadratics(), 9, run_dir=written / "run", resume=True)
    assert [row["round"] for row in resumed.rows] == [row["round"] for row in calm.rows]
    assert np.allclose(resumed.x, calm.x, rtol=1e-12, atol=1e-14)
    assert resumed["objective"] == pytest.approx(calm["objective"], rel=1e-12)
    assert f"flower-fedcon 0.1.0, now {flower_fedcon.__version__}" in caplog.text


def test_histories_and_reports(written, tmp_path):
    runs = read_runs(written / "run", written / "study")
    assert sorted(runs.groupby("algorithm")["round"].max().items()) == [
        ("FedNewton", 4), ("Scaffold", 6),
    ]  # fmt: skip
    page = tmp_path / "page.html"
    write_report([written / "run", written / "study"], page)
    assert "0.1.0" in page.read_text()


def test_a_model_of_tables_predicts_as_a_new_one(written):
    schema = json.loads((written / "study" / "model.json").read_text())["schema"]
    problem = tables(data=f"{written}/data/*.csv", schema=schema, l1=0.01)
    simulate(FedNewton(problem.regularizer), problem, 4, run_dir=written / "new")
    models = [load_model(written / name) for name in ("study", "new")]
    a, b = (model.predict(written / "data" / "a.csv") for model in models)
    assert np.allclose(a, b, rtol=1e-9)
    assert np.ptp(a) > 0.1


def test_a_client_s_state(written):
    layout = Layout(((2,),), "float64", layered=False)
    run = RunInfo("scaffold", 0, layout, 1, run_id="ab" * 16)
    store = FileStore(written / "state", "site a", Policy.open())
    found = store.load(run, ScaffoldClientState)
    assert (found.round, found.pending) == (3, None)
    assert found.acknowledged.c.tolist() == [0.5, -1.5]
