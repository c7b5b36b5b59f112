"""Tables whose rows are private from the first number on, and runs on nodes that have them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from table_nodes import start, write_rows

from flower_fedcon import Policy
from flower_fedcon.privacy import ExampleDP
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.strategies import FedDualAvg
from flower_fedcon.tables import Schema, read_table
from flower_fedcon.tables.noisy_sums import PrivateTable
from flower_fedcon.tables.read import cells_cut

FEATURES = {
    "age": {"range": [0, 120]},
    "dose": {"range": [1, 100], "transform": "log"},
    "sex": {"type": "categorical", "categories": ["f", "m"]},
    "dx": {"type": "categorical", "categories": ["a", "b", "c"]},
}
RULE = ExampleDP(clip=1.0, noise_multiplier=2.0, target_delta=1e-5)
TELLS = replace(RULE, quality=True)
QUIET = replace(RULE, clip=50.0, noise_multiplier=1e-9)
PSI = WithIntercept(L1(0.01))
STEPS = FedDualAvg(PSI, client_lr=0.3, local_steps=3)
STEP = FedDualAvg(PSI, client_lr=1.0, local_steps=1)
PRIVACY = {"privacy.clip": 1.0, "privacy.noise-multiplier": 2.0, "privacy.target-delta": 1e-5}
CATEGORIES = {"sex": ["f", "m"], "dx": ["a", "b", "c"]}


def stated(**more):
    return Schema.load({"target": "ill", "positive": ["yes"], "features": FEATURES} | more)


SCHEMA = stated()


def written(folder, name="a", rows=400, seed=0):
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        age = "" if rng.random() < 0.1 else f"{rng.integers(20, 90)}"
        dose, sex, dx = rng.uniform(1, 100), "fm"[rng.integers(2)], "abc"[rng.integers(3)]
        ill = "yes" if rng.random() < 0.3 + 0.4 * (sex == "m") else "no"
        lines.append(f"{age},{dose:.2f},{sex},{dx},{ill}")
    return write_rows(folder / f"{name}.csv", "age,dose,sex,dx,ill", lines)


def private(table, rule=RULE):
    return PrivateTable.of(table, rule, Ledger(rule))


def read_cut(path, schema=SCHEMA):
    with cells_cut():
        return read_table(path, schema)


def on_nodes(files, folder, rounds, made=STEPS, schema=SCHEMA, privacy=None, **options):
    """Return the history of nodes that keep their ledgers in a folder."""
    own = {"state-dir": str(folder / "state"), **PRIVACY, **(privacy or {})}
    node = {"policy": Policy(), "node": own, "weighting": "uniform"}
    return start(files, schema, rounds, made=made, **node, **options)


def counted(folder):
    """Return how many gradients each ledger counts."""
    kept = sorted((folder / "state" / "privacy").glob("*/spent.json"))
    return [sum(n for *_, n in json.loads(path.read_text())["gradients"]) for path in kept]
