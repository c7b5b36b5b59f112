"""Errors, heterogeneity and quality of runs on tables in Ray: the numbers of this process."""

from __future__ import annotations

import pandas as pd
import pytest
from fake_ray import fake_ray  # noqa: F401  (a fixture)
from sites import problem, run, written

FILES = ("coefficients.csv", "report.txt", "quality.json", "model.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = written(tmp_path_factory.mktemp("sites"))
    few = pd.read_csv(where / "s1.csv")
    few["any"] = ["yes", "no"] * (len(few) // 2)
    few[:6].to_csv(where / "s9.csv", index=False)  # too few to be fitted alone
    return where


def same_folders(here, there):
    """Expect the same bytes in all that a study is written up from."""
    for name in (*FILES, "heterogeneity.csv"):
        if (here / name).exists() or name in FILES:
            assert (there / name).read_bytes() == (here / name).read_bytes(), name


@pytest.mark.usefixtures("fake_ray")
def test_the_same_numbers_in_ray(folder, tmp_path):
    made = problem(
        folder, "logistic", {"test_fraction": 0.2}, inference="robust", heterogeneity=True
    )
    known = run(made, 6, run_dir=tmp_path / "here", certificates=True).report
    how = {"engine": "ray", "clients_per_message": 3, "run_dir": tmp_path / "run"}
    how["certificates"] = True
    run(made, 1, **how)
    found = run(made, 6, resume=True, **how).report
    same_folders(tmp_path / "here", tmp_path / "run")
    assert found.rows == known.rows
    assert found.errors == known.errors
    assert found.quality.pooled == known.quality.pooled
    for name in ("values", "bse", "ratio", "ratio_df"):
        one, other = (getattr(each.heterogeneity, name) for each in (found, known))
        assert one.tobytes() == other.tobytes()
    (why,) = found.heterogeneity.left_out.values()
    assert "a fit needs more rows than parameters" in why


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.parametrize("per_message", [None, 1])
def test_a_study_in_flower_s_simulation(per_message, folder, tmp_path):
    """Robust errors, own intercepts, what each site finds alone: the same bytes."""
    asked = {"inference": "robust", "heterogeneity": True}
    made = problem(folder, "poisson", {"test_fraction": 0.2}, **asked)
    run(made, 6, run_dir=tmp_path / "here", certificates=True)
    more = {} if per_message is None else {"clients_per_message": per_message}
    run(made, 6, engine="ray", run_dir=tmp_path / "run", certificates=True, **more)
    same_folders(tmp_path / "here", tmp_path / "run")
    assert "took part: s0 (" in (tmp_path / "run" / "report.txt").read_text()
