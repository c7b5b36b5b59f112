"""A model in a Flower app: arrays by name, some of which are not trained.

This module also adds to a method's messages what clients with their own train loops need: the
arrays that are not trained, the configuration for the train function, and its metrics.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from flower_fedcon.core.attachment import Attachment
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import UNIFORM, ClientInfo, Setup
from flower_fedcon.core.start import check_weighting, common_layout, start_point
from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array

BATCH_NORM = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Names that are buffers without a declaration; so is every array of whole numbers."""
FORM = "form"
_BUFFER, _USER, _METRIC, _NOTE = "buffer.", "user.", "metric.", "note."
_FLOATS = ("float64", "float32")


@dataclass(frozen=True)
class ModelForm:
    """The arrays of a model.

    Parameters
    ----------
    names : tuple of str
        The names of all arrays, in their order.
    buffers : tuple of str
        The names of arrays that no method optimises; their mean over the cohort is taken.

    Examples
    --------
    >>> form = ModelForm(("weight", "count", "bias"), ("count",))
    >>> form.split({"weight": np.ones(2), "count": np.array(3), "bias": np.zeros(1)})
    ([array([1., 1.]), array([0.])], [array(3)])
    """

    names: tuple[str, ...]
    buffers: tuple[str, ...] = ()

    @classmethod
    def of(cls, arrays: Mapping[str, Array], declared: Sequence[str] | None) -> ModelForm:
        """Return the form of a model's arrays; `declared` are patterns of its buffers' names.

        Raises
        ------
        ConfigError
            If a pattern matches nothing, or a trained array is not float32 or float64, is empty, or
            has an entry that is not finite.
        """
        names = tuple(arrays)
        vain = [pattern for pattern in declared or () if not fnmatch.filter(names, pattern)]
        if vain:
            fit = "fits" if len(vain) == 1 else "fit"
            raise ConfigError(
                f"buffers: {', '.join(map(repr, vain))} {fit} none of initial_arrays: "
                f"{', '.join(names)}"
            )
        patterns = (*BATCH_NORM, *(declared or ()))
        buffers = tuple(
            name
            for name, array in arrays.items()
            if array.dtype.kind in "iub" or any(fnmatch.fnmatchcase(name, p) for p in patterns)
        )
        foreign = [name for name, array in arrays.items() if array.dtype.kind not in "iubf"]
        if foreign:
            raise ConfigError(
                f"initial_arrays[{foreign[0]!r}] is {arrays[foreign[0]].dtype}, and models must "
                f"have real numbers: keep it out of the state_dict (register_buffer(..., "
                f"persistent=False)), or store its real and imaginary parts as two arrays"
            )
        others = {n: why for n, a in arrays.items() if n not in buffers and (why := _untrained(a))}
        if others:
            faults = ", ".join(f"initial_arrays[{n!r}] {why}" for n, why in others.items())
            raise ConfigError(
                f"{faults}, and methods work on finite numbers, float32 and float64: convert what "
                f"is trained, and declare what is not: start(buffers={[*others]!r})"
            )
        if len(buffers) == len(names):
            raise ConfigError(
                "initial_arrays has only buffers, so there is nothing to train: "
                "leave trained arrays out of buffers"
            )
        return cls(names, buffers)

    @property
    def layer_names(self) -> tuple[str, ...] | None:
        """The names of the trained arrays; None if they only have numbers."""
        return None if all(name.isdigit() for name in self.names) else self.trained

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the trained arrays."""
        return tuple(name for name in self.names if name not in self.buffers)

    def join(self, layers: Sequence[Array], buffers: Sequence[Array]) -> dict[str, Array]:
        """Return all arrays by name, in their order."""
        arrays = dict(zip(self.trained, layers, strict=True))
        arrays |= zip(self.buffers, buffers, strict=True)
        return {name: arrays[name] for name in self.names}

    def split(self, arrays: Mapping[str, Array]) -> tuple[list[Array], list[Array]]:
        """Return the trained layers, and the buffers."""
        return [arrays[n] for n in self.trained], [arrays[n] for n in self.buffers]

    def to_json(self) -> str:
        """Return the form as text, for the wire."""
        return json.dumps([self.names, self.buffers])

    @classmethod
    def from_json(cls, text: str) -> ModelForm:
        """Return the form written by `to_json`."""
        names, buffers = json.loads(text)
        return cls(tuple(map(str, names)), tuple(map(str, buffers)))


class AgreedStart(NamedTuple):
    """The start that server and clients agree on."""

    form: ModelForm | None
    """The arrays of the model, if they have names."""
    setup: Setup
    x0: Array
    """The packed start."""
    buffers: list[Array]
    loops: bool
    """Whether clients have their own train loops."""


def agree_on_start(
    strategy: Method[Any],
    infos: Sequence[ClientInfo],
    given: Any,
    *,
    name: str,
    num_rounds: int,
    seed: int,
    declared: Sequence[str] | None = None,
    weighting: str = UNIFORM,
    preparation: Attachment | None = None,
) -> AgreedStart:
    """Return the start of a run on these nodes.

    Parameters
    ----------
    strategy : Method
    infos : sequence of ClientInfo
        The descriptions of the nodes' clients.
    given : dict of arrays by name, list of arrays, array or None
        x0.
    name : str
        The name of the argument that gives x0.
    num_rounds, seed, weighting, preparation
        As in `Setup`.
    declared : sequence of str, optional
        Patterns of the buffers' names.

    Raises
    ------
    ConfigError
        If the clients do not fit together, or do not fit the strategy or x0.
    """
    loops, layouts = any(info.own_loop for info in infos), [info.layout for info in infos]
    if given is None and loops:
        raise ConfigError(
            f"clients with their own train loop do not describe their model: give {name}, for "
            f"example ArrayRecord(model.state_dict()) as start(initial_arrays=...)"
        )
    form, buffers = None, list[Array]()
    if loops and not isinstance(given, Mapping):  # they need a form: with numbers as names
        given = dict(enumerate(given if isinstance(given, list) else [given]))
    if isinstance(given, Mapping):
        arrays = {str(key): np.asarray(array) for key, array in given.items()}
        form = ModelForm.of(arrays, declared)
        given, buffers = form.split(arrays)
    layered = loops or any(layout and layout.layered for layout in layouts)
    if isinstance(given, list) and len(given) == 1 and not layered:
        given = given[0]
    layout = common_layout(layouts, [info.name for info in infos], given)
    if form is not None and layout.layered:
        layout = replace(layout, names=form.layer_names)
    x0 = start_point(layout, given, strategy.constraint)
    setup = Setup.of(
        infos, num_rounds, layout, strategy.participation, seed, weighting, preparation
    )
    check_weighting(strategy, setup)
    return AgreedStart(form, setup, x0, buffers, loops)


class Extras(NamedTuple):
    """What is sent in addition to a method's arrays and numbers."""

    buffers: list[Any]
    user: dict[str, Any]
    """The configuration of a train function."""
    metrics: dict[str, float]
    """The metrics of a train function."""
    notes: Mapping[str, str] = MappingProxyType({})
    """What a server should log about a train function, by kind."""


