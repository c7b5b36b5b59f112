"""Estimators with scikit-learn's interface, fitted over clients by this package's methods.

`fit(X, y, groups=...)` takes each row's client; the coefficients equal those of the pooled rows.
"""

from flower_fedcon.errors import needing, point_elsewhere

with needing("flower_fedcon.estimators needs scikit-learn", "estimators"):
    import sklearn as sklearn

from flower_fedcon.estimators.counts import FederatedPoissonRegressor, FederatedPoissonRegressorCV
from flower_fedcon.estimators.cox_regression import (
    FederatedCoxRegression,
    FederatedCoxRegressionCV,
)
from flower_fedcon.estimators.dispersed import (
    FederatedGammaRegressor,
    FederatedNegativeBinomial,
)
from flower_fedcon.estimators.linear_regression import (
    FederatedElasticNet,
    FederatedElasticNetCV,
    FederatedLasso,
    FederatedLassoCV,
)
from flower_fedcon.estimators.logistic_regression import (
    FederatedLogisticRegression,
    FederatedLogisticRegressionCV,
)
from flower_fedcon.estimators.ordinal_regression import FederatedOrdinalRegression

__all__ = [
    "FederatedCoxRegression",
    "FederatedCoxRegressionCV",
    "FederatedElasticNet",
    "FederatedElasticNetCV",
    "FederatedGammaRegressor",
    "FederatedLasso",
    "FederatedLassoCV",
    "FederatedLogisticRegression",
    "FederatedLogisticRegressionCV",
    "FederatedNegativeBinomial",
    "FederatedOrdinalRegression",
    "FederatedPoissonRegressor",
    "FederatedPoissonRegressorCV",
]

point_elsewhere(__name__)
