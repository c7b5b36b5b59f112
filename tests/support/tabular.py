"""Tables of several sites: rows dealt out to files, runs on them, and what the runs leave."""

from __future__ import annotations

import json

import numpy as np
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


def judged(turned=(), levels=2, seed=0, sites=3, effect=0.7):
    """Rows of 100 patients at each site, with five effects, and an outcome of so many levels."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(sites), 100)
    A = rng.normal(size=(len(site), 5))
    A[:, 3:] = A[:, 3:] > 0.5
    score = A @ (effect * np.array([1.0, -0.6, 0.4, 1.0, -0.8])) + rng.logistic(size=len(site))
    level = np.searchsorted(np.quantile(score, np.linspace(0, 1, levels + 1)[1:-1] ** 0.7), score)
    level = np.where(np.isin(site, turned), levels - 1 - level, level)
    return pd.DataFrame(A, columns=list("abcde")).assign(y=level), site


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
