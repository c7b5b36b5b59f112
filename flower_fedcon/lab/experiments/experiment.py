"""Experiments described by a TOML file: a problem, how to run, and one or more algorithms.

    title = "Composite digits"         # optional, as is paper = "..."

    [problem]
    name = "digits"                    # one of `flower_fedcon.problems.BUILDERS`, or a function
                                       # of yours, "module:function", installed or available
    clients = 10                       # its keyword arguments
    l1 = 1e-3
    reference = true                   # find the optimum first, and record F - F* (the default)

    [run]
    rounds = 500                       # required
    seed = 0                           # the rest are the defaults
    engine = "local"                   # workers = 2 shares the clients out among processes;
                                       # with "ray", timeout = 60 stops a client that hangs, and
                                       # clients_per_message = 1 gives each its own message
    evaluate_every = 1
    certificates = false               # record also "kkt" and, with a constraint set, "fw_gap"

    [clock]                            # optional: simulated time; the keys are those of `Clock`
    up = {type = "LogNormal", median = 1e6, spread = 0.5}   # bytes per second
    latency = 0.05
    compute = {type = "Stragglers", count = 2, times = 20}  # see `stragglers`

    [algorithm]
    name = "FedDualAvg"                # one of the collection
    client_lr = 0.5                    # its arguments
    local_steps = 5
    participation = {sample = 3}       # or {fraction = 0.3}, {bernoulli = 0.5}, "full"
    grid = {client_lr = [0.1, 0.2, 0.5, 1.0]}   # optional: what its settings were chosen from

    [[compare]]                        # further algorithms, for `fedcon compare`
    name = "FedMiD"
    label = "mirror descent"           # optional, the name in tables and figures
    client_lr = 0.2
    local_steps = 5

    [tuning]                           # optional: how `fedcon tune` compares the values of grids
    rounds = 100                       # the keys are those of `TuningOptions`

    [sweep]                            # optional: a study, for `fedcon compare`; see `study`
    participation = [{fraction = 0.1}, "full"]

For tables of data, the name of ``[algorithm]`` or the whole table may be left out. The algorithm is
then the default of `fedcon path`: FedNewton up to 1000 columns, and proximal gradient steps with
momentum above. An algorithm's `regularizer` and `constraint` come from the problem; a table such as
``regularizer = {type = "L1", weight = 1e-3}`` replaces them. An algorithm that ignores the
problem's regularizer or constraint, or uses a different one, is refused unless its table, or
``[run]`` for all algorithms, says ``on_mismatch = "warn"``. Other arguments can be tables, too:
``server_optimizer = {type = "Adam"}``, ``client_lr = {type = "InverseSqrt", initial = 0.1}``. Every
key is checked against the signature that will receive it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flower_fedcon import registry
from flower_fedcon.core.clock import Clock
from flower_fedcon.core.participation import Full, Only, Participation
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.lab.experiments import overrides as changes
from flower_fedcon.lab.experiments.folders import unused
from flower_fedcon.lab.experiments.histories import setting_text
from flower_fedcon.lab.experiments.run_tables import RunOptions, TuningOptions, check_sweep
from flower_fedcon.lab.experiments.stragglers import timing
from flower_fedcon.problems import builder
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.mismatch import ON_MISMATCH, oracles, why_mismatched
from flower_fedcon.runs.toml import argument, read_toml, section, tabled, write_value
from flower_fedcon.runs.toml_schema import (
    Table,
    check_keys,
    check_table,
    check_type,
    check_types,
    context,
    defaults,
)
from flower_fedcon.simulation import auto_strategies
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.strategies.families.arguments import other_names
from flower_fedcon.validation import AUTO, choice, parameters

_DRAWN = ("batch_size", "compression", "uplink", "downlink")
"""Settings that may draw at random."""


class Experiment:
    """A checked experiment.

    Parameters
    ----------
    tables : dict
        The content of the file.
    source : str
        The file's name, with which each error's text begins.
    overrides : sequence of str
        "key=value", each applied in turn, names first: see `load`.
    runs : bool (default: True)
        See `load`.

    Attributes
    ----------
    title, paper : str
    chosen : str
        The default method for tables, in words; "" if the file names one.
    run_options : RunOptions
    tuning : TuningOptions
    sweep : dict
        Key -> values, as `run_tables.check_sweep` returns it.

    Raises
    ------
    ConfigError
        If an entry is missing, unknown or of the wrong type.

    Examples
    --------
    >>> experiment = Experiment({
    ...     "problem": {"name": "counterexample"},
    ...     "run": {"rounds": 5},
    ...     "algorithm": {"name": "FedFW", "penalty": 1.0},
    ... })
    >>> experiment.problem().num_clients, experiment.strategy().penalty
    (2, 1.0)
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        source: str = "experiment",
        overrides: Sequence[str] = (),
        *,
        runs: bool = True,
    ) -> None:
        self.source = source
        self._tables: Table = copy.deepcopy(dict(tables))
        self._built: list[FederatedProblem] = []  # the problem, once it is needed
        self.chosen = ""  # the default method for tables, if the file names none
        with context(source):
            if _is_of_tables(self._tables.get("problem")):
                self._tables.setdefault("algorithm", {})
            elif "compare" not in self._tables:
                self._tables.setdefault("algorithm", {"name": AUTO})
            changes.apply(self._tables, overrides)
            self._check(runs)

    @classmethod
    def load(
        cls, path: str | Path, overrides: Sequence[str] = (), *, runs: bool = True
    ) -> Experiment:
        """Read a file.

        Parameters
        ----------
        path : path
        overrides : sequence of str
            Such as "run.rounds=10", "algorithm.client_lr=0.1", "compare.1.client_lr=0.1" (the
            first of ``[[compare]]``), "FedDR.step_size=10" (the algorithm of that name or label),
            "both.seed=1" (of problem and run), or a key alone: one that only ``[problem]`` or
            ``[run]`` can have, "rounds=10", or an argument, "participation.sample=3", of all
            algorithms that take it. The value is TOML, else a string.
        runs : bool (default: True)
            False to look at the problem alone: a file that says no number of rounds has 0.

        Raises
        ------
        ConfigError
            If the file cannot be read, or its content cannot be used.
        """
        return cls(read_toml(path), str(path), overrides, runs=runs)

    # --- what the file describes ---------------------------------------------------------------

    @property
    def labels(self) -> list[str]:
        """The algorithms' labels, all different; the main one first."""
        labels: list[str] = []
        for table in self._algorithms():
            name = table["name"]
            usual = name if name == AUTO else registry.strategy_class(name).__name__
            label = str(table.get("label") or usual)
            labels.append(unused(label, labels, " "))
        return labels

    def problem(self) -> FederatedProblem:
        """Return the problem, the same object each time."""
        if not self._built:
            with context(self.source), context("[problem]"):
                built = self.builder(**self.problem_arguments)
                if not isinstance(built, FederatedProblem):
                    name = self._tables["problem"]["name"]
                    raise ConfigError(f"{name} returned {built!r}, expected a FederatedProblem")
                noise = self._tables["problem"].get("gradient_noise")
                self._built.append(built if noise is None else built.with_noise(noise))
        return self._built[0]

    @property
    def clock(self) -> Clock | None:
        """The clock of the runs, if the file has one, for the problem's clients and the seed."""
        if self._clock is None:
            return None
        return self._clock(self.problem().num_clients, self.run_options.seed)

    @property
    def builder(self) -> Callable[..., Any]:
        """The function that makes the problem."""
        return builder(self._tables["problem"]["name"])

    @property
    def reference(self) -> bool:
        """Whether the optimum is computed before the run."""
        return bool(self._tables["problem"].get("reference", True))

    @property
    def seeks_optimum(self) -> bool:
        """Whether the optimum is computed and compared with a run; runs with noise are not."""
        if not self.reference or self.run_options.unsafe:
            return self.reference
        if self.problem().private_examples:
            return False
        indices = range(len(self.labels))
        rules = [None if self.races(i) else self.strategy(i).privacy for i in indices]
        return any(rule is None or not rule.noise_multiplier for rule in rules)

    def strategy(self, index: int = 0) -> FedConStrategy[Any]:
        """Return an algorithm: 0 for ``[algorithm]``, 1 for the first of ``[[compare]]``, ..."""
        table, problem = self._algorithms()[index], self.problem()
        if self.races(index):
            with context(self.source), context(_table_name(index)):
                rule, plan = self.participation(index), self.run_options.plan()
                return auto_strategies(problem, rule, plan, say=False)[0]
        kind = registry.strategy_class(table["name"])
        with context(self.source), context(_table_name(index)):
            arguments = {
                name: argument(name, value) for name, value in table.items()
                if name not in changes.ALGORITHM
            }  # fmt: skip
            arguments = oracles(kind, problem) | arguments
            check_types(arguments, parameters(kind))
            _check_required(kind, arguments)
            made = kind(**arguments)
            assert isinstance(made, FedConStrategy)  # noqa: S101  (the registry takes no other)
            mismatch = why_mismatched(made, problem)
            if mismatch is not None and self.on_mismatch(index) == "error":
                raise ConfigError(mismatch)
            return made

    def races(self, index: int = 0) -> bool:
        """Return whether no algorithm is named, so that methods race."""
        return bool(self._algorithms()[index]["name"] == AUTO)

    def participation(self, index: int = 0) -> Participation:
        """Return the participation in an algorithm's table; by default everyone."""
        rule: Participation = argument(
            "participation", self._algorithms()[index].get("participation", "full")
        )
        return rule

    def who_takes_part(self) -> dict[str, str]:
        """Return the participation of each algorithm, by label, in the file's form."""
        key = "participation"
        texts = [setting_text(key, table.get(key, "full")) for table in self._algorithms()]
        return dict(zip(self.labels, texts, strict=True))

    def on_mismatch(self, index: int = 0) -> str:
        """Return how an algorithm that solves a different problem is treated: "error" or "warn"."""
        stated = self._algorithms()[index].get("on_mismatch")
        return str(stated or self.run_options.on_mismatch or "error")

    def strategies(self) -> dict[str, FedConStrategy[Any]]:
        """Return all algorithms, by label."""
        return {label: self.strategy(i) for i, label in enumerate(self.labels)}

    def grid(self, label: str) -> dict[str, list[float]]:
        """Return the grid from which an algorithm's settings were chosen; {} without one."""
        return dict(self._table(label).get("grid", {}))

    def settings(self, label: str) -> Table:
        """Return an algorithm's settings in the file's form."""
        return {k: v for k, v in self._table(label).items() if k not in changes.ALGORITHM}

    def draws(self, label: str, *, data: bool = True) -> bool:
        """Return whether a new seed of the run (with `data`, of the problem) changes a run."""
        table = self._table(label)
        rule = self.participation(self.labels.index(label))
        clients = self.all_problem_arguments.get("clients")
        everyone = isinstance(clients, int) and rule.is_full(clients)
        return (
            (data and "seed" in self.all_problem_arguments)
            or "gradient_noise" in self._tables["problem"]
            or not (everyone or isinstance(rule, Full | Only))
            or any(key in table for key in _DRAWN)
            or "communication_probability" in parameters(registry.strategy_class(table["name"]))
        )

    def only(self, label: str) -> Experiment:
        """Return the same experiment with one of its algorithms alone."""
        tables = {key: value for key, value in self._tables.items() if key != "compare"}
        return Experiment({**tables, "algorithm": self._table(label)}, self.source)

    def changed(self, overrides: Sequence[str]) -> Experiment:
        """Return the same experiment with changes in the form for `load`, without a sweep."""
        tables = {key: value for key, value in self._tables.items() if key != "sweep"}
        other = Experiment(tables, self.source, overrides)
        other.share_problem(self)
        return other

    def concerns(self, label: str, key: str) -> bool:
        """Return whether a key of `load` changes a run of an algorithm."""
        return changes.concerns(self._tables, self._table(label), key)

    def with_algorithms(self, tables: Sequence[Table]) -> Experiment:
        """Return the same experiment with other algorithms, the main one first."""
        first, *others = tables
        changed = {**self._tables, "algorithm": first, "compare": others}
        return Experiment(changed, self.source)

    def seeded(self, seed: int, tables: Sequence[str] = ("run",)) -> Experiment:
        """Return the same experiment with a new seed for its runs, its problem, or both.

        If only the seed of the runs differs, both share one problem.
        """
        seeds = {name: {**self._tables[name], "seed": seed} for name in tables}
        other = Experiment({**self._tables, **seeds}, self.source)
        other.share_problem(self)
        return other

    def share_problem(self, other: Experiment) -> None:
        """Use another experiment's problem, with its optimum, if the two are the same."""
        if self._tables["problem"] == other._tables["problem"]:
            self._built = other._built

    def to_toml(self, index: int | None = None) -> str:
        """Return the resolved experiment, defaults included.

        With `index` it is one algorithm's run, to which neither a sweep nor a grid belongs.
        """
        lines = [f"{key} = {write_value(self._tables[key])}" for key in ("title", "paper")
                 if key in self._tables]  # fmt: skip
        name = self._tables["problem"]["name"]
        problem = self.all_problem_arguments
        extras = {k: v for k, v in self._tables["problem"].items() if k == "gradient_noise"}
        extras["reference"] = self.reference
        lines += section("[problem]", {"name": name, **problem, **extras})
        options = asdict(self.run_options).items()
        run = {key: value for key, value in options if value is not None and value is not False}
        lines += section("[run]", run)
        if "clock" in self._tables:
            lines += section("[clock]", self._tables["clock"])
        tables, labels = self._algorithms(), self.labels
        for i in range(len(tables)) if index is None else [index]:
            called = tables[i]["name"]  # "module:Class" and "auto" are kept
            usual = {}
            if not self.races(i):
                kind = registry.strategy_class(called)
                called = called if ":" in called else kind.__name__
                usual = defaults(parameters(kind))
            table = {"name": called, "label": labels[i], **usual}
            table |= {k: v for k, v in tables[i].items() if k not in ("name", "label", "grid")}
            table.setdefault("participation", "full")
            if index is None and tables[i].get("grid"):
                table["grid"] = tables[i]["grid"]
            lines += section("[[compare]]" if i and index is None else "[algorithm]", table)
        if index is None and "tuning" in self._tables:
            lines += section("[tuning]", self._tables["tuning"])
        if index is None and self.sweep:
            lines += section("[sweep]", self.sweep)
        return "\n".join(lines).lstrip("\n") + "\n"

    def _completed(self, table: Table) -> Table:
        """Return an algorithm's table with the default method for its problem's tables."""
        from flower_fedcon.tables.default_method import default_strategy

        problem, rule = (
            self.problem(),
            argument("participation", table.get("participation", "full")),
        )
        with context("[algorithm]"):
            made = default_strategy(problem, rule)
        stated = {
            name: tabled(value) for name, value in made.arguments().items() if value is not None
        }
        columns, kind = len(problem.preparation.names) if problem.preparation else 0, type(made)
        self.chosen = f"method: {kind.__name__}, the default for tables of {columns} columns"
        oracle = ("regularizer", "constraint")  # the problem has these
        stated = {name: value for name, value in stated.items() if name not in oracle}
        return {"name": kind.__name__, **stated, **table}

    # --- checks --------------------------------------------------------------------------------

    def _algorithms(self) -> list[Table]:
        return [self._tables["algorithm"], *self._tables.get("compare", [])]

    def _table(self, label: str) -> Table:
        if label not in self.labels:
            raise ConfigError(f"unknown label {label!r}: {nearest(label, self.labels)}")
        return self._algorithms()[self.labels.index(label)]

    @property
    def problem_arguments(self) -> Table:
        """The arguments of the problem's builder, in the file's form."""
        table = self._tables["problem"]
        return {k: v for k, v in table.items() if k not in changes.PROBLEM}

    @property
    def all_problem_arguments(self) -> Table:
        """The same, with the defaults of arguments that the file leaves out."""
        name = self._tables["problem"]["name"]
        return defaults(parameters(builder(name))) | self.problem_arguments

    def _check(self, runs: bool) -> None:
        tables = self._tables
        check_keys(tables, changes.TOP, "the file's top level")
        tables.setdefault("run", {})
        for name in ("problem", "run", "algorithm"):
            check_table(tables.get(name), f"[{name}]")
        compare = tables.get("compare", [])
        if not isinstance(compare, list):
            raise ConfigError("write [[compare]], in double brackets, for each algorithm")
        for i, table in enumerate(compare, start=1):
            check_table(table, _table_name(i))
        for key in ("title", "paper"):
            check_type(key, tables.get(key, ""), str)
        self.title, self.paper = tables.get("title", ""), tables.get("paper", "")
        with context("[run]"):
            check_keys(tables["run"], changes.valid_keys(tables, "run"))
            if not runs:
                tables["run"].setdefault("rounds", 0)
            if "rounds" not in tables["run"]:
                raise ConfigError(
                    "rounds is missing: write rounds = 100, or another number, below [run]"
                )
            check_types(tables["run"], parameters(RunOptions))
            self.run_options = RunOptions(**tables["run"])
        with context("[clock]"):
            check_table(tables.get("clock", {}), "[clock]")
            self._clock = timing(tables["clock"]) if "clock" in tables else None
        with context("[tuning]"):
            check_table(tables.get("tuning", {}), "[tuning]")
            check_keys(tables.get("tuning", {}), parameters(TuningOptions))
            check_types(tables.get("tuning", {}), parameters(TuningOptions))
            self.tuning = TuningOptions(**tables.get("tuning", {}))
        with context("[sweep]"):
            check_table(tables.get("sweep", {}), "[sweep]")
            self.sweep = check_sweep(tables.get("sweep", {}))
        with context("[problem]"):
            function = builder(_required_name(tables["problem"], "problem"))
            check_keys(tables["problem"], changes.valid_keys(tables, "problem"))
            check_type("reference", tables["problem"].get("reference", True), bool)
            check_type("gradient_noise", tables["problem"].get("gradient_noise", 0.0), float)
            check_types(self.problem_arguments, parameters(function))
            for key, parameter in parameters(function).items():
                if parameter.default is parameter.empty and key not in tables["problem"]:
                    raise ConfigError(f"{key} is missing: {tables['problem']['name']} needs it")
        if "name" not in tables["algorithm"] and _is_of_tables(tables["problem"]):
            tables["algorithm"] = self._completed(tables["algorithm"])
        for i, table in enumerate(self._algorithms()):
            with context(_table_name(i)):
                if _required_name(table, "algorithm") == AUTO:
                    check_keys(table, (*changes.ALGORITHM, "participation"))
                else:
                    kind = registry.strategy_class(table["name"])
                    valid = (*changes.ALGORITHM, *parameters(kind))
                    check_keys(table, valid, also=other_names(kind))
                check_type("label", table.get("label", ""), str)
                choice("on_mismatch", self.on_mismatch(i), ON_MISMATCH)
                with context("grid"):
                    _check_grid(table.get("grid", {}), table)


