"""The tables ``[run]``, ``[tuning]`` and ``[sweep]`` of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flower_fedcon.core import rng
from flower_fedcon.errors import ConfigError, nearest, repr_of
from flower_fedcon.problems.mismatch import ON_MISMATCH
from flower_fedcon.runs.certificates import CERTIFICATES
from flower_fedcon.runs.history import Callback, EarlyStopping
from flower_fedcon.runs.limits import Budget
from flower_fedcon.runs.observing import Observer
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.toml import own_object, write_value
from flower_fedcon.simulation import ENGINES
from flower_fedcon.validation import choice, count, optional, positive


@dataclass(frozen=True)
class RunOptions:
    """The table ``[run]``: its keys are these fields."""

    rounds: int
    seed: int = 0
    engine: str = "local"
    evaluate_every: int = 1
    workers: int | None = None
    timeout: float | None = None
    clients_per_message: int | None = None
    audit: bool | None = None
    on_mismatch: str | None = None  # "error"
    certificates: bool = False
    until: dict[str, float] | None = None  # columns, and levels at which the run stops
    budget: dict[str, float] | None = None  # limits of seconds or megabytes
    observers: list[str] | None = None  # your own, each "module:Class", made without arguments
    unsafe: bool = False  # record values that no noise covers, in a private run

    def __post_init__(self) -> None:
        count("rounds", self.rounds, minimum=0)
        count("evaluate_every", self.evaluate_every, minimum=0)
        rng.check_seed(self.seed)
        choice("engine", self.engine, ENGINES)
        if self.on_mismatch is not None:
            choice("on_mismatch", self.on_mismatch, ON_MISMATCH)
        if self.workers is not None:
            count("workers", self.workers)
        optional(positive, "timeout", self.timeout)
        optional(count, "clients_per_message", self.clients_per_message)
        for name, form in (("until", "{residual = 1e-3}"), ("budget", "{seconds = 60}")):
            if not isinstance(given := getattr(self, name), dict | None):
                raise ConfigError(f"{name} must be a table such as {form}, got {repr_of(given)}")
        self.stops()

    def stops(self) -> tuple[Callback, ...]:
        """Return the callbacks that end such a run before its last round."""
        levels = (self.until or {}).items()
        stops: list[Callback] = [EarlyStopping(level, column) for column, level in levels]
        return (*stops, Budget(**self.budget)) if self.budget else tuple(stops)

    def watching(self) -> list[Callback]:
        """Return the observers.

        Raises
        ------
        ConfigError
            If a text does not name an observer.
        """
        observers: list[Callback] = []
        for name in self.observers or []:
            if not isinstance(name, str) or ":" not in name:
                raise ConfigError(f'observers must be texts "module:Class", got {repr_of(name)}')
            kind = own_object(name, "the observer")
            if not (isinstance(kind, type) and issubclass(kind, Observer)):
                raise ConfigError(
                    f"{name} is not an Observer: derive it from flower_fedcon.Observer"
                )
            try:
                observers.append(kind())
            except TypeError as error:
                raise ConfigError(
                    f"observers: {name} must work without arguments: {error}"
                ) from None
        return observers

    def plan(self, **more: Any) -> Plan:
        """Return the plan of such a run, with further entries of `Plan`."""
        callbacks = (*self.stops(), *self.watching(), *more.pop("callbacks", ()))
        return Plan(
            num_rounds=self.rounds,
            seed=self.seed,
            evaluate_every=self.evaluate_every,
            audit=self.audit if more.get("run_dir") else None,  # otherwise it has no folder
            certificates=self.certificates or not CERTIFICATES.isdisjoint(self.until or ()),
            callbacks=callbacks,
            unsafe=self.unsafe,
            **more,
        )


@dataclass(frozen=True)
class TuningOptions:
    """The table ``[tuning]``: how the values of a grid are compared; its keys are these fields.

    Attributes
    ----------
    rounds : int, optional
        The rounds of each run; by default the experiment's.
    metric : str
        A column of the history. The smallest value after the last round is the best.
    level : float, optional
        If given, the best value is the one that brings the metric to this level with the least
        `of`.
    of : str
        The column of the history with the cost until then, such as "uplink_bytes".
    largest : bool
        Whether the largest value is the best.
    """

    rounds: int | None = None
    metric: str = "residual"
    level: float | None = None
    of: str = "round"
    largest: bool = False

    def __post_init__(self) -> None:
        if self.rounds is not None:
            count("rounds", self.rounds)
        optional(positive, "level", self.level)
        if self.level is not None and self.largest:
            raise ConfigError("give either level or largest, since a level is reached from above")
        if self.level is None and self.of != "round":
            raise ConfigError(
                f"of = {self.of!r} is what is spent to reach a level: give level, too"
            )

    @property
    def title(self) -> str:
        """The name of the score."""
        if self.level is None:
            return self.metric
        return f"{self.of} with {self.metric} at most {self.level:g}"


BOTH = "both.seed"
"""The common seed of problem and run, in a sweep or an override."""


def check_sweep(table: Any) -> dict[str, Any]:
    """Return a table ``[sweep]`` as key -> values, dotted keys as texts, "names" among them.

    Raises
    ------
    ConfigError
        If a key does not have a list of different values, if the names do not match the values, or
        if a seed is varied both alone and with the other.

    >>> check_sweep({"local_steps": [1, 5], "run": {"seed": [0, 1]}})
    {'local_steps': [1, 5], 'run.seed': [0, 1]}
    """
    values: dict[str, Any] = {}
    pending, names = [("", {k: v for k, v in table.items() if k != "names"})], table.get("names")
    while pending:
        place, tables = pending.pop(0)
        for key, value in tables.items():
            name = f"{place}{key}"
            if isinstance(value, dict):
                pending.append((f"{name}.", value))
            elif name == "tune" and isinstance(value, bool):
                values[name] = value
            elif not isinstance(value, list) or not value:
                raise ConfigError(f"{name} must be a list of values, got {value!r}")
            elif any(value.count(one) > 1 for one in value):
                raise ConfigError(f"{name} must have different values, got {value!r}")
            else:
                values[name] = value
    alone = sorted({"problem.seed", "run.seed"} & values.keys())
    if BOTH in values and alone:
        raise ConfigError(
            f"{BOTH} also sets {alone[0]}: write only {BOTH}, or problem.seed and run.seed, of "
            f"which all combinations are then run"
        )
    if names is not None:
        values["names"] = check_sweep(names)
        for key, texts in values["names"].items():
            if key not in values or key == "tune":
                raise ConfigError(f"names.{key} names no key of [sweep]: {nearest(key, values)}")
            if len(texts) != len(values[key]) or not all(isinstance(text, str) for text in texts):
                raise ConfigError(
                    f"names.{key} must be {len(values[key])} texts, one for each value of {key}, "
                    f"got {texts!r}"
                )
    return values


def names_of_values(sweep: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return a sweep's names of values, by key and value in TOML.

    >>> names_of_values(check_sweep({"steps": [1, 5], "names": {"steps": ["one", "five"]}}))
    {('steps', '1'): 'one', ('steps', '5'): 'five'}
    """
    return {
        (key, write_value(value)): text
        for key, texts in sweep.get("names", {}).items()
        for value, text in zip(sweep[key], texts, strict=True)
    }
