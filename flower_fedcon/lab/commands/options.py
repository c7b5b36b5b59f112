"""The options of commands on experiments; those that `run` and `compare` share as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from flower_fedcon.lab.experiments.experiment import Experiment
    from flower_fedcon.lab.experiments.tracking import Tracking
    from flower_fedcon.runs.plan import Plan

File = Annotated[Path, typer.Argument(help="Experiment file (TOML).", show_default=False)]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.")]
Seed = Annotated[int | None, typer.Option(help="Seed of cohorts, batches and compressors.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace a setting of the file, such as run.rounds=9; client_lr=0.1 sets it for all "
        "algorithms, FedAvg.client_lr=0.1 for one; may be repeated.",
    ),
]
XLim = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[X=]LOW,HIGH",
        help="Ends of an axis across, such as rounds=0,100; one of the two may be left out, as in "
        "rounds=10,. Without a name they are those of the only one. May be repeated.",
    ),
]
YLim = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[COLUMN=]LOW,HIGH",
        help="Ends of a column's axis, such as residual=1e-6,1 or residual=1e-6,. Without a name "
        "they are those of the only one. By default a logarithmic axis ends above values that are "
        "rounding. May be repeated.",
    ),
]
_Engine = Annotated[str | None, typer.Option(help="Where clients run: local, stacked, jax or ray.")]
_RunDir = Annotated[
    Path | None, typer.Option(help="Folder for the results; by default a new runs/<file name>.")
]
_Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]
_Every = Annotated[
    int | None,
    typer.Option(
        help="Rounds between checkpoints; by default there is a checkpoint every ten seconds."
    ),
]
_Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-change",
        metavar="NAME",
        help="A setting that may differ from the resumed run's; may be repeated.",
    ),
]
_Until = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=LEVEL",
        help="Stop once a column of the history is at most this value, such as kkt=1e-6; may be "
        "repeated.",
    ),
]
_Budget = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT=LIMIT",
        help="Stop once this much is spent, such as seconds=60; also simulated_seconds or "
        "megabytes; may be repeated.",
    ),
]
_LogTo = Annotated[
    list[str] | None,
    typer.Option(help="Also send the records to a tracker: tensorboard or wandb; may be repeated."),
]
_LogJson = Annotated[
    Path | None, typer.Option(help="Append records and warnings to this file, as lines of JSON.")
]


@dataclass(frozen=True)
class RunArguments:
    """The command line's options for runs; the fields are in the order of the help."""

    file: File
    engine: _Engine = None
    rounds: Rounds = None
    seed: Seed = None
    run_dir: _RunDir = None
    resume: _Resume = False
    checkpoint_every: _Every = None
    allow_change: _Allow = None
    until: _Until = None
    budget: _Budget = None
    log_to: _LogTo = None
    log_json: _LogJson = None
    set_: Set = None

    def experiment(self) -> Experiment:
        """Return the file's experiment with the requested changes."""
        from flower_fedcon.lab.experiments.experiment import Experiment
        from flower_fedcon.lab.experiments.targets import named_number
        from flower_fedcon.runs.toml import write_value

        options = {"rounds": self.rounds, "seed": self.seed, "engine": self.engine}
        overrides = [f"run.{key}={value}" for key, value in options.items() if value is not None]
        for key, entries in (("until", self.until), ("budget", self.budget)):
            if entries:
                levels = dict(named_number(key, entry) for entry in entries)
                overrides.append(f"run.{key}={write_value(levels)}")
        return Experiment.load(self.file, [*(self.set_ or []), *overrides])

    def say_whose_settings(self, experiment: Experiment) -> None:
        """Say which changes concern only the first of several algorithms."""
        from flower_fedcon.runs.console import say

        first, *others = experiment.labels
        for text in self.set_ or []:
            table, _, setting = text.partition(".")
            if others and table == "algorithm":
                say(
                    f"--set {text} changes {first} alone; --set {setting} changes all algorithms "
                    f"that have it, --set {others[0]}.{setting} one of the others"
                )

    def refuse_of_study(self, seeds: str | None) -> None:
        """Raise if an option was given that a study does not take.

        Raises
        ------
        ConfigError
            With what to write instead.
        """
        from flower_fedcon.errors import ConfigError

        if seeds is not None:
            raise ConfigError(
                'a study has its seeds in its file: write "run.seed" = [0, 1, 2] below [sweep]'
            )
        given = {
            "--log-to": self.log_to,
            "--log-json": self.log_json,
            "--allow-change": self.allow_change,
            "--checkpoint-every": self.checkpoint_every,
        }
        for name, value in given.items():
            if value:
                raise ConfigError(
                    f"{name} is for single runs, and {self.file} is a study (it has "
                    f"a table [sweep]): leave it out"
                )

    @property
    def tracking(self) -> Tracking:
        """The trackers that follow the runs in addition to their folders."""
        from flower_fedcon.lab.experiments.tracking import Tracking

        return Tracking(tuple(self.log_to or ()), self.log_json)

    def plan(self, experiment: Experiment) -> Plan:
        """Return the plan of the experiment, in the requested folder or a new one."""
        from flower_fedcon.lab.experiments.folders import run_folder

        return experiment.run_options.plan(
            run_dir=run_folder(self.file, self.run_dir, self.resume),
            resume=self.resume,
            checkpoint_every=self.checkpoint_every,
            allow_changes=tuple(self.allow_change or ()),
        )


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's first parameter, a dataclass, by a parameter for each field.

    Typer reads a command's options from its signature; here they come from the dataclass, and the
    command gets one value.

    >>> @spread
    ... def show(arguments: RunArguments, seeds: str = "") -> None:
    ...     print(arguments.file, arguments.rounds, seeds)
    >>> show(file="a.toml", rounds=3, seeds="0,1")
    a.toml 3 0,1
    """
    first, *rest = inspect.signature(command, eval_str=True).parameters.values()
    kind = first.annotation
    hints = get_type_hints(kind, include_extras=True)
    fields = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(kind).parameters.items()
    ]

    @wraps(command)
    def call(**given: Any) -> None:
        value = kind(
            **{field.name: given.pop(field.name) for field in fields if field.name in given}
        )
        command(value, **given)

    parameters = [*fields, *rest]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call
