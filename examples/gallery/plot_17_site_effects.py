"""
Sites that differ: one intercept, own ones, random ones
=======================================================

The RAND Health Insurance Experiment counts visits to a doctor. Here its plans serve as
sites with a table each. Members of one family resemble each other. With random intercepts of
families, by `cluster = "family"`, the standard errors allow for that, and a note says how much
families differ. The numbers are those of R's `glmer(..., nAGQ = 7)`.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm

from flower_fedcon import simulate
from flower_fedcon.problems import tables
from flower_fedcon.strategies import FedNewton

COLUMNS = ["disea", "physlm", "hlthg", "hlthf", "hlthp"]
visits = sm.datasets.randhie.load_pandas().data[::5]
file = Path(tempfile.mkdtemp()) / "visits.csv"
visits.assign(plan=visits["lncoins"].round(1), family=visits["lpi"]).to_csv(file, index=False)
schema = {
    "target": "mdvis",
    "loss": "poisson",
    "features": dict.fromkeys(COLUMNS, "numeric"),
    "cluster": "family",
}

places = np.arange(len(COLUMNS))
for move, effects in ((-0.2, "common"), (0.0, "own"), (0.2, "random")):
    problem = tables(
        data=str(file),
        client_column="plan",
        schema=schema,
        inference="model",
        site_effects=effects,
    )
    found = simulate(FedNewton(problem.regularizer), problem, num_rounds=12).report.estimates
    middle = np.exp(found.values[: len(COLUMNS)])
    ends = np.exp(found.conf_int()[: len(COLUMNS)])
    plt.errorbar(
        places + move,
        middle,
        np.abs(ends.T - middle),
        fmt="o",
        capsize=3,
        label=f"{effects} intercepts",
    )
    if effects == "random":
        print(found.notes[0])
plt.axhline(1.0, color="0.7")
plt.xticks(places, COLUMNS)
plt.xlabel("column")
plt.ylabel("rate ratio, 95 % interval")
plt.legend()
