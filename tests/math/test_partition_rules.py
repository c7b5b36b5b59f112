"""Rows dealt out by the rules of flwr-datasets: as its partitioners deal them, by property."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import blocks

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.problems import digits, files, partition, synthetic
from flower_fedcon.strategies import FedAvg

LABELS = [
    3, 2, 2, 3, 2, 3, 3, 0, 0, 1, 1, 3, 3, 0, 1, 3, 0, 3, 0, 1,
    3, 1, 1, 1, 2, 1, 3, 1, 1, 2, 2, 2, 2, 3, 3, 3, 2, 2, 1, 3,
]  # fmt: skip
THEIRS = [
    (
        {"by": "dirichlet", "clients": 3, "alpha": 0.5, "min_rows": 4, "balanced": True},
        "0000000011101211212111110112200001112222",
    ),
    (
        {"by": "dirichlet", "clients": 3, "alpha": 0.5, "min_rows": 4},
        "0000000010101211212111110111200001112222",
    ),
    (
        {
            "by": "dirichlet",
            "clients": 3,
            "alpha": 1.0,
            "min_rows": 2,
            "balanced": False,
            "seed": 1,
        },
        "0010222000022102122021112121222222222222",
    ),
    (
        {"by": "dirichlet", "clients": 3, "alpha": [1.0, 2.0, 3.0], "min_rows": 1},
        "0000100121112212222222221222212222222222",
    ),
    ({"by": "shards", "clients": 3, "shards": 2}, "100101122221122121221222001000000...110."),
    (
        {"by": "shards", "clients": 3, "shard_rows": 6, "keep_rest": True},
        "1001011222122212222121110020000000001100",
    ),
    ({"by": "classes", "clients": 3, "classes": 2}, "0220200001100010212111112111122221112211"),
    (
        {"by": "classes", "clients": 3, "classes": 2, "mode": "first-deterministic"},
        "0110100001100010000101121202212220002220",
    ),
    ({"by": "linear", "clients": 3}, "0000001111111111111222222222222222222222"),
    ({"by": "exponential", "clients": 3}, "0001111111112222222222222222222222222222"),
]
"""Whose each row is by the partitioners of flwr-datasets 0.5.0, "." of nobody."""


@pytest.mark.parametrize(("rule", "expected"), THEIRS)
def test_the_same_rows_as_flwr_datasets_deals_out(rule, expected):
    found = partition(LABELS, rule)
    owners = ["."] * len(LABELS)
    for name, rows in found.items():
        for row in rows.tolist():
            owners[row] = name
    assert "".join(owners) == expected


@given(
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=80),
    rule=st.sampled_from(
        [
            {"by": "iid"},
            {"by": "dirichlet", "alpha": 0.5, "min_rows": 1},
            {"by": "dirichlet", "alpha": 1.0, "min_rows": 0, "balanced": True},
            {"by": "shards", "shards": 2},
            {"by": "shards", "shard_rows": 3, "keep_rest": True},
            {"by": "classes", "classes": 1, "mode": "deterministic"},
            {"by": "linear"},
            {"by": "square"},
            {"by": "exponential"},
        ]
    ),
    clients=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_no_row_goes_to_two_clients(labels, rule, clients):
    rule = {**rule, "clients": clients}
    try:
        found = partition(labels, rule)
    except ConfigError:
        return
    rows = np.concatenate([*found.values()])
    assert len(found) == clients
    assert all(len(own) for own in found.values())
    assert len({*rows.tolist()}) == len(rows) <= len(labels)
    if rule["by"] not in ("shards", "classes") or "keep_rest" in rule:
        assert len(rows) == len(labels)
    again = partition(labels, rule)
    assert all((again[name] == own).all() for name, own in found.items())


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("dirichlet", "unknown rule by = 'dirichlet'"),
        ({"by": "dirichle"}, "did you mean 'dirichlet'"),
        ({"by": "dirichlet", "clients": 3}, "needs alpha"),
        ({"by": "dirichlet", "clients": 3, "alpha": -1.0}, r"alpha must be .*got -1"),
        ({"by": "dirichlet", "clients": 3, "alpha": [1.0]}, "alpha has 1 numbers, for 3 clients"),
        ({"by": "dirichlet", "clients": 30, "alpha": 0.01}, "fewer than min_rows = 10"),
        ({"by": "dirichlet", "clients": 3, "alpha": 1, "balanced": 2}, "true or false, got 2"),
        ({"by": "iid", "clients": 41}, "41 clients cannot share 40 rows"),
        ({"by": "iid", "clients": 0}, "clients must be .*got 0"),
        ({"by": "shards", "clients": 3}, "needs shards, or shard_rows"),
        ({"by": "shards", "clients": 3, "shards": 20}, "need 60 rows, and there are 40"),
        ({"by": "classes", "clients": 3, "classes": 5}, "at most 4, got 5"),
        ({"by": "classes", "clients": 3, "classes": 1, "mode": "x"}, "mode must be"),
        ({"by": "classes", "clients": 40, "classes": 4}, "would share the"),
        ({"by": "sizes", "sizes": [30, 11]}, "at most 40, the number of rows, got 41"),
        ({"by": "sizes", "sizes": 3}, "must be a list"),
        ({"by": "exponential", "clients": 20}, "leaves client 0 none of the"),
        ({"by": "natural", "column": "site"}, "needs column, which"),
    ],
)
def test_bad_rules_are_named(rule, message):
    with pytest.raises(ConfigError, match=message):
        partition(LABELS, rule)


def test_a_file_of_arrays_is_dealt_out(tmp_path):
    rng = np.random.default_rng(0)
    A, y, site = rng.normal(size=(40, 3)), np.sign(rng.normal(size=40)), np.arange(40) % 3
    path = str(tmp_path / "pooled.npz")
    np.savez(path, A=A, y=y, site=site)
    whole = files(data=path, partition={"by": "natural", "column": "site"})
    assert [*whole.names] == ["0", "1", "2"]
    np.testing.assert_array_equal(whole.objectives[1].rows, A[1::3])
    shards = files(data=path, partition={"by": "shards", "clients": 4, "shards": 1})
    assert [f.num_examples for f in shards.objectives] == [10] * 4
    with pytest.raises(ConfigError, match="no array 'sit': did you mean 'site'"):
        files(data=path, partition={"by": "natural", "column": "sit"})
    with pytest.raises(ConfigError, match="one file, and data names 2"):
        files(data=[path, path], partition={"by": "iid", "clients": 2})


def test_digits_by_dirichlet_shares():
    rule = {"by": "dirichlet", "clients": 5, "alpha": 0.3}
    found = digits(partition=rule)
    sizes = [f.num_examples for f in found.objectives]
    assert (len(sizes), sum(sizes)) == (5, 1500)
    assert len({*sizes}) > 1
    with pytest.raises(ConfigError, match="no column 'x' states the client"):
        digits(partition={"by": "natural", "column": "x"})


def test_the_page_s_block():
    block = next(b for b in blocks("toml", "docs/experiments.md") if "partition" in b)
    table = tomllib.loads(block)["problem"]
    assert table.pop("name") == "digits"
    assert digits(**table).num_clients == 10


def test_who_holds_what_of_any_rows(run_command, tmp_path):
    (tmp_path / "e.toml").write_text(
        '[problem]\nname = "digits"\npartition = {by = "classes", clients = 3, classes = 2}\n'
        '[run]\nrounds = 1\n[algorithm]\nname = "FedAvg"\nclient_lr = 0.1\nlocal_steps = 1\n'
    )
    code, out, _ = run_command(
        "data", "partition", str(tmp_path / "e.toml"), "-o", str(tmp_path / "who.png")
    )
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["0"], ["1"], ["2"])]
    assert [sum(cell != "0" for cell in row[1:]) for row in rows] == [2, 2, 2]


def test_synthetic_alpha_and_beta():
    """Data differ by beta, sizes by a lognormal; alpha changes nothing; weights are the rows'."""
    found = synthetic(clients=6, columns=8, classes=4)
    sizes = np.array([f.num_examples for f in found.objectives])
    assert sizes.min() >= 45
    np.testing.assert_allclose(found.weights, sizes / sizes.sum())
    assert "test_accuracy" in found.metrics
    alike, apart = (
        [
            getattr(f, "objective", f).rows[:, :-1].mean(axis=0)
            for f in synthetic(beta=b, iid=i, rows=400).objectives
        ]
        for b, i in ((1.0, True), (3.0, False))
    )
    assert np.abs(alike).max() < 0.3 < np.ptp([m.mean() for m in apart])
    v = np.random.default_rng(0).normal(size=(9, 4))
    same, far = (synthetic(alpha=a, clients=6, columns=8, classes=4) for a in (0.0, 5.0))
    assert same.objective(v) == far.objective(v)
    assert "alpha changes no label" in " ".join((synthetic.__doc__ or "").split())
    even = synthetic(rows=20, clients=3, test_share=0.0, weighting="uniform")
    assert [f.num_examples for f in even.objectives] == [20] * 3
    x = simulate(FedAvg(client_lr=0.1, local_steps=2), even, 5, engine="stacked")
    assert x["objective"][-1] < np.log(10)
    for wrong, message in (
        ({"alpha": -1.0}, "alpha must be"),
        ({"test_share": 1.0}, r"in \[0, 1\), got 1.0"),
        ({"classes": 1}, "classes must be"),
        ({"weighting": "equal"}, "weighting must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            synthetic(**wrong)
