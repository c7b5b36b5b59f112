"""Further outputs of runs besides their folders: experiment trackers and JSON logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_fedcon.runs.history import Callback
from flower_fedcon.runs.json_log import JsonLog
from flower_fedcon.runs.plan import Plan
from flower_fedcon.runs.toml import parse_toml
from flower_fedcon.runs.trackers import TensorBoard, WeightsAndBiases
from flower_fedcon.validation import choice

TRACKERS = ("tensorboard", "wandb")


@dataclass(frozen=True)
class Tracking:
    """The trackers and logs that follow runs.

    Attributes
    ----------
    trackers : sequence of str
        Names in `TRACKERS`.
    json_log : Path, optional
        A file to which all runs append.
    """

    trackers: Sequence[str] = ()
    json_log: Path | None = None

    def __post_init__(self) -> None:
        for name in self.trackers:
            choice("log-to", name, TRACKERS)

    @contextmanager
    def callbacks(self, label: str, title: str, plan: Plan) -> Iterator[tuple[Callback, ...]]:
        """Yield the callbacks of one run, which are closed after the `with` block.

        Parameters
        ----------
        label : str
            The name of the run.
        title : str
            The name of the experiment, which is the project at Weights & Biases.
        plan : Plan
        """
        folder, opened = Path(plan.run_dir or "."), list[Callback]()
        with ExitStack() as stack:
            if "tensorboard" in self.trackers:
                opened.append(stack.enter_context(TensorBoard(folder / "tensorboard")))
            if "wandb" in self.trackers:
                options: dict[str, Any] = {"config": parse_toml(plan.config or "")}
                folder.mkdir(parents=True, exist_ok=True)
                tracker = WeightsAndBiases(project=title, name=label, dir=str(folder), **options)
                opened.append(stack.enter_context(tracker))
            if self.json_log is not None:
                log, about = JsonLog(self.json_log, label), {"folder": str(folder)}
                rounds, seed = plan.num_rounds, plan.seed
                opened.append(stack.enter_context(log.attached(rounds=rounds, seed=seed, **about)))
            yield tuple(opened)
