"""The plan of a run: the user's settings apart from the method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flower_fedcon.core.clock import Clock
from flower_fedcon.core.rng import check_seed
from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.history import Callback, Record
from flower_fedcon.runs.hook_registry import check_arguments
from flower_fedcon.validation import Array, count


@dataclass(frozen=True)
class Plan:
    """The plan of a run: its rounds, its records, and its folder.

    `simulate` and a strategy's `start` take these fields by name.

    Attributes
    ----------
    num_rounds : int
        >= 0.
    seed : int
        In [0, 2**63), the seed of all draws: cohorts, batches, compressors. The same seed gives the
        same iterates.
    evaluate_every : int
        Rounds between records; the last round is always recorded, and 0 means only the last. On
        nodes the clients then evaluate the model, by default every ten rounds.
    run_dir : path, optional
        Folder for configuration, history, model and checkpoint. With it, SIGINT and SIGTERM end the
        run after the current round, with a checkpoint.
    resume : bool
        Whether to continue the run in `run_dir`; the result is that of a run that was never
        interrupted. Without a run there, it starts at round 1. Refused if the clients' data or a
        setting has changed: arrays are compared entirely, your own objects by an attribute
        `resume_key` (a text or a number), or without it by their whole content.
    checkpoint_every : int, optional
        Rounds between checkpoints; by default there is one every ten seconds, for large models
        less often, so that they take at most a tenth of the time, and always at the end.
    allow_changes : sequence of str
        What may differ from the resumed run, such as "penalty" or "data".
    certificates : bool
        Whether to record "kkt" and, if they apply, "fw_gap" and "consensus", from the clients'
        gradients; see `flower_fedcon.runs.certificates`.
    audit : bool, optional
        Whether to write to `run_dir/audit.jsonl` who was asked in each round, who replied, and what
        was used or dropped and why; see `flower_fedcon.runs.audit_log`. It writes a line for each
        exchange. By default it is on only for clients on nodes, or in Ray's workers.
    callbacks : sequence of callables
        Each is called with every record, and may stop the run by returning True. An `Observer` also
        sees the states of server and clients, and records its own columns.
    evaluate : callable, optional
        (round, x) -> numbers to record in addition to the objective; x is a copy of the model.
    config : str, optional
        The experiment file that describes the run, for its folder.
    clock : Clock, optional
        The clients' speeds: the history then has "simulated_seconds", the time that the rounds so
        far would have taken.
    unsafe : bool
        In a private run (`privacy=GaussianDP(...)` with noise, or private examples in this
        process): whether to record, and show to callbacks, also what no noise protects: the
        objective, the residual, and clients' metrics and states. Epsilon does not count them. By
        default clients are not asked for them.
    inference : {"model", "robust", "cluster", "quasi", "debiased"}, optional
        For runs on tables without a penalty: standard errors of the coefficients, by one exchange
        of sums after the last round; see `flower_fedcon.tables.statistics.site_sums`. "cluster"
        uses the values of the schema's `cluster` within clients, or the clients. "quasi" is
        quasi-Poisson. "debiased", for runs with an l1 norm, gives intervals about debiased
        coefficients; see `flower_fedcon.tables.statistics.debiased`. Random `site_effects` always
        give the model's errors.
    heterogeneity : bool
        With inference: whether each client also reports a fit of its own rows, if its policy allows
        it, for `heterogeneity.csv`; see `flower_fedcon.tables.statistics.Heterogeneity`.
    """

    num_rounds: int
    seed: int = 0
    evaluate_every: int = 1
    run_dir: str | Path | None = None
    resume: bool = False
    checkpoint_every: int | None = None
    allow_changes: Sequence[str] = ()
    certificates: bool = False
    audit: bool | None = None
    callbacks: Sequence[Callback] = ()
    evaluate: Callable[[int, Array], Record] | None = None
    config: str | None = None
    clock: Clock | None = None
    unsafe: bool = False
    inference: str | None = None
    heterogeneity: bool = False

    def __post_init__(self) -> None:
        count("num_rounds", self.num_rounds, minimum=0)
        count("evaluate_every", self.evaluate_every, minimum=0)
        check_seed(self.seed)
        if self.checkpoint_every is not None:
            count("checkpoint_every", self.checkpoint_every)
        if not isinstance(self.unsafe, bool):
            raise ConfigError(f"unsafe must be True or False, got {self.unsafe!r}")
        if not isinstance(self.clock, Clock | None):
            raise ConfigError(f"clock must be a flower_fedcon.Clock, got {self.clock!r}")
        of_wings = ("inference", None), ("heterogeneity", False)
        if given := [name for name, left_out in of_wings if getattr(self, name) is not left_out]:
            check_arguments(self, given)
        for callback in self.callbacks:
            if not callable(callback):
                raise ConfigError(f"a callback must be callable, got {callback!r}")
        if isinstance(self.run_dir, str) and not self.run_dir.strip():
            raise ConfigError('run_dir must name a folder, or be None for none, got ""')
        if self.resume and self.run_dir is None:
            raise ConfigError("resume=True needs the run_dir of the run to continue")
        if self.audit and self.run_dir is None:
            raise ConfigError("audit=True needs a run_dir for its audit.jsonl")

    def next_stop(self, done: int) -> int:
        """Return the next round that is recorded, or saved."""
        stops = [self.num_rounds]
        for every in (self.evaluate_every, self.checkpoint_every):
            if every:
                stops.append(done - done % every + every)
        return min(stops)
