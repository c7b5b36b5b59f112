"""
Matrix completion in a nuclear-norm ball
========================================

Each of eight clients knows some entries of one 40 x 50 matrix of rank 3. FedFW keeps the model in a
nuclear-norm ball without a singular value decomposition. A client sends two vectors, the top
singular pair of its gradient.
"""

import matplotlib.pyplot as plt
import numpy as np

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import MatrixCompletion
from flower_fedcon.sets import NuclearNormBall
from flower_fedcon.strategies import FedFW

rng = np.random.default_rng(0)
truth = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 50))
known = np.argwhere(rng.random(truth.shape) < 0.4)
clients = []
for part in np.array_split(rng.permutation(known), 8):
    rows, cols = part.T
    clients.append(MatrixCompletion(rows, cols, truth[rows, cols], truth.shape, scale=1e-3))

ball = NuclearNormBall(radius=float(np.linalg.norm(truth, "nuc")))
problem = FederatedProblem(
    clients,
    constraint=ball,
    metrics={"error": lambda x: float(np.linalg.norm(x - truth) / np.linalg.norm(truth))},
)

# %%
# The penalty follows the rule of FedFW's docstring: the largest gradient at the start, divided by N
# times the set's diameter.

largest = max(np.linalg.norm(f.gradient(problem.x0)) for f in clients)
strategy = FedFW(ball, penalty=largest / (len(clients) * ball.diameter))
history = simulate(strategy, problem, num_rounds=200, evaluate_every=5)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.semilogy(history["round"], history["error"])
left.set(xlabel="rounds", ylabel="relative error, all entries")
for name, matrix in (("truth", truth), ("model", history.x)):
    right.plot(np.linalg.svd(matrix, compute_uv=False)[:15], "o-", label=name)
right.set(xlabel="place", ylabel="singular value")
right.legend()
