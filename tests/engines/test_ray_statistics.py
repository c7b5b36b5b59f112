"""Errors, heterogeneity and quality of runs on tables in Ray: the numbers of this process."""

from __future__ import annotations

import pandas as pd
import pytest
from fake_ray import fake_ray  # noqa: F401  (a fixture)
from sites import problem, run, written

pytestmark = pytest.mark.usefixtures("fake_ray")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = written(tmp_path_factory.mktemp("sites"))
    few = pd.read_csv(where / "s1.csv")
    few["any"] = ["yes", "no"] * (len(few) // 2)
    few[:6].to_csv(where / "s9.csv", index=False)  # too few to be fitted alone
    return where


def test_the_same_numbers_in_ray(folder, tmp_path):
    made = problem(
        folder, "logistic", {"test_fraction": 0.2}, inference="robust", heterogeneity=True
    )
    known = run(made, 6).report
    how = {"engine": "ray", "clients_per_message": 3, "run_dir": tmp_path / "run"}
    run(made, 1, **how)
    found = run(made, 6, resume=True, **how).report
    assert found.rows == known.rows
    assert found.errors == known.errors
    assert found.quality.pooled == known.quality.pooled
    for name in ("values", "bse", "ratio", "ratio_df"):
        one, other = (getattr(each.heterogeneity, name) for each in (found, known))
        assert one.tobytes() == other.tobytes()
    (why,) = found.heterogeneity.left_out.values()
    assert "a fit needs more rows than parameters" in why
