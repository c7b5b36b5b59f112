"""Checkpoints: what a run needs to continue as if it had never stopped."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.core.acknowledgements import Versions
from flower_fedcon.core.buffered import Buffered
from flower_fedcon.core.clock import Clock
from flower_fedcon.core.compressing import Remembering
from flower_fedcon.core.engine import Engine
from flower_fedcon.core.infos import ClientInfo
from flower_fedcon.core.method import Method
from flower_fedcon.core.mirror import Mirror
from flower_fedcon.core.protocol import UNIFORM, Setup
from flower_fedcon.core.state_columns import StateColumns
from flower_fedcon.errors import ConfigError, FedConError, nearest
from flower_fedcon.layout import Layout
from flower_fedcon.objectives.set_aside import is_ours
from flower_fedcon.registry import algorithms, client_class
from flower_fedcon.runs import audit_log
from flower_fedcon.runs.directory import own_code_of, versions
from flower_fedcon.validation import Array, parameters
from flower_fedcon.wire import state_files
from flower_fedcon.wire.digests import digest, shown
from flower_fedcon.wire.own_code import PLAIN

_log = logging.getLogger("flwr")
NAME = "checkpoint"
_COMPUTE = ("python", "flower-fedcon", "numpy", "scipy", "numba")  # numbers depend on these
_ESSENTIAL = (
    "algorithm",
    "rivals",
    "model",
    "states",
    "privacy",
    "compression",
)  # without them the states are meaningless
_INPUTS = ("data", "problem", "code", "participation", "clock")
_SINCE = ("train_config",)  # missing in older checkpoints, which are resumed without them
_FORM: dict[str, Any] = {
    "fingerprint": dict, "server": dict, "clients": list | StateColumns | None, "rows": int,
    "seconds": float, "versions": dict,
}  # fmt: skip
_SERVER_FORM: dict[str, Any] = {
    "run_id": str, "incarnation": int, "round": int, "state": tuple, "buffers": list,
    "acknowledged": list | np.ndarray,
    "uplink_bytes": int, "downlink_bytes": int, "counts": dict, "work": dict,
}  # fmt: skip


_STATES, _OTHERS = ("ledgers", "race"), "hooks"  # the states of hooks by name, of others in a dict
_INFOS = "infos"  # what the clients of a run on nodes that does not wait have said of themselves
_OPTIONAL = {"privacy", "compression", "participation", "gaps", "clock", "scales"}
_OPTIONAL |= {_INFOS, *_STATES, _OTHERS}

Fingerprint: TypeAlias = dict[str, dict[str, Any]]
"""Settings that must not change when a run is resumed: name -> digest, and text to show."""


def fingerprint(
    strategy: Method[Any],
    setup: Setup,
    x0: Array,
    engine: Engine,
    clock: Clock | None = None,
    rivals: Sequence[Method[Any]] = (),
) -> Fingerprint:
    """Return what must not change when a run is resumed."""
    entries: dict[str, Any] = {
        "algorithm": strategy.name,
        "seed": setup.seed,
        "clients": setup.names,
        "model": setup.layout.to_json(),
        "x0": x0,
        "states": "with the clients" if engine.clients_keep_states else "in the checkpoint",
        **engine.settings,
    }
    if rivals:
        entries["rivals"] = [method.name for method in rivals]
    if setup.weighting != UNIFORM:
        entries["weighting"] = setup.weighting
    if strategy.uses_num_rounds:
        entries["num_rounds"] = setup.num_rounds
    described = {name: _entry(digest(value), value) for name, value in entries.items()}
    return described_inputs(strategy, clock, engine.digests()) | described


def described_inputs(
    strategy: Method[Any], clock: Clock | None, digests: Mapping[str, list[str]]
) -> Fingerprint:
    """Return the part of a fingerprint that is known without the clients.

    Parameters
    ----------
    strategy : Method
    clock : Clock, optional
    digests : dict
        Of the clients' data, and of D and psi, such as `FederatedProblem.digests` returns.
    """
    entries = strategy.arguments()
    if code := own_code_of(strategy):
        entries["code"] = code
    if clock is not None:
        entries["clock"] = clock
    inputs = {name: _entry(digest(value), value) for name, value in entries.items()}
    return inputs | {name: _entry(each, digest(each)) for name, each in digests.items()}


def changed_inputs(folder: Path, now: Fingerprint, strategy: Method[Any]) -> dict[str, str]:
    """Return what has changed since the run in a folder, by name: a text for each change.

    Parameters
    ----------
    folder : Path
        A run directory. Without a checkpoint nothing is known of its inputs.
    now : dict
        From `described_inputs`. What is in one of both alone is left out.
    strategy : Method
    """
    try:
        then = state_files.read(folder / NAME, {}, "fingerprint")
    except (FileNotFoundError, state_files.DamagedError):
        return {}
    if not isinstance(then, dict) or not all(map(_is_entry, then.values())):
        return {}
    pairs = {name: (then[name], entry) for name, entry in now.items() if name in then}
    names = [str(client) for client in range(len(now.get("data", {}).get("digest", ())))]
    values = strategy.arguments()
    changes = {n: _change(n, *pair, names, values.get(n)) for n, pair in pairs.items()}
    return {name: text for name, text in changes.items() if text}


def shortened(fingerprint: Fingerprint) -> dict[str, str]:
    """Return a digest for each input whose content no text states: for `environment.json`."""
    entries = {name: fingerprint[name] for name in _INPUTS if name in fingerprint}
    return {
        name: found if isinstance(found := entry["digest"], str) else digest(found)
        for name, entry in entries.items()
    }


def _entry(content: str | list[str], value: Any) -> dict[str, Any]:
    return {"digest": content, "text": shown(value)}


def save(folder: Path, content: dict[str, Any]) -> None:
    """Write the checkpoint of a run directory, in one step."""
    state_files.write(folder / NAME, content)


def with_states(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a checkpoint that holds the states of hooks, which are given by name."""
    own = {name: state for name, state in states.items() if name in _STATES}
    others = {name: state for name, state in states.items() if name not in _STATES}
    return own | ({_OTHERS: others} if others else {})


