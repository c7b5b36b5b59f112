"""A pooled table dealt out to clients, and the figure of who holds what."""

from __future__ import annotations

import numpy as np
import pytest
from harness import refusal
from heart_files import FOLDER, SCHEMA

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.holdings import holdings
from flower_fedcon.tables.builders import clients_of, tables
from flower_fedcon.tables.heart import HOSPITALS

RULES = {
    "iid": ({"by": "iid", "clients": 5}, [184] * 5),
    "shards": ({"by": "shards", "clients": 5, "shards": 2}, [184] * 5),
    "dirichlet": ({"by": "dirichlet", "clients": 6, "alpha": 0.3}, [10] * 6),
    "natural": ({"by": "natural", "column": "site"}, [303, 294, 123, 200]),
}


@pytest.fixture
def pooled(tmp_path):
    head, rows = "", []
    for name in HOSPITALS:
        head, *own = (FOLDER / f"{name}.csv").read_text().splitlines()
        rows += [f"{row},{name}" for row in own]
    (tmp_path / "pooled.csv").write_text("\n".join([f"{head},site", *rows]))
    return str(tmp_path / "pooled.csv")


@pytest.mark.parametrize("rule", RULES)
def test_every_row_goes_to_one_client(pooled, rule):
    partition, least = RULES[rule]
    found, names = clients_of(pooled, str(FOLDER / "schema.toml"), partition=partition)
    sizes = [len(table.targets) for table in found]
    assert sum(sizes) == 920
    assert all(n >= m for n, m in zip(sizes, least, strict=True))
    assert names == (list(HOSPITALS) if rule == "natural" else [str(j) for j in range(len(least))])
    again, _ = clients_of(pooled, str(FOLDER / "schema.toml"), partition=partition)
    assert [t.resume_key for t in found] == [t.resume_key for t in again]


def test_who_holds_what(run_command, tmp_path):
    (tmp_path / "e.toml").write_text(f"""
[problem]
name = "tables"
data = '{FOLDER}/*.csv'
schema = '{FOLDER}/schema.toml'
[run]
rounds = 1
[algorithm]
name = "FedDR"
step_size = 1.0
""")
    figure = tmp_path / "who.png"
    code, out, _ = run_command("data", "partition", str(tmp_path / "e.toml"), "-o", str(figure))
    assert code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    shown = [line.split() for line in out.splitlines()]
    assert ["switzerland", "8", "115"] in shown
    assert ["hungarian", "188", "106"] in shown


def test_outcomes_that_are_numbers_are_shown_by_quarters(tmp_path):
    for name, values in (("a", range(8)), ("b", range(4, 12))):
        rows = [f"{v},{v % 3}" for v in values]
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,x", *rows]))
    schema = {"target": "y", "features": {"x": "numeric"}}
    found, _ = clients_of(str(tmp_path / "*.csv"), schema)
    labels, counts = holdings(found)
    assert labels == ["below 3.75", "3.75 to 5.5", "5.5 to 7.25", "from 7.25"]
    np.testing.assert_array_equal(counts, [[4, 2, 2, 0], [0, 2, 2, 4]])


def test_refusals(pooled, run_command, tmp_path):
    schema = str(FOLDER / "schema.toml")
    for partition, words in (
        ({"by": "dirichle"}, "unknown rule by = 'dirichle': did you mean 'dirichlet'"),
        ({"by": "iid", "alpha": 1, "clients": 2}, "partition by 'iid': unknown key 'alpha'"),
        ({"by": "shards", "clients": 2}, "partition by 'shards' needs shards"),
    ):
        with pytest.raises(ConfigError, match=words):
            tables(data=pooled, schema=schema, partition=partition)
    with pytest.raises(ConfigError, match="client_column and partition divide one file"):
        tables(data=[pooled, pooled], schema=schema, client_column="site")
    (tmp_path / "e.toml").write_text(
        '[problem]\nname = "quadratics"\n[run]\nrounds = 1\n'
        '[algorithm]\nname = "FedDR"\nstep_size = 1\n'
    )
    told = refusal(run_command, "data", "partition", str(tmp_path / "e.toml"), "-o", "who.png")
    assert "needs rows with outcomes" in told


def test_one_file_by_a_column_is_the_natural_partition(pooled):
    found, names = clients_of(pooled, str(FOLDER / "schema.toml"), client_column="site")
    assert names == list(HOSPITALS)
    assert [len(table.targets) for table in found] == [303, 294, 123, 200]
    assert {table.schema.digest for table in found} == {SCHEMA.digest}
