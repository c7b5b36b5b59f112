"""Rows of arrays or of a pooled table divided among clients, by the rules of flwr-datasets.

Rules, keys and seeds are those of its partitioners: the same seed gives each client the same rows.
flwr-datasets need not be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.validation import Array, choice, count, positive

_TRIES = 11  # draws of Dirichlet shares
_MODES = ("random", "first-deterministic", "deterministic")
_KEYS = {  # of each rule, besides "by"; those with a star are required
    "iid": ("clients*",),
    "dirichlet": ("clients*", "alpha*", "seed", "min_rows", "balanced"),
    "shards": ("clients*", "shards", "shard_rows", "keep_rest", "seed"),
    "classes": ("clients*", "classes*", "mode", "seed"),
    "sizes": ("sizes*",),
    "linear": ("clients*",),
    "square": ("clients*",),
    "exponential": ("clients*",),
    "natural": ("column*",),
}

BY_CLASS = ("dirichlet", "shards", "classes")
"""The rules that use the classes of rows."""


def partition(
    labels: Sequence[Any] | Array, rule: Mapping[str, Any], column: Any = None
) -> dict[str, Array]:
    """Return the rows of each client, in ascending order, by its name.

    Parameters
    ----------
    labels : sequence of m numbers or texts
        Each row's class, for the rules that use classes; for others only m matters.
    rule : dict
        ``{"by": ...}`` with the rule and its keys; clients >= 1 is the number of clients:

        - "iid": clients; the rows in their order, in pieces of (almost) one size.
        - "dirichlet": clients; alpha > 0, a number or one for each client: the shares of each class
          are drawn from Dirichlet(alpha), more unequal for smaller alpha; min_rows = 10, the least
          number of rows of a client (else all is drawn again, up to ten times); balanced = false;
          with true a client with more than m / clients rows gets no further classes; seed = 42.
        - "shards": clients; rows sorted by class and cut into pieces, of which each client gets
          `shards` at random; or pieces of shard_rows rows, divided as evenly as possible; or both.
          keep_rest = false says whether a last piece with fewer rows counts; seed = 42.
        - "classes": clients; each gets `classes` different ones, whose rows are shared evenly among
          the clients that have them; mode = "random", "deterministic" (client j has j, j + 1, ...)
          or "first-deterministic"; seed = 42. Rows of classes without a client are left out.
        - "sizes": sizes, a list; rows in their order. Remaining rows are left out.
        - "linear", "square", "exponential": clients; rows in their order, a share in proportion to
          j, j^2 or exp(j) for client j = 1, 2, ...; the last client also gets the rest from
          rounding.
        - "natural": column, the name of the column that states the client of each row.
    column : sequence of m values, optional
        That column, for "natural"; its values are the clients' names.

    Raises
    ------
    ConfigError
        If a rule or key is unknown or missing, a value out of range, or a client would hold no row.

    Examples
    --------
    >>> labels = np.arange(12) % 3
    >>> partition(labels, {"by": "shards", "clients": 3, "shards": 1, "seed": 0})["0"]
    array([ 2,  5,  8, 11])
    >>> [len(rows) for rows in partition(labels, {"by": "linear", "clients": 3}).values()]
    [2, 4, 6]
    >>> partition(labels, {"by": "natural", "column": "site"}, list("abba") * 3)["b"]
    array([ 1,  2,  5,  6,  9, 10])
    """
    by, marks = checked_rule(rule), np.asarray(labels)
    if marks.ndim != 1 or not len(marks):
        raise ConfigError(f"partition: labels must be a list of m >= 1 rows, got {marks.shape}")
    if by == "natural":
        if column is None:
            raise ConfigError(
                'partition by "natural" needs column, which states the client of each row'
            )
        owners = np.asarray(column).astype(str)
        if owners.shape != marks.shape:
            raise ConfigError(
                f"partition: the column has shape {owners.shape}, for {len(marks)} rows"
            )
        return {name: np.flatnonzero(owners == name) for name in _by_appearance(owners).tolist()}
    given = {key: value for key, value in rule.items() if key != "by"}
    parts = _DEALERS[by](marks, **given)
    for j, rows in enumerate(parts):
        if not len(rows):
            raise ConfigError(
                f"partition by {by!r} leaves client {j} none of the {len(marks)} rows: take fewer "
                f"clients"
            )
    return {str(j): np.sort(np.asarray(rows, np.intp)) for j, rows in enumerate(parts)}


def checked_rule(rule: Mapping[str, Any]) -> str:
    """Return the name of a rule after a check of its keys.

    Raises
    ------
    ConfigError
    """
    if not isinstance(rule, Mapping) or rule.get("by") not in _KEYS:
        by = rule.get("by") if isinstance(rule, Mapping) else rule
        raise ConfigError(f"partition: unknown rule by = {by!r}: {nearest(str(by), _KEYS)}")
    by = str(rule["by"])
    valid = [key.rstrip("*") for key in _KEYS[by]]
    for key in rule:
        if key not in ("by", *valid):
            raise ConfigError(f"partition by {by!r}: unknown key {key!r}: {nearest(key, valid)}")
    for key in _KEYS[by]:
        if key.endswith("*") and key[:-1] not in rule:
            raise ConfigError(f"partition by {by!r} needs {key[:-1]}: write {key[:-1]} = ...")
    if by == "shards" and not {"shards", "shard_rows"} & rule.keys():
        raise ConfigError("partition by 'shards' needs shards, or shard_rows: write shards = 2")
    return by


def counts_by_label(outcomes: Sequence[Array], edges: Array, labels: Sequence[str]) -> Array:
    """Return the number of each client's outcomes between the edges, (clients, labels)."""
    places = [np.searchsorted(edges, outcome, side="right") for outcome in outcomes]
    return np.stack([np.bincount(p, minlength=len(labels)) for p in places])


