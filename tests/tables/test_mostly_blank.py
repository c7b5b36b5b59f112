"""Columns that are blank in most rows of one site: merged cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tabular import deal

from flower_fedcon.tables.builders import tables

SCHEMA = {"target": "y", "loss": "squared", "features": {"age": "numeric", "sex": "categorical"}}


@pytest.mark.parametrize(("every", "said"), [(1, False), (2, False), (6, True)])
@pytest.mark.parametrize("sites", [1, 2])
def test_merged_cells(sites, every, said, tmp_path):
    """Every sixth row has the values of its patient at one site, or at two."""
    rng, rows = np.random.default_rng(0), np.arange(180)
    frame = pd.DataFrame({"y": rng.normal(size=180), "age": rng.integers(20, 90, 180).astype(float),
                          "sex": rng.choice(["f", "m"], 180)})  # fmt: skip
    blank = (rows >= 60) & (rows < 60 * (1 + sites)) & (rows % every > 0)
    frame.loc[blank, ["age", "sex"]] = [np.nan, ""]
    data = deal(tmp_path, frame, [range(k * 60, (k + 1) * 60) for k in range(3)])
    found = [line for line in tables(data=data, schema=SCHEMA).preparation.remarks
             if "are cells merged there" in line]  # fmt: skip
    begin = [f"column '{name}': 50 of 60 rows of site1 have no value" for name in ("age", "sex")]
    assert [line.partition(", and")[0] for line in found] == begin * (said and sites == 1)
