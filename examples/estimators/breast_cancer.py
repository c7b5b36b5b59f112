"""Which of thirty measurements tell a malignant tumour, from ten hospitals that keep their rows.

A notebook in a file: run it as it is (`python breast_cancer.py`), or cell by cell.
"""

# %% Ten hospitals, each with its own rows.
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from flower_fedcon import Sample
from flower_fedcon.estimators import FederatedLogisticRegression, FederatedLogisticRegressionCV

table = load_breast_cancer(as_frame=False)
X = StandardScaler().fit_transform(table.data)
malignant = table.target == 0
hospital = np.random.default_rng(0).integers(10, size=len(X))

# %% The path of a hundred penalties, and cross-validation within each hospital.
model = FederatedLogisticRegressionCV(rule="1se", num=40).fit(X, malignant, groups=hospital)
print(model.cv_.path)
print(model.cv_)

# %% The columns that matter, how sure that is, and what one standard deviation does to the odds.
place = model.cv_.one_standard_error
print(f"{'measurement':<26}{'coefficient':>12}{'odds ratio':>12}{'folds':>7}")
for j in np.argsort(-np.abs(model.coef_[0])):
    if model.coef_[0, j]:
        share = model.cv_.stability[place, j]
        odds = np.exp(model.coef_[0, j])
        print(f"{table.feature_names[j]:<26}{model.coef_[0, j]:>12.4f}{odds:>12.3f}{share:>7.0%}")

# %% The same coefficients with half of the hospitals in each round.
halves = FederatedLogisticRegression(model.C_, participation=Sample(fraction=0.5))
halves.fit(X, malignant, groups=hospital)
print("half of the hospitals:", np.abs(halves.coef_ - model.coef_).max(), "apart")

# %% And as scikit-learn finds them when all rows are in one place.
pooled = LogisticRegression(C=model.C_, l1_ratio=1, solver="saga", tol=1e-7, max_iter=100_000)
pooled.fit(X, malignant)
apart = float(np.abs(pooled.coef_ - model.coef_).max())
print("scikit-learn, pooled:", apart, "apart")

# %% In a pipeline, the groups go to the last step.
pipeline = make_pipeline(StandardScaler(), FederatedLogisticRegression(model.C_))
pipeline.fit(table.data, malignant, federatedlogisticregression__groups=hospital)
print("accuracy", pipeline.score(table.data, malignant))
