"""`fedcon data`: what does not fit; a pooled table dealt out; the figure of who holds what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harness import refusal
from heart_files import FOLDER, SCHEMA

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.holdings import holdings
from flower_fedcon.tables.builders import clients_of, tables
from flower_fedcon.tables.heart import HOSPITALS

STATED = str(FOLDER / "schema.toml")
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
    found, names = clients_of(pooled, STATED, partition=partition)
    sizes = [len(table.targets) for table in found]
    assert sum(sizes) == 920
    assert all(n >= m for n, m in zip(sizes, least, strict=True))
    assert names == (list(HOSPITALS) if rule == "natural" else [str(j) for j in range(len(least))])
    again, _ = clients_of(pooled, STATED, partition=partition)
    assert [t.resume_key for t in found] == [t.resume_key for t in again]
    if rule == "natural":
        found, named = clients_of(pooled, STATED, client_column="site")
        assert (named, [len(table.targets) for table in found]) == (names, sizes)
        assert {table.schema.digest for table in found} == {SCHEMA.digest}


def study(folder, problem):
    path = folder / "e.toml"
    path.write_text(
        f'[problem]\n{problem}\n[run]\nrounds = 1\n[algorithm]\nname = "FedDR"\nstep_size = 1.0\n'
    )
    return str(path)


def test_who_holds_what(run_command, tmp_path):
    figure = tmp_path / "who.png"
    problem = f"name = 'tables'\ndata = '{FOLDER}/*.csv'\nschema = '{STATED}'"
    code, out, _ = run_command("data", "partition", study(tmp_path, problem), "-o", str(figure))
    assert code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    shown = [line.split() for line in out.splitlines()]
    assert ["switzerland", "8", "115"] in shown
    assert ["hungarian", "188", "106"] in shown
    other = study(tmp_path, 'name = "quadratics"')
    told = refusal(run_command, "data", "partition", other, "-o", "who.png")
    assert "needs rows with outcomes" in told


def test_outcomes_that_are_numbers_are_shown_by_quarters(tmp_path):
    for name, values in (("a", range(8)), ("b", range(4, 12))):
        rows = [f"{v},{v % 3}" for v in values]
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,x", *rows]))
    schema = {"target": "y", "features": {"x": "numeric"}}
    found, _ = clients_of(str(tmp_path / "*.csv"), schema)
    labels, counts = holdings(found)
    assert labels == ["below 3.75", "3.75 to 5.5", "5.5 to 7.25", "from 7.25"]
    np.testing.assert_array_equal(counts, [[4, 2, 2, 0], [0, 2, 2, 4]])


REFUSED = [
    ({"partition": {"by": "dirichle"}},
     "unknown rule by = 'dirichle': did you mean 'dirichlet'"),
    ({"partition": {"by": "iid", "alpha": 1, "clients": 2}},
     "partition by 'iid': unknown key 'alpha'"),
    ({"partition": {"by": "shards", "clients": 2}}, "partition by 'shards' needs shards"),
    ({"client_column": "site", "twice": True}, "client_column and partition divide one file"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "words"), REFUSED)
def test_rows_that_cannot_be_dealt_out_are_refused(pooled, more, words):
    data = [pooled, pooled] if more.pop("twice", False) else pooled
    with pytest.raises(ConfigError, match=words):
        tables(data=data, schema=STATED, **more)


def test_all_that_does_not_fit_is_named(run_command, tmp_path):
    lines = (FOLDER / "va.csv").read_text().splitlines()
    lines[2] = lines[2].replace("44", "fortyfour")
    lines[4] = lines[4].replace(",4,", ",7,")
    (tmp_path / "bad.csv").write_text("\n".join(lines))
    path = str(tmp_path / "bad.csv")
    code, out, _ = run_command("data", "check", path, str(FOLDER / "va.csv"), "--schema", STATED)
    assert code == 1
    told = " ".join(out.split())
    assert f"{path}: row 2, column 'age': found 'fortyfour', expected a finite number, or" in told
    assert f"{path}: row 4, column 'cp': found '7', expected one of 1, 2, 3, 4: correct" in told
    assert "va.csv fits: 150 rows to train on, 50 held out" in told


def test_what_a_node_would_tell(run_command):
    arguments = ("data", "check", str(FOLDER / "va.csv"), "--schema", STATED, "--min-rows", "5")
    code, out, _ = run_command(*arguments)
    (ca,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["ca"]]
    assert (code, ca) == (0, ["ca", "va", "2", "198", "0", "0", "0", "nothing"])


def test_the_example_has_the_package_s_files():
    """A Flower app's bundle takes no links, so that its schema is a copy."""
    example = Path(__file__).parents[2] / "examples" / "heart"
    assert (example / "app" / "schema.toml").read_bytes() == Path(STATED).read_bytes()
    for path in FOLDER.glob("*.csv"):
        assert (example / path.name).read_bytes() == path.read_bytes()