def _check_grid(grid: Any, table: Table) -> None:
    check_table(grid, "grid")
    check_keys(grid, [key for key in table if key not in changes.ALGORITHM])
    for key, values in grid.items():
        numbers = values if isinstance(values, list) else []
        for number in numbers:
            check_type(key, number, float)
        if len(numbers) < 3 or sorted(set(numbers)) != numbers:
            raise ConfigError(f"{key} must be at least three increasing numbers, got {values!r}")


def _is_of_tables(problem: Any) -> bool:
    """Return whether a problem's table names a builder of this package that reads tables."""
    name = problem.get("name") if isinstance(problem, dict) else None
    return name in ("tables", "heart")


def _table_name(index: int) -> str:
    return f"[[compare]] {index}" if index else "[algorithm]"


def _required_name(table: Table, what: str) -> Any:
    if "name" not in table:
        hint = (
            ""
            if what == "algorithm"
            else (
                ". A run started in Python writes it if the problem comes from a function of "
                "flower_fedcon.problems, or from your own function decorated with `stated`"
            )
        )
        raise ConfigError(f"name is missing: it says which {what}{hint}")
    return table["name"]


def _check_required(kind: type[Any], arguments: Table) -> None:
    for name, parameter in parameters(kind).items():
        if parameter.default is not parameter.empty or name in arguments:
            continue
        remedy = f"write {name} = ..."
        if name in ("regularizer", "constraint"):
            remedy = f"the problem has none; choose one there, or write {name} = {{type = ...}}"
        raise ConfigError(f"{kind.__name__} needs {name}: {remedy}")
