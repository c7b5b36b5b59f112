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
    """Run a method on its first contract problem, and draw its error."""
    sys.path[:0] = PLACES
    from contract import FIRST, strategy

    from flower_fedcon import simulate

    case = FIRST[name]
    problem = case.problem()
    problem.metrics = {**problem.metrics, "error": case.error}
    history = simulate(strategy(name, case), problem, case.rounds)
    errors = np.maximum([case.error(problem.x0), *history["error"]], 1e-17)
    reached = int(np.argmax(errors <= 1.5 * errors[-1]))  # and not the long floor behind it
    errors = errors[: max(3, int(1.3 * reached)) + 1]

    figure = Figure(figsize=(6.4, 3), layout="constrained")
    axes = figure.subplots()
    axes.semilogy(errors, marker="." if len(errors) < 20 else None)
    axes.axhline(case.high, color="gray", linestyle=":")
    shown = {"distance": "distance to the optimum", "residual": "F - F*"}[case.measure]
    axes.set(xlabel="rounds", ylabel=shown, title=f"{case.id}: {settings(case) or 'defaults'}"[:90])
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    figure.savefig(folder / f"{name}.png", dpi=110)


def settings(case):
    """Return a case's settings as one line."""
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                     for k, v in case.settings.items())  # fmt: skip
