"""
Survival: a stratified Cox model
================================

Six hospitals follow patients until an event or the end of the study. Each has a baseline hazard
of its own. The log hazard ratios are common, and most are zero. The estimator has scikit-learn's
interface, and `groups` says which hospital holds a row.
"""

import matplotlib.pyplot as plt
import numpy as np

from flower_fedcon.estimators import FederatedCoxRegression

rng = np.random.default_rng(0)
truth = np.array([0.8, -0.8, 0.4, *np.zeros(9)])
X = rng.normal(size=(900, len(truth)))
hospital = rng.integers(6, size=len(X))
baseline = np.array([0.5, 1.0, 2.0, 0.7, 1.4, 3.0])[hospital]
time = rng.exponential(1 / (baseline * np.exp(X @ truth)))
end = rng.exponential(1.5, size=len(X))
y = np.column_stack([np.minimum(time, end), time <= end])

model = FederatedCoxRegression(alpha=0.02).fit(X, y, groups=hospital)
print(model.n_iter_, "rounds,", int(y[:, 1].sum()), "events")

places = np.arange(len(truth))
plt.bar(places - 0.2, truth, 0.4, label="truth")
plt.bar(places + 0.2, model.coef_, 0.4, label="fitted, l1 penalty")
plt.xlabel("covariate")
plt.ylabel("log hazard ratio")
plt.legend()