def states_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of hooks in a checkpoint, by name.

    >>> states_in({"rows": 3} | with_states({"race": {"won": 1}, "mine": [2]}))
    {'race': {'won': 1}, 'mine': [2]}
    """
    own = {name: content[name] for name in _STATES if name in content}
    return {**own, **content.get(_OTHERS, {})}


def with_clients(clients: Sequence[ClientInfo]) -> dict[str, Any]:
    """Return the part of a checkpoint from which a later start knows the clients."""
    layouts = [info.layout and info.layout.to_json() for info in clients]
    pairs = zip(clients, layouts, strict=True)
    return {_INFOS: [{**vars(info), "layout": layout} for info, layout in pairs]}


def known_clients(folder: Path) -> list[ClientInfo]:
    """Return the clients of the run in a folder, as its checkpoint knows them; none if it does not.

    What is wrong with a checkpoint `load` says.
    """
    try:
        tables = state_files.read(folder / NAME, {}, _INFOS)
        return [
            ClientInfo(**{**one, "layout": one["layout"] and Layout.from_json(one["layout"])})
            for one in tables
        ]
    except (FileNotFoundError, FedConError, KeyError, TypeError):
        return []


def load(
    folder: Path,
    strategy: Method[Any],
    setup: Setup,
    now: Fingerprint,
    allow_changes: Sequence[str] = (),
    *,
    rivals: Sequence[Method[Any]] = (),
) -> dict[str, Any] | None:
    """Return the checkpoint of a run directory; None if there is none.

    Raises
    ------
    FedConError
        If it is damaged, or belongs to a run with different settings or data. Settings that
        `allow_changes` names may differ.
    """
    path = folder / NAME
    try:
        kinds = [_types(method) for method in (strategy, *rivals)]
        content = state_files.read(path, {n: kind for types in kinds for n, kind in types.items()})
    except FileNotFoundError:
        return None
    except state_files.DamagedError as error:
        # Another method's state, most often: what has changed is said in its own words.
        with suppress(state_files.DamagedError):
            then = state_files.read(path, {}, "fingerprint")
            if isinstance(then, dict) and all(map(_is_entry, then.values())):
                _check_changes(folder, strategy, setup, then, now, allow_changes)
        altered = isinstance(error, state_files.AlteredError)
        other = "" if altered else f" Was it a run of another method than {strategy.title}?"
        raise FedConError(
            f"cannot resume: {error}.{other} Start again in another run directory"
        ) from None
    if not _is_checkpoint(content, setup.num_clients):
        raise FedConError(
            f"cannot resume: {path} is not a checkpoint of {setup.num_clients} clients by this "
            f"version of flower-fedcon: did the run have another number of clients? Start again in "
            f"another run directory"
        )
    steps = isinstance(strategy.participation, Buffered)
    # The numbers of rounds and of waves would meet, and stand for different states.
    kept = () if ("flow" in states_in(content)) == steps else ("participation",)
    then = content["fingerprint"]
    _check_changes(folder, strategy, setup, then, now, allow_changes, essential=kept)
    _tell_versions(content["versions"], versions())
    noted = audit_log.runs_of(folder)
    raced = "race" in states_in(content)  # whose methods have identifiers of their own
    if noted and not raced and content["server"]["run_id"] not in noted:
        raise FedConError(
            f"cannot resume: {path} is of another run than {folder / audit_log.NAME}: put back the "
            f"checkpoint of this folder's own run, or start again in another run directory"
        )
    return dict(content)


def _check_changes(
    folder: Path,
    strategy: Method[Any],
    setup: Setup,
    then: Fingerprint,
    now: Fingerprint,
    allow_changes: Sequence[str],
    *,
    essential: Sequence[str] = (),
) -> None:
    """Raise for the first change that is not allowed, or is `essential`.

    Raises
    ------
    FedConError
    """
    essential = (*_ESSENTIAL, *essential)
    if strategy.privacy is not None:  # its cost follows from how the cohorts were drawn
        essential = (*essential, "participation")
    for name in allow_changes:
        if name not in now and name not in then and not _is_argument(name):
            raise ConfigError(
                f"allow_changes has the unknown name {name!r}: {nearest(name, {*now, *then})}"
            )
    values = strategy.arguments()
    for name in _in_order(then, now):
        if name in _SINCE and name not in then:
            continue
        change = _change(name, then.get(name), now.get(name), setup.names, values.get(name))
        if change and (name in essential or name not in allow_changes):
            allow = "" if name in essential else (
                f"allow this change (allow_changes=[{name!r}], --allow-change {name}), "
            )  # fmt: skip
            raise FedConError(
                f"cannot resume {folder}: {change}. Set it back, {allow}or use another run "
                "directory"
            )


def _in_order(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Return the names of a fingerprint: those first from whose changes others follow."""
    if ("rivals" in then) != ("rivals" in now):
        first = ["rivals"]
    elif "rivals" in now:  # the methods that race depend on who takes part
        first = ["participation", "rivals"]
    else:
        first = ["algorithm"]
    return list(dict.fromkeys([*first, *now, *sorted(then.keys() - now.keys())]))


