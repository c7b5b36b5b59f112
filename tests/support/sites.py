"""Statsmodels' `randhie` as the tables of four sites, whose outcomes differ by site."""

from __future__ import annotations

import numpy as np
import statsmodels.api as sm

from flower_fedcon import simulate
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables.builders import tables

COLUMNS = ["lncoins", "idp", "lpi", "disea"]


def written(where):
    """Write each 20th row of `randhie` (RAND Health Insurance Experiment) at four sites."""
    d = sm.datasets.randhie.load_pandas().data[::20].reset_index(drop=True)
    d["site"] = np.digitize(np.arange(len(d)) % 10, [2, 4, 7])
    d["mdvis"] += 2 * d["site"]
    d["any"] = np.where(d["mdvis"] > 2 * d["site"], "yes", "no")
    d["plan"] = d["lncoins"].round(1)
    d.to_csv(where / "all.txt", index=False)
    for site, own in d.groupby("site"):
        own.to_csv(where / f"s{site}.csv", index=False)
    return where


def stated(loss, **more):
    """Return the schema of a loss: counts, or whether there are more than the site's least."""
    schema = {"target": "mdvis", "loss": loss, "features": dict.fromkeys(COLUMNS, "numeric")}
    if loss == "logistic":
        schema |= {"target": "any", "positive": ["yes"]}
    return schema | more


def problem(folder, loss, more=None, **settings):
    """Return the problem of these tables, by default with own intercepts and errors."""
    settings = {"inference": "model", "site_effects": "own"} | settings
    return tables(data=f"{folder}/s*.csv", schema=stated(loss, **(more or {})), **settings)


def run(made, rounds=15, **settings):
    """Return the history of FedNewton."""
    return simulate(FedNewton(made.regularizer), made, rounds, **settings)
