"""Parts of algorithms by name: server optimizers, schedules, compressors, regularizers, sets."""

from __future__ import annotations

from typing import Any


def parts() -> dict[str, type[Any]]:
    """Return server optimizers, schedules, compressors, regularizers and sets, by name.

    >>> list(parts())[:18]
    ['Adagrad', 'Adam', 'Momentum', 'Yogi', 'AdaPGM', 'Constant', 'Cosine', 'DeltaSGD', 'Inverse', \
'InverseSqrt', 'StepDecay', 'EF21', 'Identity', 'Natural', 'QSGD', 'RandK', 'Sign', 'TopK']
    """
    from flower_fedcon import compressors, optimizers, regularizers, schedules, sets

    by_name: dict[str, type[Any]] = {}
    for module, kinds in (
        (optimizers, (optimizers.ServerOptimizer,)),
        (schedules, (schedules.Schedule, schedules.OwnRate)),
        (compressors, (compressors.Compressor, compressors.EF21)),
        (regularizers, (regularizers.Regularizer,)),
        (sets, (sets.ConstraintSet,)),
    ):
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if isinstance(value, type) and issubclass(value, kinds):
                by_name[name] = value
    bases = "ServerOptimizer", "Schedule", "OwnRate", "Compressor", "Regularizer", "ConstraintSet"
    return {name: part for name, part in by_name.items() if name not in bases}


def takers(part: type[Any]) -> dict[str, list[str]]:
    """Return the algorithms that take a part, under the argument that takes it.

    For a compressor: the algorithms whose argument takes any compressor; their cards say which, and
    in which form. For a regularizer or a set: None, since only the card says which of them a method
    takes.

    >>> from flower_fedcon.optimizers import Adam
    >>> from flower_fedcon.schedules import Cosine
    >>> takers(Adam), takers(Cosine)["client_lr"][:3]
    ({'server_optimizer': ['FedAvg', 'FedVARP', 'Scaffold']}, ['FedAvg', 'FedMiD', 'FedDualAvg'])
    """
    from flower_fedcon.compressors import EF21
    from flower_fedcon.registry import algorithms
    from flower_fedcon.regularizers import Regularizer
    from flower_fedcon.server.optimizers import ServerOptimizer
    from flower_fedcon.server.own_rates import OwnRate
    from flower_fedcon.server.schedules import Schedule
    from flower_fedcon.sets import ConstraintSet
    from flower_fedcon.validation import parameters

    by_argument: dict[str, list[str]] = {}
    for kind in algorithms().values():
        arguments = parameters(kind)
        stepping: Any = kind if "server_optimizer" in arguments else None
        names: list[str] = []
        if issubclass(part, ServerOptimizer):
            if stepping and not stepping.needs_server_lr:
                names = [] if part.entrywise and stepping.needs_one_length else ["server_optimizer"]
        elif issubclass(part, Schedule):
            names = ["client_lr"] if "client_lr" in arguments and not kind.needs_constant_lr else []
        elif issubclass(part, OwnRate):
            names = ["client_lr"] if "client_lr" in arguments and not kind.needs_common_lr else []
        elif issubclass(part, Regularizer | ConstraintSet):
            names = []
        else:
            names = [] if kind.needs_uncompressed else ["compression"]
            names += [n for n in arguments if n.endswith("compressor") and part is not EF21]
        for name in names:
            by_argument.setdefault(name, []).append(kind.__name__)
    return by_argument
