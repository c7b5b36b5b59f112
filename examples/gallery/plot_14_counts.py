"""
Counts at six sites: rates with honest intervals
================================================

How often did people see a doctor? The RAND Health Insurance Experiment took place at six sites.
statsmodels ships its 20,190 person-years without the site, so here six sites get one block each.
The numbers of visits vary far more than Poisson's. Model-based intervals are therefore two to three
times too narrow. Robust intervals and those of a negative binomial model are not.
"""

import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm

from flower_fedcon.estimators import FederatedNegativeBinomial, FederatedPoissonRegressor

rows = sm.datasets.randhie.load_pandas().data
site = np.arange(len(rows)) * 6 // len(rows)
columns = {
    "idp": "individual deductible",
    "physlm": "physical limitation",
    "hlthg": "good health",
    "hlthf": "fair health",
    "hlthp": "poor health",
}
X, visits = rows[["lncoins", "disea", *columns]], rows["mdvis"]

# %%
# No row leaves a site. Each sends sums of scores and second derivatives. The estimates are those of
# the pooled rows.

FITS = {
    "Poisson, model-based": FederatedPoissonRegressor(alpha=0, inference="model"),
    "Poisson, robust": FederatedPoissonRegressor(alpha=0, inference="robust"),
    "negative binomial": FederatedNegativeBinomial(inference="model"),
}
places = np.arange(len(columns))
for shift, (name, model) in zip((0.2, 0.0, -0.2), FITS.items(), strict=True):
    model.fit(X, visits, groups=site)
    ratio, lower, upper = model.ratios()[2:].T
    ends = [ratio - lower, upper - ratio]
    plt.errorbar(ratio, places + shift, xerr=ends, fmt="o", capsize=3, label=name)
    print(f"{name}: {model.n_iter_} rounds, AIC {model.aic_:.0f}")
plt.axvline(1.0, color="gray", linestyle="--")
plt.yticks(places, list(columns.values()))
plt.xlabel("rate ratio, and its 95 % interval")
plt.legend(fontsize=8)
plt.tight_layout()
