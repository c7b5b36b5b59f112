"""Hazards in time after a Cox run on tables: R's cox.zph, baselines, in process and on nodes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fake_grid import on_grid
from test_tables_on_nodes import make_grid
from trials import rossi

from flower_fedcon import simulate
from flower_fedcon.estimators import FederatedCoxRegression
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.ending import final_exchanges
from flower_fedcon.tables.ending.final_hazards import final_hazards
from flower_fedcon.tables.own_files import written_by

COLUMNS = ["fin", "age", "prio"]
TIMES = [10.0, 20.0, 30.0, 40.0, 52.0]
STATED = {
    "target": "week", "event": "arrest", "ties": "efron", "curve_times": TIMES,
    "features": dict.fromkeys(COLUMNS, "numeric"),
}  # fmt: skip
# R 4.2.2, survival 3.5-3: cox.zph(fit, "log", terms = FALSE) of ... + strata(race).
R_LOG = [0.20858616208764588218, 8.56712120835462442869, 0.00095122468580186741,
         8.99214147058060930817]  # fmt: skip
BOTH = "train,evaluate,prepare,curves,statistics,baseline"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("rossi")
    for race, own in rossi().groupby("race"):
        own.to_csv(where / f"race{race}.csv", index=False)
    return where


def here(folder, **more):
    made = tables(data=f"{folder}/*.csv", schema=STATED, inference="model")
    return simulate(FedNewton(made.regularizer), made, 12, **more).report


def test_a_run_tests_hazards_as_r_does(folder, tmp_path):
    found = here(folder, run_dir=tmp_path / "run")
    file = pd.read_csv(tmp_path / "run" / "proportionality.csv", index_col="column")
    assert list(file.index) == [*COLUMNS, "GLOBAL"]
    np.testing.assert_allclose(file["chi2"], R_LOG, rtol=1e-6)
    assert file["df"].tolist() == [1, 1, 1, 3]
    assert "age: chi2 8.567, p = 0.00342" in found.text
    assert "of held-out rows" not in found.text  # there are none
    d = rossi()
    model = FederatedCoxRegression(0.0, ties="efron", share_baseline=True)
    model.fit(d[COLUMNS], d[["week", "arrest"]], d["race"])
    own = pd.read_csv(tmp_path / "run" / "baseline.csv")
    for race, known in model.baseline_cumulative_hazard_.items():
        steps = np.append(0.0, known[:, 1])[np.searchsorted(known[:, 0], TIMES, side="right")]
        told = own[own["client"] == f"race{race}"]["cumulative_hazard"]
        np.testing.assert_allclose(told, steps, rtol=1e-6)
    for name in ("proportionality", "baseline"):
        assert written_by(list(pd.read_csv(tmp_path / "run" / f"{name}.csv"))) == "a run"


@on_grid
def test_nodes_tell_what_their_policy_lists(folder, monkeypatch):
    files, schema, known = sorted(folder.glob("*.csv")), Schema.load(STATED), here(folder)

    def there(*configs):
        grid = make_grid(files, schema)
        for j, config in enumerate(configs):
            grid.nodes[1000 - j].node_config |= config
        return FedNewton().start(
            grid, num_rounds=12, schema=schema, weighting="examples", inference="model"
        ).history.report  # fmt: skip

    one = {"policy.phases": BOTH, "policy.min-cell": 1}
    found = there(one, one | {"policy.phases": BOTH.removesuffix(",baseline")})
    np.testing.assert_array_equal(found.hazards.test.statistic, known.hazards.test.statistic)
    same = found.hazards.baselines["race0"]
    np.testing.assert_array_equal(same, known.hazards.baselines["race0"])
    assert "no baseline hazard of site race1: refused" in found.text
    # Of two grids that differ by one event the difference would be that event's time.
    with monkeypatch.context() as server:
        server.setattr(
            final_exchanges, "final_hazards", lambda s, e, t: final_hazards(s, e, t - 0.5)
        )
        assert there(one, one).text.count("refused: this node sends baseline hazards only at") == 2
    # With few events in an interval the hazard waits until there are enough.
    few = {"policy.phases": BOTH, "policy.min-rows": 25}
    merged = there(few, few).hazards
    assert merged.baselines["race1"][0] == 0 < merged.baselines["race1"][-1]
    assert "fewer than 25 events, the least by its policy" in merged.test  # of race0's 12 events
