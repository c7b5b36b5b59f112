"""The objectives of many clients of one kind and size, with their data in one array."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self, overload

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives.base import Scaled
from flower_fedcon.objectives.rows import LinearModel, is_sparse
from flower_fedcon.validation import Array, plain_array

_AT_ONCE = 2**20  # entries of the data whose constants are computed together
_EACH = ("sample_weight", "intercept")  # settings that belong to each client's data


class ManyClients(Sequence[Any]):
    """Objectives f_j = kind(A[j], targets[j], **settings) of any number of clients.

    A `FederatedProblem` takes it instead of a list of objects. A client's objective is made when it
    is needed, without a copy of its data. The arrays may lie in a file: ``np.load("A.npy",
    mmap_mode="r")``.

    Parameters
    ----------
    kind : type
        A `LinearModel` with one loss a row: `LeastSquares`, `LogisticRegression`,
        `HuberRegression`, `PoissonRegression`, `SoftmaxRegression`, or one of your own.
    A : array, shape (N, m, *row shape)
        m rows of each client; float64, or float32 to work in single precision. A C-ordered,
        read-only array is not copied: a file, or one with ``A.flags.writeable = False``.
    targets : array, shape (N, m), or (N, m, outputs) for several outputs of `LeastSquares`
        The second argument of `kind`.
    **settings
        Settings shared by all clients, such as `l2`; not `intercept` or `sample_weight`.

    Raises
    ------
    ConfigError
        If the shapes do not fit, or `kind` refuses the data.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem
    >>> from flower_fedcon.objectives import LeastSquares, ManyClients
    >>> rng = np.random.default_rng(0)
    >>> A, b = rng.standard_normal((1000, 5, 3)), rng.standard_normal((1000, 5))
    >>> clients = ManyClients(LeastSquares, A, b)
    >>> clients, clients[-1].num_examples
    (ManyClients(LeastSquares: 1000 clients, 5 rows each), 5)
    >>> bool(np.isclose(FederatedProblem(clients).objective(np.zeros(3)), np.mean(b**2) / 2))
    True
    """

    def __init__(
        self, kind: Callable[..., LinearModel], A: Any, targets: Any, **settings: Any
    ) -> None:
        linear = isinstance(kind, type) and issubclass(kind, LinearModel)
        if not linear or kind.slope is LinearModel.slope:  # type: ignore[attr-defined]
            raise _no_loss(kind)
        for name in _EACH:
            if name in settings:
                remedy = {
                    "sample_weight": "weights=... of the problem are the clients'",
                    "intercept": "append a column of ones to A, and see regularizers.WithIntercept",
                }[name]
                raise ConfigError(f"ManyClients takes no {name}: {remedy}")
        if is_sparse(A):
            raise ConfigError("ManyClients(A) must be a dense array: give a list of objectives")
        try:
            A = plain_array("ManyClients(A)", A)
            targets = plain_array("ManyClients(targets)", targets)
        except ConfigError as error:
            raise ConfigError(f"{error}: give a list of objectives where rows differ") from None
        if A.ndim < 3 or 0 in A.shape:
            raise ConfigError(
                "ManyClients(A) must have shape (clients, rows, *row shape), all >= 1, got "
                f"{A.shape}"
            )
        if targets.shape[:2] != A.shape[:2]:
            raise ConfigError(
                f"ManyClients(targets) must have A's shape {A.shape[:2]}, got {targets.shape}"
            )
        # One objective of all rows checks the data; each client's objective is a part of it.
        try:
            everything = kind(
                A.reshape(-1, *A.shape[2:]), targets.reshape(-1, *targets.shape[2:]), **settings
            )
        except ConfigError as error:
            raise ConfigError(f"{error}{_whose(A, targets)}") from None
        if everything.stack_key() is None:
            raise _no_loss(kind)
        self._whole: LinearModel = everything.divided(len(A))
        self.factors: Array | None = None
        """The factor of each client's objective; None for 1."""

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self._whole.targets)

    @property
    def rows_each(self) -> int:
        """The number of rows of each client."""
        return self._whole.num_examples

    @property
    def whole(self) -> LinearModel:
        """All objectives, with their factors, as one whose arrays have a client axis."""
        return self._whole if self.factors is None else self._whole.scaled_by(self.factors)

    def __len__(self) -> int:
        return self.num_clients

    @overload
    def __getitem__(self, client: int) -> Any: ...
    @overload
    def __getitem__(self, client: slice) -> Self: ...
    def __getitem__(self, client: int | slice) -> Any:
        taken, factors = range(self.num_clients)[client], self.factors
        if isinstance(taken, int):
            one = self._whole.one(taken)
            return one if factors is None else Scaled(one, float(factors[taken]))
        part = self._with(None if factors is None else factors[client])
        follow = taken.step == 1  # then nothing is copied
        some = slice(taken.start, taken.stop) if follow else np.array(taken, np.intp)
        part._whole = self._whole.part(some)
        return part

    def weighted(self, factors: Array) -> Self:
        """Return the same objectives, each times a further factor >= 0."""
        return self._with(factors if self.factors is None else factors * self.factors)

    def _with(self, factors: Array | None) -> Self:
        part = copy.copy(self)
        vars(part).pop("mean", None)
        alike = factors is None or bool((np.abs(factors - 1.0) <= 1e-15).all())
        part.factors = None if alike else factors
        return part

    @cached_property
    def mean(self) -> Any:
        """(1/N) sum_j f_j, as one objective of all rows."""
        mean = self._whole.joined()
        if self.factors is None:
            return mean
        size = float(self.factors.mean())  # 1, unless weights are weighted again
        if size == 0:
            return Scaled(mean, 0.0)
        mean._weigh(np.repeat(self.factors, self.rows_each))  # in proportion
        return mean if abs(size - 1.0) <= 1e-12 else Scaled(mean, size)

    def constants(self) -> tuple[list[float | None], list[float | None]]:
        """Return each client's L and mu (None if unknown), computed together."""
        smooth: list[float | None] = []
        strong: list[float | None] = []
        at_once = max(1, _AT_ONCE // self._whole.numbers_each)
        for start in range(0, self.num_clients, at_once):
            some = self[start : start + at_once]
            for constants, values in zip((smooth, strong), some.whole._curvature(), strict=True):
                each: Any = np.array(values, object if values is None else np.float64)
                constants += np.broadcast_to(each, len(some)).tolist()
        return smooth, strong

    def __repr__(self) -> str:
        name, m = type(self._whole).__name__, self.rows_each
        return f"ManyClients({name}: {self.num_clients} clients, {m} rows each)"


def _no_loss(kind: object) -> ConfigError:
    return ConfigError(
        "ManyClients(kind) must be one of the losses of rows, such as LeastSquares or "
        f"LogisticRegression, got {kind!r}"
    )


def _whose(*arrays: Array) -> str:
    """Return the place of the first value that is not finite, in words; "" if all are finite."""
    for values in arrays:
        if values.dtype.kind == "f" and not (good := np.isfinite(values)).all():
            client, row = np.argwhere(~good)[0, :2].tolist()
            return f" (row {row} of client {client})"
    return ""


def representatives(objectives: Sequence[Any]) -> Sequence[Any]:
    """Return objectives that represent all: the first of `ManyClients`, else each."""
    return objectives[:1] if isinstance(objectives, ManyClients) else objectives
