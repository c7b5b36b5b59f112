"""Numbers at risk below a curve: R's where all are told, and no small step where they are not."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tabular import deal, study
from trials import gbsg2

from flower_fedcon.tables.numbers_at_risk import numbers_at_risk

# R 4.2.2, survival 3.5-3, of GBSG2: times = c(0, 500, 1000, 2000) in
# summary(survfit(Surv(time, cens) ~ horTh), times = times)$n.risk
R = {"no": [440, 345, 210, 38], "yes": [246, 208, 142, 37]}


def test_the_command_has_those_of_survfit(tmp_path, run_command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pattern = deal(tmp_path, gbsg2(), 3)
    schema = "target = 'time'\nevent = 'cens'\n[features]\nage = 'numeric'\nhorTh = 'categorical'\n"
    study(tmp_path, schema, data=Path(pattern).name)
    code, out, err = run_command(
        "data", "curves", "study.toml", "--by", "horTh", "--grid", "500,1000,2000",
        "--numbers", "n.csv", "-o", "c.svg",
    )  # fmt: skip
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(Path("n.csv").read_text().splitlines()))
    found = {arm: [int(r["at_risk"]) for r in rows if r["arm"] == arm] for arm in R}
    assert found == R
    assert "At risk at" in out
    code, out, _ = run_command("data", "curves", "study.toml", "--numbers", "all.csv")
    assert code == 0
    rows = list(csv.DictReader(Path("all.csv").read_text().splitlines()))
    assert [float(r["time"]) for r in rows] == [0.0, 500.0, 1000.0, 1500.0, 2000.0]


@given(st.integers(0, 10**6), st.integers(1, 8), st.booleans())
def test_no_step_is_small(seed, least, late):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 80))
    time, event = rng.integers(1, 20, rows) / 4, rng.random(rows) < 0.5
    arm, points = rng.integers(0, 2, rows), np.arange(0.0, 6.0, 0.5)
    entry = np.floor(rng.random(rows) * time * 4) / 4 if late else None
    early = np.full(rows, -1.0) if entry is None else np.where(entry > 0, entry, -1.0)
    told = numbers_at_risk(time, event, arm, 2, points, least, entry=entry)
    for k in range(2):
        here = arm == k
        exact = np.array([(here & (early < t) & (time >= t)).sum() for t in points])
        if least == 1:
            np.testing.assert_array_equal(told[:, k], exact)
        steps = np.flatnonzero(np.diff(told[:, k]))
        assert late or (told[:, k] >= exact)[told[:, k] > 0].all()
        since = -np.inf
        for step in steps:
            end = points[step + 1]
            left = here & (time >= since) & (time < end)
            entered = here & (early >= since) & (early < end)
            for part in (left & event, left & ~event, entered * (since >= 0)):
                assert part.sum() == 0 or part.sum() >= least
            since = end
        assert ((told[:, k] == 0) | (told[:, k] >= least)).all()


@pytest.mark.parametrize("least", [2, 5])
def test_rows_of_weight_count_by_it(least):
    time, event = np.arange(1.0, 11.0), np.ones(10, bool)
    weights = np.append(np.full(9, 1e-9), 1.0)  # count as one row
    told = numbers_at_risk(time, event, np.zeros(10, int), 1, np.array([0.0, 5.0]), least, weights)
    assert not told.any()
