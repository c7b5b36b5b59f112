"""A node's own policy: what a server may ask of it.

A server that may ask for anything can learn the data. The gradient of one row reveals that row, and
every row can be computed from enough means over known rows, or from values at chosen models. The
default policy refuses batches of a few rows and certificates, and bounds the cost of a request. It
draws minibatches from the run's seed, as every engine does; with `batches` a node can draw them
privately, so that the server does not know the rows of a batch. Federated optimisation itself
remains possible: models that follow from sums over all of a node's rows. The number of requests and
the size of models are bounded, too; docs/policy.md says what this does not prevent.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from types import FrameType
from typing import Any

import numpy as np

from flower_fedcon.core.exchange import OF_ROUNDS, phases
from flower_fedcon.core.protocol import Request, RunInfo
from flower_fedcon.errors import ConfigError, RefusedError
from flower_fedcon.solvers import SGD, LocalSolver
from flower_fedcon.validation import (
    Array,
    choice,
    count,
    fields_of_node,
    largest_entry,
    optional,
    positive,
)

_PREFIX = "policy."
_ANY = 2**62


@dataclass(frozen=True)
class Policy:
    """Which requests of a server a node answers, and which it refuses.

    A node's configuration sets each field by its name with hyphens, after "policy.", such as
    `policy.min-batch-size=32` (several algorithms or phases are separated by commas), or in a table
    `[policy]` of the TOML file for `flower-supernode --node-config`. It overrides the app's policy.

    Parameters
    ----------
    algorithms : sequence of str (default: all)
        The names of the algorithms, such as "fedavg".
    phases : sequence of str (default: those marked *)
        The requests that the node answers: "train" *, "query" *, "evaluate" *, and the following.
        "scales" *: the length of its gradient at a model and an estimate of L there, two numbers
        from which default settings follow. "certify": a certificate, the node's gradient at any
        model and its objective's curvature along each entry. Of tables:
        "prepare" *: sums over the columns of a node's table. "statistics" *: sums over its rows at
        a fitted model, for standard errors. "curves": events and rows at risk at the schema's
        `curve_times`. "levels": sums over its columns by the categories of the schema's
        `describe_by`. "alone": coefficients and information of a fit to the node's rows alone.
        "baseline": the baseline hazard of a Cox model at the schema's `curve_times`. "risk_sets":
        sums over rows at risk at the times of all events, which reveal single rows.
    min_rows : int (default: 1)
        A node with fewer rows (`num_examples`) takes no part. A table's node sends nothing based on
        fewer rows: no column's mean, category, number of rows of a class of the outcome, or metric
        of held-out rows; and the model's columns are not based on fewer (`tables.encoded_rows`).
    min_cell : int (default: 3)
        The smallest count in a cell, other than 0, as in DataSHIELD. Cells are rows of a class in a
        bin of predicted probabilities, values in an interval for quantiles, and events in an
        interval of a baseline hazard or in a test of proportional hazards. A larger `min_rows`
        replaces it.
    max_parameters : float (default: 0.33)
        The largest number of a model's parameters per row for "statistics", as in DataSHIELD: a
        model with as many parameters as rows reveals each row.
    min_summed : int (default: 1)
        The least number of clients in a sum with this node's upload. More than 1 requires secure
        aggregation with at least this reconstruction threshold, and holds against a server that
        tells all nodes the same. An evaluation is not an upload, and reveals this node's own loss:
        leave "evaluate" out of `phases`.
    min_noise : float, optional
        The least noise multiplier z, by the clients themselves (`GaussianDP(noise_by="clients")`),
        of a sum with this node's upload; it counts one client fewer than the smallest sum that can
        be unmasked. Without such noise the node answers no request of a run, not even evaluations.
        By default no noise is required.
    min_range : float (default: 0.001)
        The smallest range for secure sums of an upload's entries. A run has one range, and a node
        with an entry beyond it takes no more part. So the server learns only whether there is such
        an entry, once a run, and not for a smaller range than this.
    min_batch_size : int (default: 4)
        The smallest `batch_size`. All rows at once are not a batch: see min_rows.
    batches : {"seeded", "private", "none"} (default: "seeded")
        The source of minibatches. "seeded": the run's seed, so that iterates are those of every
        engine, bit for bit, but a malicious server can solve for single rows. "private": the node's
        own randomness, so that the server does not know the rows. "none": no minibatches.
    max_local_steps : int (default: 10,000)
        The largest number of local steps in one request.
    max_solver_iterations : int (default: 100,000)
        The largest number of iterations of a local solver.
    max_message_bytes : int (default: 2**30)
        The largest size of a request's arrays, in bytes.
    max_model : float (default: 1e12)
        The largest absolute value of an entry of a model, or of other arrays in a request. It does
        not depend on data, so a refusal reveals nothing. The server is told, and keeps a run within
        what most nodes accept.
    max_requests : int (default: 100,000)
        The largest number of answers on the node's rows: exchanges before round 1, rounds, queries
        and evaluations of all runs together, counted by a digest of the rows in the state-dir. A
        request for sums at several models counts once for each. Without a state-dir it is counted
        for each run.
    max_seconds : float (default: 3600)
        The longest time of a request. An unfinished step is stopped if it runs in a process's main
        thread, as in a SuperNode.
    keep_days : float (default: 30)
        How long the state of a run is kept in the state folder after its last request.
    max_state_bytes : int (default: 10 * 2**30)
        The largest size of other runs' states in the state folder. For a new run the oldest states
        are removed, if they are at least a day old; as long as there is no room, a new run is
        refused.

    Raises
    ------
    ConfigError
        If a value is out of range.

    Examples
    --------
    >>> Policy.of({"partition-id": 3, "policy.min-batch-size": 32, "policy.phases": "train"})
    Policy(algorithms=(), phases=('train',), min_rows=1, min_cell=3, max_parameters=0.33, ...
    """

    algorithms: Sequence[str] = ()
    phases: Sequence[str] = field(default_factory=lambda: phases(allowed=True))
    min_rows: int = 1
    min_cell: int = 3
    max_parameters: float = 0.33
    min_summed: int = 1
    min_range: float = 1e-3
    min_noise: float | None = None
    min_batch_size: int = 4
    batches: str = "seeded"
    max_local_steps: int = 10_000
    max_solver_iterations: int = 100_000
    max_message_bytes: int = 2**30
    max_model: float = 1e12
    max_requests: int = 100_000
    max_seconds: float = 3600.0
    keep_days: float = 30.0
    max_state_bytes: int = 10 * 2**30

    def __post_init__(self) -> None:
        for name in ("algorithms", "phases"):
            value = getattr(self, name)
            listed = value.split(",") if isinstance(value, str) else value
            if not isinstance(listed, Sequence):
                key = _PREFIX + name
                raise ConfigError(f"{key} must be names separated by commas, got {value!r}")
            object.__setattr__(self, name, tuple(str(v).strip().lower() for v in listed if v))
        for phase in self.phases:
            choice("policy.phases", phase, phases())
        choice("policy.batches", self.batches, ("seeded", "private", "none"))
        optional(positive, "policy.min-noise", self.min_noise)
        for setting in fields(self):
            key, value = _PREFIX + setting.name.replace("_", "-"), getattr(self, setting.name)
            if setting.type == "int":
                count(key, value)
            elif setting.type == "float" and value != math.inf:
                positive(key, value)

    @classmethod
    def open(cls) -> Policy:
        """Return a policy that refuses nothing, for simulations, whose data the server has."""
        return cls(
            phases=phases(),
            min_cell=1,
            max_parameters=math.inf,
            min_range=sys.float_info.min,
            min_batch_size=1,
            batches="seeded",
            max_local_steps=_ANY,
            max_solver_iterations=_ANY,
            max_message_bytes=_ANY,
            max_model=math.inf,
            max_requests=_ANY,
            max_seconds=math.inf,
            keep_days=math.inf,
            max_state_bytes=_ANY,
        )

    @classmethod
    def of(cls, node_config: Mapping[str, Any], given: Policy | None = None) -> Policy:
        """Return a node's policy: its configuration, else `given`, else the default.

        Raises
        ------
        ConfigError
            If the configuration has an unknown key of a policy, or a value is out of range.
        """
        return replace(given or cls(), **fields_of_node(cls, _PREFIX, node_config))

    # --- what is asked ---------------------------------------------------------------------------

    def check_part(self, algorithm: str, rows: int) -> None:
        """Raise unless the node takes part in an algorithm, with that many rows of data.

        Raises
        ------
        RefusedError
        """
        if self.algorithms and algorithm not in self.algorithms:
            raise _refused("algorithms", f"{', '.join(self.algorithms)}, not {algorithm}")
        if 0 < rows < self.min_rows:  # without rows there is nothing to reveal
            raise _refused("min-rows", f"{self.min_rows}, and it has {rows}")

    def check_phase(self, phase: str) -> None:
        """Raise unless the node answers such a request.

        Raises
        ------
        RefusedError
        """
        if phase not in self.phases:
            raise _refused("phases", f"{', '.join(self.phases)}, not {phase}")
        if self.min_noise is not None and phase not in OF_ROUNDS:
            raise _refused("min-noise", f"{self.min_noise:g}, and answers to {phase} have none")

    def check_parameters(self, parameters: int, rows: int) -> None:
        """Raise if a model has too many parameters for the number of rows.

        Raises
        ------
        RefusedError
        """
        if parameters > self.max_parameters * rows:
            raise _refused(
                "max-parameters",
                f"{self.max_parameters:g} for each row, and there are {parameters} and {rows} rows",
            )

    def check_range(self, name: str, most: float) -> None:
        """Raise if the range of a secure sum's entries is too small.

        Raises
        ------
        RefusedError
        """
        if not most >= self.min_range:
            raise _refused("min-range", f"{self.min_range:g}, not {most:g} of {name!r}")

    def check_arrays(self, arrays: Sequence[Array]) -> None:
        """Raise if a message's arrays are too large.

        Raises
        ------
        RefusedError
        """
        total = sum(array.nbytes for array in arrays)
        if total > self.max_message_bytes:
            raise _refused("max-message-bytes", f"{self.max_message_bytes}, not {total}")

    def check_model(self, values: Iterable[Any]) -> None:
        """Raise if an array of a model, or one sent with it, has too large an entry.

        Raises
        ------
        RefusedError
        """
        if math.isinf(self.max_model):
            return
        for array in values:
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "iufc":
                continue
            if array.dtype.kind == "f":
                largest = largest_entry(array)
            else:
                largest = float(np.abs(array.astype(np.complex128)).max(initial=0.0))
            if not largest <= self.max_model:
                raise _refused(
                    "max-model",
                    f"{self.max_model:g}, not entries of {largest:g}: use units of columns and "
                    f"outcomes in which a model is smaller, or raise it on this node",
                )

    @property
    def counts_requests(self) -> bool:
        """Whether there is a limit to requests."""
        return self.max_requests < _ANY

    def check_requests(self, answered: int, more: int = 1) -> None:
        """Raise if so many more answers would exceed the limit of requests on the node's rows.

        Raises
        ------
        RefusedError
        """
        if answered + more > self.max_requests:
            so_many = "so many" if answered >= self.max_requests else f"{answered}"
            these = "" if more == 1 else f", and this request counts as {more}"
            raise _refused(
                "max-requests",
                f"{self.max_requests}, and it has answered {so_many} on its rows{these}: the "
                f"node's owner may raise it",
            )

    def check(
        self,
        run: RunInfo,
        request: Request,
        rows: int,
        steps: int,
        summed: int = 1,
        noise: float = 0.0,
    ) -> None:
        """Raise unless the node answers a request.

        Parameters
        ----------
        run : RunInfo
        request : Request
        rows : int
            The node's number of rows.
        steps : int
            The number of local steps that the request asks for.
        summed : int
            The least number of clients in a sum in which the server sees the answer.
        noise : float
            The least standard deviation of the clients' noise in that sum, as a multiple of the
            clip.

        Raises
        ------
        RefusedError
        """
        self.check_part(run.algorithm, rows)
        self.check_phase(request.phase)
        (client, *_) = request.clients
        self.check_model(request.down(client).values())
        self.check_model(request.restore.get(client, {}).values())
        if summed < self.min_summed:
            seen = f"a sum of {summed} clients" if summed > 1 else "its upload alone"
            raise _refused("min-summed", f"{self.min_summed}, not {seen}")
        if self.min_noise is not None and noise < self.min_noise * (1 - 1e-9):
            offered = f"noise of {noise:.4g} times the clip" if noise else "an answer without noise"
            raise _refused("min-noise", f"{self.min_noise:g}, not {offered}")
        size = run.rows_each
        if size is not None and size < rows:
            if self.batches == "none":
                raise _refused("batches", f"none, not batch_size={size}")
            if size < self.min_batch_size:
                raise _refused("min-batch-size", f"{self.min_batch_size}, not {size}")
        solver = run.settings.get("local_solver")
        if isinstance(solver, SGD):
            steps = solver.number(rows)
        if steps > self.max_local_steps:
            raise _refused("max-local-steps", f"{self.max_local_steps}, not {steps}")
        if solver is not None and not isinstance(solver, LocalSolver):
            raise ConfigError(f"local_solver must be a local solver, got {solver!r}")
        most, asked = self.max_solver_iterations, 0 if solver is None else solver.most_iterations
        if asked > most:
            raise _refused("max-solver-iterations", f"{most}, not {asked}")

    @contextmanager
    def within_max_seconds(self) -> Iterator[None]:
        """Stop the block after `max_seconds`, in a process's main thread.

        Raises
        ------
        RefusedError
        """
        timer = getattr(signal, "setitimer", None)  # not on Windows
        main = threading.current_thread() is threading.main_thread()
        if timer is None or not main or math.isinf(self.max_seconds):
            yield
            return

        def late(number: int, frame: FrameType | None) -> None:
            raise _refused("max-seconds", f"{self.max_seconds:g}, and the answer takes longer")

        before = signal.signal(signal.SIGALRM, late)
        timer(signal.ITIMER_REAL, self.max_seconds)
        try:
            yield
        finally:
            timer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _refused(key: str, rest: str) -> RefusedError:
    return RefusedError(f"refused: this node's policy has {_PREFIX}{key} = {rest}")