def attach(
    arrays: Sequence[Array], config: Mapping[str, Any], extras: Extras
) -> tuple[list[Array], dict[str, Any]]:
    """Return a message's arrays and configuration, with the extras."""
    names = str(config["names"]).split(",") if config["names"] else []
    names += [f"{_BUFFER}{i}" for i in range(len(extras.buffers))]
    beside = {_USER + k: v for k, v in extras.user.items()}
    beside |= {_METRIC + k: v for k, v in extras.metrics.items()}
    beside |= {_NOTE + k: v for k, v in extras.notes.items()}
    return [*arrays, *extras.buffers], {**config, **beside, "names": ",".join(names)}


def detach(
    arrays: Sequence[Any], config: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], Extras]:
    """Undo `attach`, for arrays or their bytes: the extras are at the end."""
    names = str(config.get("names", "")).split(",")
    count = sum(name.startswith(_BUFFER) for name in names)
    kept = len(names) - count
    settings = {k: v for k, v in config.items() if not k.startswith((_USER, _METRIC, _NOTE))}
    if "names" in settings:
        settings["names"] = ",".join(names[:kept])

    def starting(prefix: str) -> dict[str, Any]:
        return {k.removeprefix(prefix): v for k, v in config.items() if k.startswith(prefix)}

    split = len(arrays) - count
    beside = starting(_USER), starting(_METRIC), starting(_NOTE)
    extras = Extras(list(arrays[split:]), *beside)
    return list(arrays[:split]), settings, extras


def flat_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with each number of a list as a separate metric, for averaging.

    >>> flat_metrics({"loss": 0.5, "recall": [0.1, 0.9]})
    {'loss': 0.5, 'recall[0]': 0.1, 'recall[1]': 0.9}
    """
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, list | tuple):
            flat |= {f"{name}[{i}]": one for i, one in enumerate(value)}
        else:
            flat[name] = value
    return flat


def _untrained(array: Array) -> str:
    """Return why no method can train an array, or None."""
    if array.dtype.name not in _FLOATS:
        return f"is {array.dtype}"
    if not array.size:
        return "has no entry"
    return "" if np.isfinite(array).all() else "holds values that are not finite"


def mean_buffers(cohort: Sequence[Sequence[Array]], weights: Sequence[float]) -> list[Array]:
    """Return the means of clients' buffers, in their own types; whole numbers are rounded.

    A value that all clients share is kept exactly, even infinity or a number above 2^53.

    >>> mean_buffers([[np.array(2), np.ones(1)], [np.array(5), np.zeros(1)]], [1.0, 1.0])
    [array(4), array([0.5])]
    """
    means = []
    for column in zip(*cohort, strict=True):
        first, stack = column[0], np.stack(column)
        mean = np.average(stack.astype(np.float64), axis=0, weights=weights)
        whole = first.dtype.kind in "iub"
        rounded = np.asarray(np.rint(mean) if whole else mean).astype(first.dtype)
        means.append(np.where((stack == first).all(axis=0), first, rounded))
    return means
