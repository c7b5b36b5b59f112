"""Standard errors of linear predictors: those of statsmodels on the pooled rows."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sites import COLUMNS, problem, run, written
from typer.testing import CliRunner

from flower_fedcon import load_model
from flower_fedcon.cli.command import app as fedcon
from flower_fedcon.errors import ConfigError

FAMILIES = {
    "squared": sm.families.Gaussian(),
    "logistic": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("sites"))


@pytest.mark.parametrize("effects", ["common", "own"])
@pytest.mark.parametrize("loss", FAMILIES)
def test_they_are_statsmodels(loss, effects, folder, tmp_path):
    """With own intercepts they are of the difference from a row of zeros of the same site."""
    run(problem(folder, loss, site_effects=effects), 15, run_dir=tmp_path / "run")
    rows = pd.read_csv(folder / "all.txt")
    y = (rows["any"] == "yes").astype(float) if loss == "logistic" else rows["mdvis"]
    sites = pd.get_dummies(rows["site"], prefix="site").astype(float)
    more = sites if effects == "own" else pd.DataFrame({"one": np.ones(len(rows))})
    X = rows[COLUMNS].join(more)
    known = sm.GLM(y, X, family=FAMILIES[loss]).fit(tol=1e-14, maxiter=100).cov_params()
    new = pd.read_csv(folder / "s1.csv")
    V, A = known.loc[COLUMNS, COLUMNS].to_numpy(), new[COLUMNS].to_numpy()
    if effects == "common":
        V, A = known.to_numpy(), np.column_stack([A, np.ones(len(A))])
    expected = np.sqrt(np.einsum("ij,jk,ik->i", A, V, A))
    model = load_model(tmp_path / "run")
    np.testing.assert_allclose(model.standard_errors(folder / "s1.csv"), expected, rtol=1e-7)
    out = tmp_path / "out.csv"
    arguments = ["predict", str(tmp_path / "run"), str(folder / "s1.csv"), "-o", str(out)]
    assert CliRunner().invoke(fedcon, arguments).exit_code == 0
    with out.open() as lines:
        written_errors = [float(row["std_error"]) for row in csv.DictReader(lines)]
    assert written_errors == model.standard_errors(folder / "s1.csv").tolist()


def test_without_inference_there_are_none(folder, tmp_path):
    made = problem(folder, "poisson", site_effects="common", inference=None)
    run(made, 3, run_dir=tmp_path / "run")
    model = load_model(tmp_path / "run")
    with pytest.raises(ConfigError, match='run it with inference = "model"'):
        model.standard_errors(folder / "s1.csv")
    assert "std_error" not in model.columns_of(folder / "s1.csv")
