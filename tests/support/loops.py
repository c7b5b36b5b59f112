"""Clients with train loops of their own, in this process."""

from __future__ import annotations

from flower_fedcon.core.protocol import Setup
from flower_fedcon.engines.local import LocalEngine
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.run import Run
from flower_fedcon.training import ArrayTraining, own_loop


class LoopEngine(LocalEngine):
    """A client for each objective, whose pass is `loop(method, objective)`."""

    def __init__(self, problem, loop, training=ArrayTraining):
        super().__init__(problem)
        self.loop, self.training = loop, training

    def describe(self):
        kind = own_loop("fedavg")
        return [kind(None, self.training, name=name).describe() for name in self._problem.names]

    def open(self, run):
        kind, self._clients = own_loop(run.algorithm), {}
        for j, objective in enumerate(self._problem.objectives):
            client = kind(lambda method, f=objective: (self.loop(method, f), 1), self.training)
            client.configure(run)
            self._clients[j] = client


def by_loops(strategy, problem, num_rounds, loop, training=ArrayTraining):
    """Return the history of a run whose clients train by a loop of their own."""
    engine = LoopEngine(problem, loop, training)
    plan = Plan(num_rounds=num_rounds, evaluate_every=0)
    setup = Setup.of(engine.describe(), num_rounds, problem.layout, strategy.participation, 0)
    return Run(plan, strategy, setup, problem.start, engine).play()
