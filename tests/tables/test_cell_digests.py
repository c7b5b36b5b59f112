"""A node recognises its rows by their cells: the same for any form of the file, no other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_fedcon import Policy
from flower_fedcon.flower.node_notes import NodeNotes
from flower_fedcon.flower.stores import FileStore
from flower_fedcon.tables.cell_digests import digest_of_cells
from flower_fedcon.tables.misfits import DataError
from flower_fedcon.tables.read import cells_cut, read_table
from flower_fedcon.tables.schema import Schema
from flower_fedcon.wire.ledgers import former_on_node, rows_on_node

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

SCHEMA = Schema("ill", {"age": {"range": [0, 120]}}, loss="logistic", positive=["yes"])


def frame(seed, rows):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.choice([20.0, 30.5, 41.25, np.nan], rows),
            "weight": rng.normal(70.0, 9.0, rows),
            "sex": rng.choice(["f", "m", None], rows),
            "smokes": rng.random(rows) < 0.5,
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 9, rows), "D"),
            "ill": ["yes", "no", *rng.choice(["yes", "no"], rows - 2)],
        }
    )


def key(folder, kind, table, **more):
    """Write a table in this form; return the key of its rows."""
    path = folder / f"t{kind}"
    if kind == ".parquet":
        table.to_parquet(path, **more)
    elif kind == ".npz":
        plain = {name: own if own.dtype.kind in "biuf" else own.astype(str).str.replace(
            "None|NaT|nan", "", regex=True) for name, own in table.items()}  # fmt: skip
        np.savez(path, **{name: np.array(own.tolist()) for name, own in plain.items()})
    else:
        table.to_csv(path, **{"index": False, **more})
    return rows_on_node(read_table(path, SCHEMA))


@pytest.fixture
def table(tmp_path):
    """A table that stands in a file."""
    frame(4, 8).to_csv(tmp_path / "t.csv", index=False)
    return read_table(tmp_path / "t.csv", SCHEMA)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 25))
def test_any_form_of_the_same_rows_is_recognised(tmp_path_factory, seed, rows):
    folder, table = tmp_path_factory.mktemp("forms"), frame(seed, rows)
    names = ["ill", "smokes", "age", "seen", "weight", "sex"]
    other = table.sample(frac=1, random_state=seed)[names]
    single = other.assign(weight=other.weight.astype("float32"), age=other.age.astype("float16"))
    known = key(folder, ".csv", table)
    assert key(folder, ".csv", other, sep=";", decimal=",", na_rep="NA") == known
    assert key(folder, ".csv.gz", other.assign(smokes=other.smokes.astype(int))) == known
    assert key(folder, ".tsv", single, sep="\t", index=True, lineterminator="\r\n") == known
    assert key(folder, ".parquet", other) == known
    assert key(folder, ".parquet", single, compression="gzip") == known
    assert key(folder, ".npz", single) == known


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.data())
def test_a_row_more_less_or_changed_is_another_table(tmp_path_factory, seed, data):
    folder, table = tmp_path_factory.mktemp("others"), frame(seed, 9)
    known = key(folder, ".csv", table)
    name, row = data.draw(st.sampled_from(list(table.columns))), data.draw(st.integers(0, 8))
    changed = table.copy()
    new = {"age": 99.0, "weight": 1.0, "sex": "d", "smokes": not table.smokes[row],
           "seen": pd.Timestamp("2021-05-05"), "ill": "dead"}[name]  # fmt: skip
    changed.loc[row, name] = new
    if name != "ill":
        assert key(folder, ".csv", changed) != known
    assert key(folder, ".csv", table.drop(index=row).assign(ill=["yes", "no"] * 4)) != known
    assert key(folder, ".csv", pd.concat([table, table.iloc[[row]]])) != known
    assert key(folder, ".csv", table.rename(columns={"weight": "height"})) != known


def test_only_the_client_s_own_rows_count(tmp_path):
    one, two = frame(1, 6), frame(2, 5)
    whole = pd.concat([one.assign(site="a"), two.assign(site="b")])

    def keys():
        whole.to_csv(tmp_path / "t.csv", index=False)
        return [
            rows_on_node(read_table(tmp_path / "t.csv", SCHEMA, column="site", client=c))
            for c in "ab"
        ]

    first = keys()
    whole.iloc[-1, 1] = 3.0  # a weight at b
    assert [a == b for a, b in zip(first, keys(), strict=True)] == [True, False]
    assert key(tmp_path, ".parquet", one) == first[0]  # a's rows in a file of their own


def test_neither_the_schema_nor_the_way_it_is_read_counts(table, tmp_path):
    other = Schema("ill", {"sex": {"type": "categorical", "categories": ["f"]},
                           "weight": {"range": [69, 70]}}, positive=["yes"])  # fmt: skip
    with cells_cut():
        assert rows_on_node(read_table(tmp_path / "t.csv", other)) == rows_on_node(table)


def test_a_file_that_changes_while_it_is_loaded_is_refused(table, tmp_path):
    frame(5, 8).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match="has changed since it was read"):
        rows_on_node(table)


def test_rows_of_a_temporary_file_are_recognised_by_its_content(tmp_path):
    keys = []
    for name in ("one.csv", "two.csv"):
        frame(4, 8).to_csv(tmp_path / name, index=False)
        table = read_table(tmp_path / name, SCHEMA)
        (tmp_path / name).unlink()
        keys.append(rows_on_node(table))
    assert keys[0] == keys[1] == table.rows_digest


def test_lines_that_cannot_be_read_as_one_text_are_rows_of_their_own(tmp_path):
    path = tmp_path / "t.csv"
    schema = Schema("ill", {"age": {"range": [0, 120]}}, positive=["yes"])
    found = []
    for text in ("50,yes", '50,"yes', "50,yes,no", ""):
        path.write_text(f"age,ill\n{text}\n30,no\n")
        with cells_cut():
            found.append(rows_on_node(read_table(path, schema)))
    assert found[0] == found[1]
    assert len({*found}) == 3


def test_a_node_parses_a_file_once_for_all_its_processes(table, tmp_path, monkeypatch):
    store = FileStore(tmp_path / "state", "north", Policy())
    known = NodeNotes(store, table, Policy(), "north").rows
    assert known == rows_on_node(table)
    digest_of_cells.cache_clear()  # as in another process
    monkeypatch.setattr("flower_fedcon.tables.cell_digests.read_cells", None)
    assert NodeNotes(store, table, Policy(), "south").rows == known


def test_former_digests_stay_known(table):
    assert table.rows_digest in former_on_node(table)
    assert rows_on_node(table) not in former_on_node(table)
