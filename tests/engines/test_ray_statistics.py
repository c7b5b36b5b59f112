"""Errors, effects of sites and quality of runs on tables in Ray: the numbers of this process."""

from __future__ import annotations

import pandas as pd
import pytest
from sites import problem, run, written

FILES = ("coefficients.csv", "report.txt", "quality.json", "model.json")
ASKED = {
    "own": {"inference": "robust", "heterogeneity": True},
    "random": {"inference": None, "site_effects": "random"},
}


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


@pytest.mark.usefixtures("fake_ray")
@pytest.mark.parametrize("each", [1, 3])
def test_random_intercepts_in_ray(folder, tmp_path, each):
    more = {"cluster": "plan", "test_fraction": 0.2}
    made = problem(folder, "logistic", more, **ASKED["random"])
    run(made, 8, run_dir=tmp_path / "here", certificates=True)
    how = {"engine": "ray", "clients_per_message": each, "run_dir": tmp_path / "run"}
    run(made, 1, **how, certificates=True)
    found = run(made, 8, resume=True, **how, certificates=True).report
    assert found.random.groups > len(made.names)
    same_folders(tmp_path / "here", tmp_path / "run")


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.parametrize(("per_message", "what"), [(None, "own"), (1, "own"), (None, "random")])
def test_a_study_in_flower_s_simulation(per_message, what, folder, tmp_path):
    """Robust errors, own or random intercepts, what each site finds alone: the same bytes."""
    made = problem(folder, "poisson", {"test_fraction": 0.2}, **ASKED[what])
    run(made, 6, run_dir=tmp_path / "here", certificates=True)
    more = {} if per_message is None else {"clients_per_message": per_message}
    run(made, 6, engine="ray", run_dir=tmp_path / "run", certificates=True, **more)
    same_folders(tmp_path / "here", tmp_path / "run")
    assert "took part: s0 (" in (tmp_path / "run" / "report.txt").read_text()
