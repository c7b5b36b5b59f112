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
    """Write a CSV file of lines for each name; return the pattern of all files there."""
    for name, own in files.items():
        (folder / f"{name}.csv").write_text("\n".join(own) + "\n")
    return f"{folder}/*.csv"


def deal(folder, frame, parts=3, name="site"):
    """Write a frame's rows at sites, in turn or the parts given; return the files' pattern."""
    if isinstance(parts, int):
        parts = [slice(k, None, parts) for k in range(parts)]
    for k, rows in enumerate(parts):
        frame.iloc[rows].to_csv(folder / f"{name}{k}.csv", index=False)
    return f"{folder}/{name}*.csv"


def run(made, rounds=15, **settings):
    """Return the history of FedNewton."""
    return simulate(FedNewton(made.regularizer), made, rounds, **settings)


def coefficients(run_dir):
    """Return a run's file of coefficients, by column."""
    return pd.read_csv(run_dir / "coefficients.csv", index_col="column")


def kept(run_dir, name="model.json"):
    """Return what a file of a run says."""
    return json.loads((run_dir / name).read_text(encoding="utf-8"))
