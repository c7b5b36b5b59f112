"""Cells of a private table that do not fit: none decides whether it is read, or what is told."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_grid import on_grid
from private_rows import silent
from private_tables import (
    FEATURES,
    RULE,
    SCHEMA,
    TELLS,
    on_nodes,
    private,
    read_cut,
    stated,
    written,
)
from table_nodes import write_rows

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies import FedAvg
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.builders import prepare, prepared_problem
from flower_fedcon.tables.misfits import DataError
from flower_fedcon.tables.read import log_notes
from flower_fedcon.wire.ledgers import rows_on_node

ODD = {
    "above its range": ("130,10,f,a,yes", "120,10,f,a,yes"),
    "outside of a transform": ("40,-3,f,a,yes", "40,1,f,a,yes"),
    "no number": ("forty,10,f,a,yes", ",10,f,a,yes"),
    "infinite": ("inf,10,f,a,yes", ",10,f,a,yes"),
    "of many digits": (f"{'0' * 5000}99999999999999999,10,f,a,yes", "120,10,f,a,yes"),
    "beyond all floats": (f"{'9' * 5000},10,f,a,yes", ",10,f,a,yes"),
    "another category": ("40,10,x,a,yes", "40,10,,a,yes"),
    "a NUL": ("40,10,f\0,a,yes", "40,10,,a,yes"),
    "a quote": ('40,10,"f,a,yes', None),
    "a quote within": ('40,10,"f"x,a,yes', "40,10,,a,yes"),
    "too few cells": ("40,10,f,a", None),
    "too many cells": ("40,10,f,a,yes,1,2", None),
    "no outcome": ("40,10,f,a,", "40,10,f,a,"),
    "true": ("true,10,f,a,yes", "1,10,f,a,yes"),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("mark", [",", ";"])
def test_no_row_decides_whether_a_private_table_fits(tmp_path, caplog, odd, mark):
    path, (line, same) = written(tmp_path, rows=30), ODD[odd]
    lines = path.read_text().splitlines()
    for name, put in (("odd", line), ("same", same or ",,,,")):
        changed = [*lines[:8], put, *lines[9:]]
        (tmp_path / f"{name}.csv").write_text("\n".join(changed).replace(",", mark))
    found, plain = (read_cut(tmp_path / f"{name}.csv") for name in ("odd", "same"))
    np.testing.assert_array_equal(found.numeric, plain.numeric)
    np.testing.assert_array_equal(found.categories, plain.categories)
    np.testing.assert_array_equal(found.targets, plain.targets)
    assert np.isnan(found.targets).sum() == (same is None or same[-1] == ",")
    if odd != "true":
        log_notes([found])
        assert "odd.csv: " in caplog.text
        assert ("cells cut to fit: 1, expected" in caplog.text) | ("rows: 1" in caplog.text)


def test_a_simulation_tells_nothing_exact_and_keeps_what_its_preparation_spent(tmp_path, caplog):
    """Of rows that a and b both hold; also without a round."""
    clients = [read_cut(written(tmp_path, name, seed=name == "c"), SCHEMA) for name in "abc"]
    prepared_problem(clients, ["a", "b", "c"])
    assert "a, b hold exactly the same rows" in caplog.text
    caplog.clear()
    problem = prepared_problem(clients, ["a", "b", "c"], privacy=RULE)
    assert not caplog.text
    simulate(FedAvg(client_lr=0.1, local_steps=1), problem, 0, run_dir=tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert [own["gradients"] for own in kept.values()] == [[[2.0, 1.0, 2]]] * 3


LAST = b"HIV+ \xe9"  # the bytes of one private cell, which are not UTF-8
ARRAYS = {
    "bytes": ("parquet", pa.array([b"f"] * 30), pa.array([b"f"] * 29 + [LAST])),
    "bytes in NPZ": ("npz", np.array([b"f"] * 30), np.array([b"f"] * 29 + [LAST])),
    "text that is not UTF-8": ("parquet", pa.array(["f"] * 30), pa.Array.from_buffers(
        pa.string(), 30, pa.array([b"f"] * 29 + [LAST]).buffers())),
    "a list": ("parquet", pa.array([None] * 30, pa.list_(pa.int64())),
               pa.array([None] * 29 + [[1]])),
    "a date beyond Python's": ("parquet", pa.array([0] * 30, pa.timestamp("us")),
                               pa.array([0] * 29 + [2**60], pa.timestamp("us"))),
}  # fmt: skip


def saved(path, columns):
    if path.suffix == ".npz":
        np.savez(path, **columns)
    else:
        pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("column", ["sex", "note"])  # of the schema, and unknown to it
@pytest.mark.parametrize("case", ARRAYS)
def test_no_cell_of_an_array_decides_whether_a_private_file_is_read(tmp_path, column, case):
    kind, *both = ARRAYS[case]
    schema, found = stated(features={name: FEATURES[name] for name in ("age", "sex")}), []
    for name, cells in zip(("plain", "odd"), both, strict=True):
        columns = {"age": np.arange(30.0), "sex": ["m"] * 30, "ill": ["yes", "no"] * 15}
        columns[column] = cells
        path = saved(tmp_path / f"{name}.{kind}", columns)
        found.append(read_cut(path, schema))
    plain, odd = found
    np.testing.assert_array_equal(odd.numeric, plain.numeric)
    np.testing.assert_array_equal(odd.categories[:29], plain.categories[:29])
    assert len(odd.targets) == 30
    assert rows_on_node(odd) != rows_on_node(plain)
    if column == "sex":
        with pytest.raises(DataError, match=r"it cannot be read|found '\[1\]', expected"):
            read_table(path, schema)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
@pytest.mark.parametrize("column", ["sex", "ill"])
@pytest.mark.parametrize("way", [read_cut, read_table])
def test_a_zero_with_a_sign_changes_no_other_row(tmp_path, kind, column, way):
    schema = Schema("ill", {"sex": {"type": "categorical", "categories": ["0", "1"]}},
                    positive=["1"], negative=["0"])  # fmt: skip
    columns = {"sex": np.arange(30.0) % 2, "ill": np.arange(30.0) // 2 % 2}
    columns[column][0] = -0.0
    found = way(saved(tmp_path / f"a.{kind}", columns), schema)
    assert found.targets.tolist() == (2 * columns["ill"] - 1).tolist()
    assert found.categories[:, 0].tolist() == ["0", "1"] * 15


def test_a_row_without_an_outcome_has_no_gradient_no_loss_and_no_bin(tmp_path, monkeypatch):
    silent(monkeypatch)
    schema = stated(negative=["no"], test_fraction=0.3)
    path, rule = written(tmp_path, rows=40), replace(TELLS, loss_clip=5.0, clip=100.0)
    table = read_cut(path, schema)
    whole = private(table, rule)
    preparation = prepare([whole], ["a"])
    for row in (table.training_rows[3], table.held_out_rows[2]):
        lines = path.read_text().splitlines()
        lines[row + 1] = lines[row + 1].rpartition(",")[0] + ",perhaps"
        odd = tmp_path / "odd.csv"
        odd.write_text("\n".join(lines))
        less = private(read_cut(odd, schema), rule)
        assert np.isnan(less.targets).nonzero()[0].tolist() == [row]
        f, g = whole.objective(preparation), less.objective(preparation)
        x = np.linspace(-1.0, 1.0, f.shape[0])
        place = np.flatnonzero(table.training_rows == row)
        alone = f.objective.clipped_sum(x, 100.0, place) if place.size else 0.0
        np.testing.assert_allclose((f.gradient(x) - g.gradient(x)) * 28, alone, atol=1e-6)
        lost = f.objective.row_losses(x, place).sum() if place.size else 0.0
        assert (f.noisy_value(x) - g.noisy_value(x)) * 28 == pytest.approx(lost, abs=1e-6)
        counts = [each.noisy_quality(x)["noisy"].sum() for each in (f, g)]
        assert counts[0] - counts[1] == pytest.approx(1 - place.size, abs=1e-6)


@pytest.mark.parametrize(
    ("schema", "cells"),
    [
        ({"loss": "squared"}, ["", "x", "inf"]),
        ({"loss": "poisson"}, ["", "-1", "x"]),
        ({"loss": "gamma"}, ["0", "-1", ""]),
        ({"loss": "multinomial", "classes": ["1", "2", "3"]}, ["4", "", "x"]),
        ({"loss": "logistic", "positive": ["2"], "negative": ["1"]}, ["3", "", "x"]),
    ],
)
def test_outcomes_that_a_loss_does_not_take_end_nothing(tmp_path, schema, cells):
    """Even where no row has one that it takes."""
    known = Schema.load({"target": "y", "features": {"a": {"range": [0, 9]}}, **schema})
    path = tmp_path / "a.csv"
    several = len(schema.get("classes", "ab"))
    path.write_text("\n".join(["a,y", *(f"{k},{1 + k % several}" for k in range(9))]))
    begun = prepare([read_table(path, known)], ["a"])
    for good in (["1", "2", "1", "2"], []):
        path.write_text("\n".join(["a,y", *(f"{k},{y}" for k, y in enumerate([*good, *cells]))]))
        table = read_cut(path, known)
        rule = replace(TELLS, loss_clip=5.0)
        one = private(table, rule)
        f = one.objective(begun)
        x = np.full(f.shape, 0.1)
        assert np.isfinite(f.gradient(x)).all()
        assert np.isfinite(f.noisy_value(x))
        assert f.num_examples == len(good) + 3


@on_grid
def test_a_node_s_refusal_does_not_depend_on_a_cell(tmp_path, caplog):
    files = [written(tmp_path, name, rows=60, seed=j) for j, name in enumerate("ab")]
    head, *lines = files[0].read_text().splitlines()
    lines[4] = "1e9,-1,x,z,perhaps"
    files[0] = write_rows(tmp_path / "odd.csv", head, [*lines, "7"])
    assert on_nodes(files, tmp_path, 2)["replies"].tolist() == [2.0]
    assert "column 'age': cells cut to fit: 1, expected a number from 0 to 120" in caplog.text


def test_a_column_that_is_absent_is_refused(tmp_path):
    path = write_rows(tmp_path / "a.csv", "age,dose,sex,ill", ["1,2,f,yes"])
    with pytest.raises(ConfigError, match="no column 'dx'"):
        read_cut(path)
    with pytest.raises(ConfigError, match="the range of 'age' is not public"):
        read_cut(path, stated(features={"age": {}}))


@pytest.mark.parametrize("seed", range(8))
def test_cells_of_any_kind_leave_a_private_table(tmp_path, seed):
    rng = np.random.default_rng(seed)
    odd = ["", "nan", "1e999", "-1", "1,5", '"', '""', "\0", "\ufeff", "x" * 200_000, "1\r2",
           "true", "0x1", "-0", "5e-324", "yes", "f", "1e308", ";", "NA", "1.234"]  # fmt: skip
    lines = ["age,dose,sex,dx,ill"]
    for _ in range(20):
        lines.append(",".join(rng.choice(odd, int(rng.integers(3, 7)))))
    path = tmp_path / "a.csv"
    content = "\n".join(lines).encode() + b"\n\xff\xfe,1,f,a,yes"
    path.write_bytes(content)
    table = read_cut(path)
    assert (np.isnan(table.numeric) | (np.abs(table.numeric) <= 120)).all()
    assert {*table.categories.ravel().tolist()} <= {"", "f", "m", "a", "b", "c"}
    log_notes([table])
    one = private(table)
    assert np.isfinite(one.answer("summary", {})["sums"]).all()
    begun = prepare([read_table(written(tmp_path), SCHEMA)], ["a"])
    assert np.isfinite(one.objective(begun).gradient(np.zeros(6))).all()
