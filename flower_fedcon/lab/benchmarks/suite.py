"""The benchmarks by name, and their results as a file.

Each is a ratio to a yardstick that is timed in the same run, in turns, by the wall clock: the
machine should do nothing else. Linear algebra has one thread, compiled kernels have all cores.
Medians and quartiles are taken over the ratios of the turns.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from flower_fedcon import compiled
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.lab.benchmarks import (
    bandwidth,
    device,
    fit_and_errors,
    flower,
    in_process,
    load,
    million,
    networks,
    pooled_path,
    prox,
    step_costs,
    textbook_oracles,
    whole_runs,
)
from flower_fedcon.lab.benchmarks.measure import Result

BENCHMARKS: dict[str, Callable[[bool], Iterator[Result]]] = {
    "fedfw": in_process.fedfw,
    "fastfedda": in_process.fastfedda,
    "solver": in_process.solver,
    "solves": in_process.solves,
    "growth": in_process.growth,
    "memory": in_process.memory,
    "path": pooled_path.path,
    "inference": fit_and_errors.inference,
    "compiled": whole_runs.compiled,
    "bookkeeping": whole_runs.bookkeeping,
    "bandwidth": bandwidth.bandwidth,
    "device": device.device,
    "networks": networks.networks,
    "projections": textbook_oracles.projections,
    "prox": prox.prox,
    "nuclear": textbook_oracles.nuclear,
    "completion": textbook_oracles.completion,
    "imports": flower.imports,
    "long": in_process.long,
    "million": million.million,
    "curves": step_costs.curves,
    "ray": flower.ray,
    "flower": flower.flower,
    "load": load.load,
}
ON_REQUEST = (
    "completion",
    "long",
    "million",
    "curves",
    "ray",
    "flower",
    "load",
    "path",
    "inference",
    "compiled",
    "bandwidth",
    "device",
    "networks",
    "prox",
)
"""The benchmarks that take more than a minute, or need an extra.

The extras are tables for path, statsmodels for inference, jax for compiled and device, and torch
for networks.
"""


def run(names: list[str] | None = None, *, quick: bool = False) -> Iterator[Result]:
    """Yield the lines of some benchmarks; by default of all that take less than a minute.

    Raises
    ------
    ConfigError
        If a name is unknown.
    """
    chosen = names or [name for name in BENCHMARKS if name not in ON_REQUEST]
    for name in chosen:
        if name not in BENCHMARKS:
            raise ConfigError(f"unknown benchmark {name!r}: {nearest(name, BENCHMARKS)}")
    with threadpool_limits(1):
        for name in chosen:
            yield from BENCHMARKS[name](quick)


def described() -> Iterator[tuple[str, bool, str]]:
    """Yield each benchmark's name, whether it runs by default, and its description."""
    for name, benchmark in BENCHMARKS.items():
        yield name, name not in ON_REQUEST, str(benchmark.__doc__).partition("\n")[0]


def to_json(results: list[Result]) -> str:
    """Return the lines, and the machine they were measured on, as JSON."""
    machine = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "kernels": compiled.describe(),
        "load": os.getloadavg()[0],
    }
    return json.dumps({**machine, "results": [asdict(result) for result in results]}, indent=1)
