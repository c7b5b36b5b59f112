"""FedFW and FedFWPlus beside methods that project, in rounds and in processor seconds.

    OMP_NUM_THREADS=1 python docs/frank_wolfe_time.py sims/figures/fedfw_time.png

The digits of sims/digits_fedfw.toml, with the paper's penalties. FedMiD over a set is FedAvg with
projections, here with one step a round and with five; the paper's authors compare FedAvg and FedDR
in their code. Of the steps 1/4, 1/2, 1, 3/2 and 2 the largest brings FedMiD and CompositeFL to
F - F* = F*/100 soonest on the first split, and 40 of 10, 20, 40 and 80 brings FedDR.

Lines have medians over five splits, in brackets the least and the largest: rounds and seconds until
F - F* is a share of F*, of the rounds that are recorded, every fifth. Seconds are of one processor,
in the rounds, of the server and all clients together. The violation is ||x||_1 - 50, or 0, at its
largest. The figure has the first split.
"""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from flower_fedcon import simulate
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.figures import plot_histories
from flower_fedcon.runs import run
from flower_fedcon.strategies import CompositeFL, FedDR, FedMiD

run.time = SimpleNamespace(perf_counter=time.process_time)  # for the history's "seconds"

FILE = Path(__file__).parents[1] / "sims" / "digits_fedfw.toml"
SHARES = 0.1, 0.03, 0.01, 0.001
SPLITS = range(5)
OTHERS = {
    "projected, 1 step": (1500, lambda D: FedMiD(D, client_lr=2.0, local_steps=1)),
    "projected, 5 steps": (500, lambda D: FedMiD(D, client_lr=2.0, local_steps=5)),
    "CompositeFL": (300, lambda D: CompositeFL(D, client_lr=2.0, local_steps=5)),
    "FedDR": (100, lambda D: FedDR(D, step_size=40.0)),
}  # name -> rounds, method


def histories(split):
    """Return each method's history on one split."""
    experiment = Experiment.load(FILE, [f"problem.seed={split}"])
    problem = experiment.problem()
    methods = {name: (10000, experiment.strategy(i)) for i, name in enumerate(("FedFW", "FedFW+"))}
    methods |= {name: (rounds, of(problem.constraint)) for name, (rounds, of) in OTHERS.items()}
    for method in (each for _, each in methods.values()):
        simulate(method, problem, 3, engine="stacked")  # what is compiled and cached is not counted
    return problem.optimum.value, {
        name: simulate(method, problem, rounds, engine="stacked", evaluate_every=5)
        for name, (rounds, method) in methods.items()
    }


def spread(values):
    """Return the median and the ends as text."""
    ends = f"{np.min(values):.3g} to {np.max(values):.3g}"
    return f"{np.median(values):.3g} ({ends})" if np.isfinite(values).all() else "not by all"


def main(figure):
    """Print the medians, and draw the first split."""
    found = [histories(split) for split in SPLITS]
    for name in found[0][1]:
        runs = [(best, of[name]) for best, of in found]
        thousand = [1000 * h["seconds"][-1] / h["round"][-1] for _, h in runs]
        outside = max(h["violation"].max() for _, h in runs)
        print(f"{name}: {spread(thousand)} s for 1,000 rounds, violation at most {outside:.1g}")
        for share in SHARES:
            at = [np.flatnonzero(h["residual"] <= share * best) for best, h in runs]
            costs = []
            for column in ("round", "seconds"):
                pairs = zip(at, runs, strict=True)
                costs.append([h[column][i[0]] if i.size else np.inf for i, (_, h) in pairs])
            print(f"    {share:g}: {spread(costs[0])} rounds, {spread(costs[1])} s", flush=True)
    drawn = {name: history.rows for name, history in found[0][1].items()}
    plot_histories(
        drawn, figure, x="rounds,seconds", y="residual",
        xlim={"rounds": (0, 500), "seconds": (0, 0.6)}, ylim={"": (5e-4, 2)},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