def _is_argument(name: str) -> bool:
    """Return whether any algorithm has an argument of that name."""
    return any(name in parameters(kind) for kind in algorithms().values())


def _tell_versions(then: dict[str, Any], now: dict[str, str]) -> None:
    """Warn if software versions differ: results may not be the same to the byte."""
    changed = [name for name in _COMPUTE if then.get(name) != now[name]]
    if changed:
        texts = [f"{name} {then.get(name, 'unknown')}, now {now[name]}" for name in changed]
        _log.warning(
            "the checkpoint was written with %s: numbers may differ by rounding from here on",
            "; ".join(texts),
        )


def _is_checkpoint(content: Any, num_clients: int) -> bool:
    """Return whether a tree has the form of `save`'s argument."""
    forms = (content, _FORM), (content and content.get("server"), _SERVER_FORM)
    for table, form in forms:
        if not isinstance(table, dict) or table.keys() - _OPTIONAL != form.keys():
            return False
        if not all(isinstance(table[name], kind) for name, kind in form.items()):
            return False
    server, clients = content["server"], content["clients"]
    numbers = [content["rows"], server["round"], server["incarnation"]]
    columnar = isinstance(clients, StateColumns)
    return (
        _are_rounds(server["acknowledged"], num_clients)
        and (clients is None or len(clients) == num_clients)
        and all(map(_is_round, numbers))
        and (columnar or all(isinstance(client, Versions) for client in clients or ()))
        and _is_spent(server.get("privacy"))
        and all(isinstance(content.get(name, {}), dict) for name in ("ledgers", _OTHERS))
        and isinstance(server.get("compression"), Mirror | None)
        and _are_gaps(server.get("gaps"), num_clients)
        and _is_time(server.get("clock"))
        and _are_scales(server.get("scales"), num_clients)
        and all(map(_is_entry, content["fingerprint"].values()))
        and all(isinstance(version, str) for version in content["versions"].values())
    )


