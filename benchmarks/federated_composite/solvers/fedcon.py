"""Methods of flower-fedcon, in this process, each by the rules of its own: no step is given."""

from benchopt import BaseSolver

from flower_fedcon import FederatedProblem, objectives, simulate, strategies
from flower_fedcon.errors import FedConError
from flower_fedcon.objectives import NeymanPearson
from flower_fedcon.regularizers import L1, Indicator, NuclearNorm
from flower_fedcon.sets import L1Ball

METHODS = {
    "l1": ("FedMiD", "FedDualAvg", "CompositeFL", "Scaffnew", "FedDR", "DualFL", "FedNewton"),
    "nuclear": ("FedMiD", "FedDualAvg", "CompositeFL", "FedDR"),
    "l1_ball": ("FedFW", "FedFWPlus", "AveragedFW", "CompositeFL"),
    "constraint": ("FedSGM",),
}


class Solver(BaseSolver):
    """One strategy of the collection; what it does not solve is skipped."""

    name = "fedcon"
    requirements = ["pip::flower-fedcon"]
    parameters = {"method": sorted({name for names in METHODS.values() for name in names})}
    test_config = {"method": "CompositeFL"}

    def skip(self, problem):
        """Leave out methods of other problems."""
        if self.method not in METHODS[problem.structure]:
            return True, f"{self.method} is not for {problem.structure}"
        self.set_objective(problem)
        try:
            self.run(1)
        except FedConError as error:  # such as a method of strongly convex losses alone
            return True, str(error)
        return False, None

    def set_objective(self, problem):
        """Make the objectives and the strategy."""
        kind = getattr(strategies, self.method)
        if problem.structure == "constraint":
            made = [
                _Bounded(NeymanPearson(A[y > 0], A[y < 0]), problem.level)
                for A, y in problem.clients
            ]
            self.problem = FederatedProblem(made)
            self.strategy = kind()
            return
        losses = {"squared": objectives.LeastSquares, "logistic": objectives.LogisticRegression}
        if problem.loss == "multinomial":
            classes = problem.shape[1]
            made = [
                objectives.SoftmaxRegression(A, y.astype(int), classes) for A, y in problem.clients
            ]
        else:
            made = [losses[problem.loss](A, y) for A, y in problem.clients]
        if problem.structure == "l1_ball":
            ball = L1Ball(radius=problem.level)
            self.problem = FederatedProblem(made, constraint=ball)
            self.strategy = kind(Indicator(ball) if self.method == "CompositeFL" else ball)
            return
        psi = {"l1": L1, "nuclear": NuclearNorm}[problem.structure](problem.level)
        self.problem = FederatedProblem(made, regularizer=psi)
        named = self.method in ("Scaffnew", "DualFL")
        self.strategy = kind(regularizer=psi) if named else kind(psi)

    def run(self, stop_val):
        """Play so many rounds."""
        self.history = None
        if stop_val:
            self.history = simulate(self.strategy, self.problem, stop_val, evaluate_every=0)

    def get_result(self):
        """Return the model, and what the history says it has cost."""
        if self.history is None:
            x = self.problem.x0
            return {"x": x, "rounds": 0, "uplink": 0, "downlink": 0, "gradients": 0}
        last = self.history.rows[-1]
        return {
            "x": self.history.x,
            "rounds": last["round"],
            "uplink": last["uplink_bytes"],
            "downlink": last["downlink_bytes"],
            "gradients": last["gradients"],
        }


class _Bounded:
    """An objective whose constraint is g(x) - level <= 0."""

    def __init__(self, inner, level):
        self.inner, self.level = inner, level
        self.shape, self.num_examples = inner.shape, inner.num_examples

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def constraint_value(self, x):
        """Return how far g is above the level."""
        return self.inner.constraint_value(x) - self.level
