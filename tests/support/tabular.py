"""Tables of several sites: rows dealt out to files, runs on them, and what the runs leave."""

from __future__ import annotations

import json

import pandas as pd

from flower_fedcon import simulate
from flower_fedcon.strategies import FedNewton


def numeric(*names, **others):
    """Return features of these names that are numeric, and others."""
    return {**dict.fromkeys(names, "numeric"), **others}


def lines(folder, **files):
    """Write a CSV file of rows, or of their texts, for each name; return the files' pattern."""
    for name, rows in files.items():
        own = [row if isinstance(row, str) else ",".join(map(str, row)) for row in rows]
        (folder / f"{name}.csv").write_text("\n".join(own) + "\n")
    return f"{folder}/*.csv"


def deal(folder, frame, parts=3, name="site"):
    """Write a frame's rows at sites, in turn or the parts given; return the files' pattern."""
    if isinstance(parts, int):
        parts = [slice(k, None, parts) for k in range(parts)]
    for k, rows in enumerate(parts):
        frame.iloc[rows].to_csv(folder / f"{name}{k}.csv", index=False)
    return f"{folder}/{name}*.csv"


def study(folder, schema, *more, data="*.csv", rounds=5):
    """Write a schema, and an experiment on the folder's files; return the experiment's path."""
    (folder / "schema.toml").write_text(schema)
    given = [f'data = "{folder}/{data}"', f'schema = "{folder}/schema.toml"', *more]
    file = folder / "study.toml"
    file.write_text(
        "\n".join(['[problem]\nname = "tables"', *given, f"[run]\nrounds = {rounds}\n"])
    )
    return str(file)


def run(made, rounds=15, **settings):
    """Return the history of FedNewton."""
    return simulate(FedNewton(made.regularizer), made, rounds, **settings)


def coefficients(run_dir):
    """Return a run's file of coefficients, by column."""
    path = run_dir / "coefficients.csv"
    return pd.read_csv(path, index_col="column", float_precision="round_trip")


def kept(run_dir, name="model.json"):
    """Return what a file of a run says."""
    return json.loads((run_dir / name).read_text(encoding="utf-8"))
