"""
Which columns matter: a path on four hospitals
==============================================

Four hospitals keep their tables on heart disease (UCI, 920 patients). The path solves l1 logistic
regression for a grid of penalties, each from the previous solution. The dashed line is the penalty
that cross-validation chooses.
"""

import matplotlib.pyplot as plt

from flower_fedcon import cross_validate
from flower_fedcon.problems import heart

problem = heart()
found = cross_validate(problem, problem.regularizer, num=20, folds=4)
print(found)

# %%
# The coefficients are those of the pooled rows, up to the tolerance. Only sums left the hospitals.

names = problem.preparation.names
for name, coefficients in zip(names, found.path.coefs.T[: len(names)], strict=True):
    shown = name if abs(coefficients[found.best]) > 0.25 else None
    plt.semilogx(found.values, coefficients, label=shown)
plt.axvline(found.values[found.best], color="gray", linestyle="--")
plt.gca().invert_xaxis()
plt.xlabel("penalty")
plt.ylabel("coefficient, per standard deviation")
plt.legend(fontsize=8)
