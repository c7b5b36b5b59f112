"""Callbacks that send each record to an experiment tracker, with the tracker's client."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from flower_fedcon.errors import needing
from flower_fedcon.runs.history import Record
from flower_fedcon.wire.whole_files import storage


class _Tracker(ABC):
    """A tracker that is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Send everything that is pending."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TensorBoard(_Tracker):
    """Writes each column of the history as a scalar, by round (extra ``tensorboard``).

    Parameters
    ----------
    folder : path
        The folder of the event files: `tensorboard --logdir FOLDER` shows them.

    Raises
    ------
    ConfigError
        If tensorboardX is not installed.
    StorageError
        If the folder cannot be written.

    Examples
    --------
    ::

        with TensorBoard("runs/first/tensorboard") as board:
            simulate(strategy, problem, num_rounds=100, callbacks=[board])
    """

    def __init__(self, folder: str | Path) -> None:
        client = _client("tensorboardX", "tensorboard")
        with storage(f"write {folder}"):
            self._writer = client.SummaryWriter(logdir=str(folder))

    def __call__(self, record: Record) -> None:
        """Write a record."""
        for name, value in record.items():
            if name != "round" and math.isfinite(value):
                self._writer.add_scalar(name, value, global_step=int(record["round"]))
        self._writer.flush()

    def close(self) -> None:
        """Finish the files."""
        self._writer.close()


class WeightsAndBiases(_Tracker):
    """Sends each record to a run of Weights & Biases (extra ``wandb``).

    Parameters
    ----------
    **options
        Options of `wandb.init`: project, name, config, dir, mode ("offline" keeps everything on
        this machine), ...

    Raises
    ------
    ConfigError
        If wandb is not installed.

    Examples
    --------
    ::

        with WeightsAndBiases(project="lasso", mode="offline") as tracker:
            simulate(strategy, problem, num_rounds=100, callbacks=[tracker])
    """

    def __init__(self, **options: Any) -> None:
        self._run = _client("wandb", "wandb").init(**options)

    def __call__(self, record: Record) -> None:
        """Send a record."""
        values = {name: value for name, value in record.items() if name != "round"}
        self._run.log(values, step=int(record["round"]))

    def close(self) -> None:
        """End the run there."""
        self._run.finish()


def _client(package: str, extra: str) -> Any:
    with needing(f"records are sent by {package}", extra):
        return import_module(package)