# --- the rules ------------------------------------------------------------------------------------


def _clients(clients: Any, rows: int) -> int:
    if count("partition: clients", clients) > rows:
        raise ConfigError(f"partition: {clients} clients cannot share {rows} rows: take fewer")
    return int(clients)


def _rng(seed: Any) -> np.random.Generator:
    return np.random.default_rng(count("partition: seed", seed, minimum=0))


def _by_appearance(values: Array) -> Array:
    distinct, first = np.unique(values, return_index=True)
    ordered: Array = distinct[np.argsort(first)]
    return ordered


def _iid(labels: Array, *, clients: int) -> list[Array]:
    return np.array_split(np.arange(len(labels)), _clients(clients, len(labels)))


def _dirichlet(
    labels: Array,
    *,
    clients: int,
    alpha: Any,
    seed: int = 42,
    min_rows: int = 10,
    balanced: bool = False,
) -> list[Array]:
    n, rng = _clients(clients, len(labels)), _rng(seed)
    least = count("partition: min_rows", min_rows, minimum=0)
    if isinstance(alpha, list | tuple | np.ndarray):
        each = np.array([positive("partition: alpha", one) for one in np.ravel(alpha)])
        if len(each) != n:
            raise ConfigError(f"partition: alpha has {len(each)} numbers, for {n} clients")
    else:
        each = np.full(n, positive("partition: alpha", alpha))
    if not isinstance(balanced, bool):
        raise ConfigError(f"partition: balanced must be true or false, got {balanced!r}")
    average, fewest = len(labels) / n, 0
    rows_of = [np.flatnonzero(labels == label) for label in _by_appearance(labels)]
    for _ in range(_TRIES):
        sizes, parts = np.zeros(n, np.intp), []
        for rows in rows_of:
            shares = rng.dirichlet(each)
            if balanced:
                shares = np.where(sizes > average, 0.0, shares)
                shares = shares / sum(shares.tolist())  # in this order, which determines rounding
            ends = (np.cumsum(shares) * len(rows)).astype(int)[:-1]
            parts.append(np.split(rows, ends))
            sizes += [len(piece) for piece in parts[-1]]
        fewest = int(sizes.min())
        if fewest >= least:
            return [np.concatenate([pieces[j] for pieces in parts]) for j in range(n)]
    raise ConfigError(
        f"partition by 'dirichlet': in each of {_TRIES} draws a client had fewer than min_rows = "
        f"{least} rows, in the last {fewest}: take a larger alpha, fewer clients, or a smaller "
        f"min_rows"
    )


