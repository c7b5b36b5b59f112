"""What compressed uploads cost until a gap of 1e-3: the table and the figure of compression.md.

    python docs/compression_bytes.py sims/figures/compression_bytes.png

Every algorithm of sims/compression_digits.toml and sims/compression_digits_l1.toml, at its step of
the file, with two seeds; some minutes. The gap is (F - F*)/(F(x0) - F*).
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.runner import Job, play_jobs

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SIMS = Path(__file__).parent.parent / "sims"
SEEDS = (0, 1)
RULES = {"": "none", "TopK 5 %": "TopK 5 %", "RandK 10 %": "RandK 10 %", "Sign": "Sign",
         "Natural": "Natural"}  # fmt: skip
PANELS = [
    ("compression_digits", "FedAvg"),
    ("compression_digits", "Scaffnew"),
    ("compression_digits", "FedDyn"),
    ("compression_digits_l1", "FedDualAvg"),
    ("compression_digits_l1", "FedDR"),
]


def measured(name: str) -> dict[str, list[list[dict[str, float]]]]:
    """Return the histories of a file's algorithms up to the level, one for each seed."""
    experiment = Experiment.load(SIMS / f"{name}.toml")
    until = ("residual", experiment.tuning.level)
    jobs, labels = [], []
    for label in experiment.labels:
        for seed in SEEDS:
            seeded = experiment.only(label).seeded(seed)
            jobs.append(Job(experiment.source, seeded.to_toml(0), until=until))
            labels.append(label)
    found = {label: [[] for _ in SEEDS] for label in experiment.labels}
    for i, played in play_jobs(jobs, workers=2):
        for row in played.rows:
            row["gap"] = 1e-3 * row["residual"] / experiment.tuning.level
        found[labels[i]][i % len(SEEDS)] = played.rows
    return found


def main(path: str) -> None:
    """Measure, print and draw."""
    found = {name: measured(name) for name in dict.fromkeys(name for name, _ in PANELS)}
    for name, runs in found.items():
        print(f"\n{name}: kB up, kB up and down, rounds; least and most of the seeds")
        for label, seeds in runs.items():
            last = [rows[-1] for rows in seeds]
            up = [row["uplink_bytes"] / 1e3 for row in last]
            both = [(row["uplink_bytes"] + row["downlink_bytes"]) / 1e3 for row in last]
            rounds = [row["round"] for row in last]
            never = "" if max(row["gap"] for row in last) <= 1e-3 else "  never"
            print(f"{label:32s}", *(f"{min(x):8.1f} {max(x):8.1f}" for x in (up, both, rounds)),
                  never)  # fmt: skip
    figure, axes = plt.subplots(1, len(PANELS), figsize=(14, 4.2), sharey=True,
                                layout="constrained")  # fmt: skip
    for axis, (name, method) in zip(axes, PANELS, strict=True):
        for i, (rule, title) in enumerate(RULES.items()):
            label = f"{method}, {rule}" if rule else method
            if label not in found[name]:
                continue
            rows = found[name][label][0]
            x = np.array([row["uplink_bytes"] / 1e3 for row in rows])
            gap = np.array([row["gap"] for row in rows])
            axis.plot(x, gap, label=title, color=f"C{i}", linewidth=1.4,
                      linestyle="--" if not rule else "-")  # fmt: skip
            axis.plot(x[-1:], gap[-1:], "o", color=f"C{i}", markersize=5)
        axis.axhline(1e-3, color="0.5", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="kilobytes up, all clients",
                 title=method + (", l1" if name.endswith("l1") else ""))  # fmt: skip
        axis.grid(visible=True, which="major", linewidth=0.5, alpha=0.4)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("(F - F*) / (F(x0) - F*)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(RULES), frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
