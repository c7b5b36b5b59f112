"""How a run is to go, and what it is to leave: what its user decides, apart from the method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flower_fedcon.core.clock import Clock
from flower_fedcon.core.rng import check_seed
from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.history import Callback, Record
from flower_fedcon.tables.statistics import METHODS
from flower_fedcon.tables.statistics.estimates import DEBIASED
from flower_fedcon.validation import Array, choice, count


@dataclass(frozen=True)
class Plan:
    """How a run is to go: its rounds, what it records, and what it leaves in a folder.

    `simulate` and `start` of a strategy take these fields by name.

    Attributes
    ----------
    num_rounds : int
        >= 0.
    seed : int
        In [0, 2**63), of every draw: cohorts, batches, compressors. Same seed, same iterates.
    evaluate_every : int
        Record each so many rounds, and the last; 0 for the last only. On nodes the clients evaluate
        the model then, and by default every ten rounds.
    run_dir : path, optional
        Folder for configuration, history, model and checkpoint. With it, SIGINT and SIGTERM end
        the run after the round under way, with a checkpoint.
    resume : bool
        Whether to go on with the run in `run_dir`, to the result of a run that was never
        interrupted; from round 1 where there is none. Refused if the clients' data or a setting is
        not what it was: arrays count whole, an object of your own by its attribute `resume_key` (a
        text or a number), if it has one, else by all that it holds.
    checkpoint_every : int, optional
        Write a checkpoint after each so many rounds; by default every ten seconds, and always at
        the end.
    allow_changes : sequence of str
        What may differ from the run that is resumed, such as "penalty" or "data".
    certificates : bool
        Whether to record "kkt", and where they apply "fw_gap" and "consensus", from the clients'
        gradients; see `flower_fedcon.runs.certificates`.
    audit : bool, optional
        Whether to write who was asked in each round, who replied, what was used or dropped and why
        to `run_dir/audit.jsonl`; see `flower_fedcon.runs.audit_log`. By default where clients are
        on nodes, or in Ray's workers, since it takes a line of text for each exchange.
    callbacks : sequence of callables
        Each sees every record, and may stop the run by returning True. One that is an `Observer`
        sees the states of server and clients, too, and records columns of its own.
    evaluate : callable, optional
        (round, x) -> what is recorded beside the objective; x is a copy of the model.
    config : str, optional
        The experiment file that describes the run, for its folder.
    clock : Clock, optional
        How fast the clients are: then a history has "simulated_seconds", what the rounds would have
        taken so far.
    unsafe : bool
        Of a run with `privacy=GaussianDP(...)` and noise: whether to record, and show to callbacks,
        what no noise covers, too: the objective, the residual, clients' metrics, their states.
        Epsilon counts none of it. By default nobody is asked for it.
    inference : {"model", "robust", "cluster", "quasi", "debiased"}, optional
        Of runs on tables without a penalty: standard errors of the coefficients, by one exchange of
        sums after the last round; see `flower_fedcon.tables.statistics.site_sums`. "cluster": by
        the values of the schema's `cluster` within clients, or by client. "quasi": quasi-Poisson.
        "debiased", of runs with an l1 norm: intervals about debiased coefficients; see
        `flower_fedcon.tables.statistics.debiased`. With random `site_effects` there are the model's
        errors anyway.
    heterogeneity : bool
        With inference: whether clients also tell what each finds alone, where their policies allow
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
        if self.inference is not None:
            choice("inference", self.inference, (*METHODS, DEBIASED))
        if not isinstance(self.heterogeneity, bool):
            raise ConfigError(f"heterogeneity must be True or False, got {self.heterogeneity!r}")
        if self.heterogeneity and self.inference is None:
            raise ConfigError(
                'heterogeneity compares with pooled estimates: give inference="model", too'
            )
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
        """Return the next round after one that is recorded, or saved."""
        stops = [self.num_rounds]
        for every in (self.evaluate_every, self.checkpoint_every):
            if every:
                stops.append(done - done % every + every)
        return min(stops)