def _shards(
    labels: Array,
    *,
    clients: int,
    shards: int | None = None,
    shard_rows: int | None = None,
    keep_rest: bool = False,
    seed: int = 42,
) -> list[Array]:
    n, rng, m = _clients(clients, len(labels)), _rng(seed), len(labels)
    if not isinstance(keep_rest, bool):
        raise ConfigError(f"partition: keep_rest must be true or false, got {keep_rest!r}")
    if shards is not None:
        each = np.full(n, count("partition: shards", shards))
        pieces = n * shards
        size = m // pieces if shard_rows is None else count("partition: shard_rows", shard_rows)
        rest = keep_rest and shard_rows is None
        if size * pieces > m or not size:
            raise ConfigError(
                f"partition by 'shards': {n} clients with {shards} shards of {max(size, 1)} rows "
                f"need {max(size, 1) * pieces} rows, and there are {m}: take fewer clients or "
                f"shards"
            )
    else:
        size, rest = count("partition: shard_rows", shard_rows), keep_rest
        pieces = -(-m // size) if rest else m // size
        each = np.full(n, pieces // n)
        each[: pieces % n] += 1
    usable = -(-m // size) if rest else m // size
    order = np.argsort(labels, kind="stable")
    chosen = np.split(rng.permutation(usable)[:pieces], np.cumsum(each))[:-1]
    none = np.empty(0, np.intp)
    return [
        np.concatenate([none, *(order[k * size : (k + 1) * size] for k in mine)]) for mine in chosen
    ]


def _classes(
    labels: Array, *, clients: int, classes: int, mode: str = "random", seed: int = 42
) -> list[Array]:
    n, rng = _clients(clients, len(labels)), _rng(seed)
    distinct = np.unique(labels)
    k = count("partition: classes", classes)
    choice("partition: mode", mode, _MODES)
    if k > len(distinct):
        raise ConfigError(f"partition: classes must be at most {len(distinct)}, got {k}")
    places: list[list[int]] = []  # for each client, places among the known classes
    for j in range(n):
        if mode == "deterministic":
            mine = [(j + i) % len(distinct) for i in range(k)]
        elif mode == "random":
            mine = rng.choice(len(distinct), size=k, replace=False).tolist()
        else:
            mine = [j % len(distinct)]
            while len(mine) < k:
                one = int(rng.choice(len(distinct), size=1)[0])
                mine += [] if one in mine else [one]
        places.append(mine)
    parts: list[list[Array]] = [[] for _ in range(n)]
    for place, label in enumerate(distinct.tolist()):
        holders, rows = [j for j in range(n) if place in places[j]], np.flatnonzero(labels == label)
        if len(holders) > len(rows):
            raise ConfigError(
                f"partition by 'classes': {len(holders)} clients would share the {len(rows)} rows "
                f'of class {label!r}: take fewer clients or classes, or mode = "deterministic"'
            )
        for j, piece in zip(holders, np.array_split(rows, max(1, len(holders))), strict=False):
            parts[j].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


def _sizes(labels: Array, *, sizes: Sequence[int]) -> list[Array]:
    if not isinstance(sizes, list | tuple | np.ndarray) or not len(sizes):
        raise ConfigError(f"partition: sizes must be a list of numbers of rows, got {sizes!r}")
    ends = np.cumsum([count("partition: sizes", int(one)) for one in sizes])
    if ends[-1] > len(labels):
        raise ConfigError(
            f"partition: sizes must add up to at most {len(labels)}, the number of "
            f"rows, got {ends[-1]}"
        )
    return np.split(np.arange(ends[-1]), ends[:-1])


def _growing(units: Callable[[Array], Array]) -> Callable[..., list[Array]]:
    """Return the rule that gives client j = 1, 2, ... units(j) parts of all rows."""

    def deal(labels: Array, *, clients: int) -> list[Array]:
        n = _clients(clients, len(labels))
        parts = units(np.linspace(1, n, n))
        sizes = np.array(parts / parts.sum() * len(labels), dtype=np.int64)
        sizes[-1] += len(labels) - sizes.sum()
        return np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])

    return deal


_DEALERS: dict[str, Callable[..., list[Array]]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "shards": _shards,
    "classes": _classes,
    "sizes": _sizes,
    "linear": _growing(lambda j: j),
    "square": _growing(np.square),
    "exponential": _growing(np.exp),
}
