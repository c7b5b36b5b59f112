"""FedAvg of fedjax, on the penalised loss: its clients take steps along a subgradient."""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from benchmark_utils.problem import told
from benchopt import BaseSolver


class Solver(BaseSolver):
    """Google's simulator, in single precision as it comes; l1 norms alone."""

    name = "FedAvg of fedjax"
    requirements = ["pip::fedjax"]
    parameters = {"local_steps": [5]}

    def skip(self, problem):
        """Leave out what a subgradient does not know."""
        if problem.structure != "l1":
            return True, "fedjax has gradients alone"
        return False, None

    def set_objective(self, problem):
        """Make the federated data and the algorithm."""
        self.problem = problem
        for name in ("tree_map", "tree_leaves"):  # which fedjax calls, and JAX has moved
            if not hasattr(jax, name):
                setattr(jax, name, getattr(jax.tree_util, name))

        def loss(x, batch, rng):
            scores = batch["A"] @ x
            if problem.loss == "squared":
                each = 0.5 * (scores - batch["y"]) ** 2
            else:
                each = jnp.logaddexp(0.0, -batch["y"] * scores)
            return each.mean() + problem.level * jnp.abs(x).sum()

        data = {
            f"{j:06d}".encode(): {"A": A.astype(np.float32), "y": y.astype(np.float32)}
            for j, (A, y) in enumerate(problem.clients)
        }
        self.data = fedjax.InMemoryFederatedData(data)
        rows = max(len(y) for _, y in problem.clients)
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            grad_fn=jax.grad(loss),
            client_optimizer=fedjax.optimizers.sgd(1.0 / problem.smoothness),
            server_optimizer=fedjax.optimizers.sgd(1.0),
            client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
                batch_size=rows, num_epochs=None, num_steps=self.local_steps
            ),
        )
        self.keys = jax.random.split(jax.random.PRNGKey(0), len(problem.clients))
        self.run_once(2)

    def run(self, stop_val):
        """Play so many rounds."""
        state = self.algorithm.init(jnp.zeros(self.problem.shape, jnp.float32))
        everyone = [
            (name, rows, key)
            for (name, rows), key in zip(self.data.clients(), self.keys, strict=True)
        ]
        for _ in range(stop_val):
            state, _ = self.algorithm.apply(state, everyone)
        self.x, self.rounds = np.asarray(state.params, np.float64), stop_val

    def get_result(self):
        """Return the model, and what it has cost: float32 each way."""
        return told(self.problem, self.x, self.rounds, self.local_steps, 4)
