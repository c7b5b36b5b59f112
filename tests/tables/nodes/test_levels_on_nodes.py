"""Table 1 by level, and numbers at risk, on nodes: where a policy lists them, with its cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_grid import on_grid
from table_nodes import same_files, start
from trials import gbsg2

from flower_fedcon import simulate
from flower_fedcon.errors import FedConError
from flower_fedcon.privacy import SecAggPlus
from flower_fedcon.strategies import FedAvg, FedNewton
from flower_fedcon.tables import Schema
from flower_fedcon.tables.builders import tables

FILES = [Path("I.csv"), Path("II.csv"), Path("III.csv")]
SCHEMA = {
    "target": "time", "event": "cens", "curve_times": [200.0, 500.0, 1000.0, 1500.0, 2000.0],
    "curve_by": "horTh", "describe_by": "horTh",
    "features": {"age": "numeric", "pnodes": "numeric", "menostat": "categorical",
                 "horTh": "categorical"},
}  # fmt: skip
ALLOWED = "train,query,evaluate,prepare,curves,levels"


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return gbsg2, of which each site has a file."""
    monkeypatch.chdir(tmp_path)
    whole = gbsg2()
    for file in FILES:
        whole[whole["tgrade"] == file.stem].to_csv(file, index=False)
    return whole


@on_grid
@pytest.mark.parametrize("least", [1, 5])
def test_nodes_tell_what_this_process_tells(study, least):
    node = {"policy.phases": ALLOWED, "policy.min-rows": least, "policy.min-cell": least}
    start(FILES, Schema.load(SCHEMA), 2, node=node, run_dir="nodes")
    made = tables(data=list(map(str, FILES)), schema=SCHEMA, min_rows=least)
    simulate(FedNewton(), made, 2, run_dir="here")
    same_files(Path("here"), Path("nodes"), "by_level.csv", "by_level_tests.csv", "at_risk.csv")


@on_grid
def test_a_node_whose_policy_does_not_list_levels_refuses(study):
    node = {"policy.phases": ALLOWED.replace(",levels", "")}
    with pytest.raises(FedConError, match=r"policy has policy\.phases = train.*, not levels"):
        start(FILES, Schema.load(SCHEMA), 2, node=node, max_retries=0)


@on_grid
def test_cells_below_min_cell_are_merged_though_rows_are_told(study):
    """By default a node counts cells of 3 rows at least."""
    node = {"policy.phases": ALLOWED, "policy.min-cell": 40}
    found = start(FILES, Schema.load(SCHEMA), 2, node=node, run_dir="nodes").report.by_level
    assert any("I" in one for one in found.untold)  # 81 rows, 26 of which have hormones
    numbers = np.genfromtxt("nodes/at_risk.csv", delimiter=",", skip_header=1, usecols=(1, 2))
    assert numbers[0, 1] == (study["horTh"] == "no").sum()


@on_grid
def test_sums_of_uploads_leave_levels_as_they_are(study):
    """Secure aggregation masks uploads of rounds, not what nodes tell before them."""
    node = {"policy.phases": ALLOWED, "policy.min-cell": 1}
    secure = SecAggPlus(clipping_range=100.0)
    method = FedAvg(client_lr=0.01, local_steps=1)
    start(FILES, Schema.load(SCHEMA), 1, made=method, node=node, secure_aggregation=secure,
          run_dir="nodes")  # fmt: skip
    made = tables(data=list(map(str, FILES)), schema=SCHEMA)
    simulate(method, made, 1, run_dir="here")
    same_files(Path("here"), Path("nodes"), "by_level.csv", "at_risk.csv")