def _are_rounds(found: Any, num_clients: int) -> bool:
    """Return whether this has a round for each client; in older files it is a list."""
    if isinstance(found, list):
        return len(found) == num_clients and all(map(_is_round, found))
    return found.dtype == np.int64 and found.shape == (num_clients,) and bool((found >= 0).all())


def _is_round(number: Any) -> bool:
    return type(number) is int and 0 <= number < 2**63


def _is_spent(found: Any) -> bool:
    """Return whether this is a private run's spending, or None."""
    if found is None:
        return True
    more = {"released", "asked"}
    fits = isinstance(found, dict) and found.keys() - more == {"spent", "clip"}
    return fits and type(found["spent"]) is int and found["spent"] >= 0 and found["clip"] > 0


def _are_gaps(found: Any, num_clients: int) -> bool:
    """Return whether these are clients' gaps, or None."""
    if found is None:
        return True
    fits = isinstance(found, np.ndarray) and found.dtype == np.int64
    return fits and found.shape == (3, num_clients) and bool((found >= 0).all())


def _is_time(found: Any) -> bool:
    """Return whether this is the reading of a simulated clock, or None."""
    if found is None:
        return True
    fits = isinstance(found, dict) and found.keys() - {"gradients"} == {"seconds", "sizes"}
    return (
        fits
        and isinstance(found.get("gradients", []), list)
        and found["seconds"] >= 0
        and all(map(_is_round, found["sizes"]))
    )


def _are_scales(found: Any, num_clients: int) -> bool:
    """Return whether these are scales from clients' gradients, or None."""
    if found is None:
        return True
    if not isinstance(found, list) or len(found) != 2 or not isinstance(found[0], list):
        return False
    numbers = [*found[0], found[1]]
    return len(found[0]) in (0, num_clients) and all(
        isinstance(value, float) and value >= 0 for value in numbers
    )


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {"digest", "text"}:
        return False
    content = entry["digest"]
    texts = [entry["text"], *(content if isinstance(content, list) else [content])]
    return all(isinstance(text, str) for text in texts)


def _change(
    name: str,
    then: dict[str, Any] | None,
    now: dict[str, Any] | None,
    clients: Sequence[str],
    value: Any,
) -> str:
    """Return a text of what has changed, or ""; `value` is the argument that it is of, if any."""
    if name == "rivals" and (then is None) != (now is None):
        before, after = ("one method" if one is None else "a race" for one in (then, now))
        return f'strategy was {before}, is {after} ("auto" is a race of methods)'
    if then is None or now is None:
        before, after = ("not set" if one is None else one["text"] for one in (then, now))
        return f"{name} was {before}, is {after}"
    before, after = then["digest"], now["digest"]
    if before == after:
        return ""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        if len(after) == 1:
            return f"{name} has changed"
        other = [j for j, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) > 1]
        return (
            f"{name} has changed: that of {len(other)} of {len(after)} clients differs, the first "
            f"is client {clients[other[0]]}"
        )
    if name == "code":
        return "the algorithm's code has changed"
    if then["text"] != now["text"]:
        return f"{name} was {then['text']}, is {now['text']}"
    change = f"{name} is {now['text']} as before, but its content has changed"
    if _is_ours_alone(value):
        return change
    return f"{change} (an attribute resume_key of your own object can state what of it matters)"


def _is_ours_alone(value: Any) -> bool:
    """Return whether an object, with all that it holds, is of classes of this package."""
    if type(value) in PLAIN or isinstance(value, np.ndarray | np.generic):
        return True
    if isinstance(value, Mapping):
        return all(map(_is_ours_alone, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_ours_alone, value))
    held = getattr(value, "__dict__", {})
    return is_ours(type(value)) and all(map(_is_ours_alone, held.values()))


def _types(strategy: Method[Any]) -> dict[str, type[Any]]:
    """Return the named tuples in an algorithm's modules: its states consist of them."""
    types: dict[str, type[Any]] = {"Versions": Versions, "Mirror": Mirror}
    types |= {"Remembering": Remembering, "StateColumns": StateColumns}
    for kind in (*type(strategy).__mro__, *client_class(strategy.name).__mro__):
        for name, value in vars(sys.modules[kind.__module__]).items():
            if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
                types[name] = value
    return types
