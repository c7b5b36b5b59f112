"""
Clinics that differ: random intercepts
======================================

Twenty clinics have 8 to 120 patients, and cure them at different rates. Random intercepts say how
much clinics differ, and predict each clinic's intercept. The estimates of small clinics scatter, so
their predictions are drawn towards the mean. The numbers are those of lme4's glmer with nAGQ = 7.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from flower_fedcon.estimators import FederatedLogisticRegression

rng = np.random.default_rng(4)
sizes = np.geomspace(8, 120, 20).astype(int)
truth = rng.normal(0.0, 0.6, len(sizes))
clinic = np.repeat(np.arange(len(sizes)), sizes)
dose = rng.normal(size=len(clinic))
cured = rng.random(len(clinic)) < 1 / (1 + np.exp(-(0.2 + 0.8 * dose + truth[clinic])))

model = FederatedLogisticRegression(C=np.inf, site_effects="random", inference="model")
model.fit(dose[:, None], cured, groups=clinic)
print(model.summary())
print(f"standard deviation between clinics: {model.site_sd_:.3f}, in truth 0.6")

# %%
# For comparison, each clinic finds its intercept alone: it then expects as many cures as it has.

effect, mean = model.coef_.item(), model.intercept_.item()


def alone(own):
    """Return the intercept of one clinic's rows, as a difference from the mean clinic's."""

    def excess(a):
        return expit(a + effect * dose[own]).sum() - cured[own].sum()

    return brentq(excess, -9, 9) - mean if 0 < cured[own].mean() < 1 else np.nan


each = [alone(clinic == c) for c in range(len(sizes))]
predicted = list(model.random_effects_.values())
plt.plot(sizes, each, "o", mfc="none", label="alone")
plt.plot(sizes, predicted, "o", label="random intercept")
plt.plot(sizes, truth, "_", color="black", label="truth")
plt.axhline(0.0, color="gray", linestyle="--")
plt.xscale("log")
plt.xlabel("patients of the clinic")
plt.ylabel("log odds of cure beside the mean clinic's")
plt.legend()
