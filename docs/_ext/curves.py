"""The curves of the contract problems; tests/algorithms/cases has their settings."""

import sys
from pathlib import Path

import joblib
import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
PLACES = [str(ROOT / "tests" / name) for name in ("support", "algorithms")]


def draw(folder):
    """Draw each method's curve that is older than its files; return the names of all methods."""
    sys.path[:0] = PLACES
    from contract import FIRST

    folder.mkdir(parents=True, exist_ok=True)
    old = [name for name in FIRST if outdated(name, folder / f"{name}.png")]
    joblib.Parallel(n_jobs=2)(joblib.delayed(curve)(name, folder) for name in old)
    return set(FIRST)


def outdated(name, figure):
    """Return whether a figure is missing, or older than what it is of."""
    folders = "flower_fedcon/strategies", "flower_fedcon/clients", "tests/algorithms/cases"
    newest = max((ROOT / folder / f"{name}.py").stat().st_mtime for folder in folders)
    return not figure.exists() or figure.stat().st_mtime < newest


def curve(name, folder):
    """Run a method on its first contract problem, and draw its error beside two neighbours'."""
    sys.path[:0] = PLACES
    from contract import FIRST, strategy

    from flower_fedcon import simulate

    case = FIRST[name]
    problem = case.problem()
    problem.metrics = {**problem.metrics, "error": case.error}
    made = strategy(name, case)
    history = simulate(made, problem, case.rounds)
    errors = errors_of(case, problem, history)
    reached = int(np.argmax(errors <= 1.5 * errors[-1]))  # and not the long floor behind it
    errors = errors[: max(3, int(1.3 * reached)) + 1]

    figure = Figure(figsize=(6.4, 3), layout="constrained")
    axes = figure.subplots()
    for neighbour in neighbours(name, problem, made.participation):
        known = errors_of(case, problem, simulate(neighbour, problem, len(errors) - 1))
        axes.semilogy(known, linewidth=1, alpha=0.7, label=f"{neighbour.title}, by its rule")
    axes.semilogy(errors, color="black", marker="." if len(errors) < 20 else None, label=made.title)
    axes.legend(fontsize=8)
    axes.axhline(case.high, color="gray", linestyle=":")
    shown = {"distance": "distance to the optimum", "residual": "F - F*"}[case.measure]
    axes.set(xlabel="rounds", ylabel=shown, title=f"{case.id}: {settings(case) or 'defaults'}"[:90])
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    figure.savefig(folder / f"{name}.png", dpi=110)


def errors_of(case, problem, history):
    """Return the errors of a run, that of the start among them."""
    return np.maximum([case.error(problem.x0), *history["error"]], 1e-17)


def neighbours(name, problem, participation):
    """Return two other methods that fit the problem and the participation, by their rules."""
    from flower_fedcon.errors import FedConError
    from flower_fedcon.runs.plan import Plan
    from flower_fedcon.simulation import auto_strategies

    try:
        fit = auto_strategies(problem, participation, Plan(num_rounds=1), say=False)
    except FedConError:  # none fits
        return []
    return [method for method in fit if method.name != name][:3:2]  # kin stand side by side


def settings(case):
    """Return a case's settings as one line."""
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                     for k, v in case.settings.items())  # fmt: skip
