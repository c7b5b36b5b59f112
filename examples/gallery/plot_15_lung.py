"""
Survival at 18 institutions
===========================

The North Central Cancer Treatment Group followed 228 patients with lung cancer at 18
institutions, the smallest with two to six of them (lifelines ships the table). Each institution
is a stratum with a baseline hazard of its own. The curves are made of counts in intervals of 30
days. The Cox model is R's with strata(inst). With ``min_rows=3`` such small institutions would
merge most of their intervals, and the curves would fall too late.
"""

import matplotlib.pyplot as plt
import numpy as np
from lifelines.datasets import load_lung

from flower_fedcon.estimators import FederatedCoxRegression
from flower_fedcon.survival import kaplan_meier, logrank

columns = {"age": "ten years of age", "sex": "female", "ph.ecog": "one ECOG grade more"}
rows = load_lung().dropna(subset=["inst", "time", "status", *columns])
rows["age"] /= 10
time, event, inst = rows["time"], rows["status"] == 1, rows["inst"].astype(int)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
for sex, name in ((1, "male"), (2, "female")):
    own = rows["sex"] == sex
    curve = kaplan_meier(time[own], event[own], groups=inst[own], grid=range(30, 901, 30))
    left.step([0, *curve.time], [1, *curve.survival], where="post", label=name)
    exact = kaplan_meier(time[own], event[own], groups=inst[own])
    left.step([0, *exact.time], [1, *exact.survival], color="gray", linewidth=0.7, where="post")
left.set(xlabel="days", ylabel="survival, gray: of all times")
left.legend()

# %%
# Log hazard ratios need no grid. An institution sends sums over its own risk sets.

print(logrank(time, event, by=rows["sex"], groups=inst, stratified=True))
model = FederatedCoxRegression(alpha=0, ties="efron", inference="model")
model.fit(rows[list(columns)], np.column_stack([time, event]), groups=inst)
print(model.summary())
ratio, lower, upper = model.ratios().T
right.errorbar(ratio, np.arange(3), xerr=[ratio - lower, upper - ratio], fmt="o", capsize=3)
right.axvline(1.0, color="gray", linestyle="--")
right.set_yticks(np.arange(3), list(columns.values()))
right.set(xlabel="hazard ratio, and its 95 % interval", ylim=(-0.5, 2.5))
plt.tight_layout()
