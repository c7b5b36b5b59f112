"""The shape of a model, one array or a list of them (a network's layers), and an array's bytes."""

from __future__ import annotations

import io
import json
import math
import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import Array, float_array, plain_array

Model: TypeAlias = "Array | list[Array]"
Value = TypeVar("Value")
_LARGEST = 2**32


@dataclass(frozen=True)
class Layout:
    """How a model maps to the single array that the algorithms work on.

    A model that is one array is that array. A list of arrays is packed into one vector, layer
    after layer, so that no algorithm needs to know about layers.

    Parameters
    ----------
    shapes : tuple of tuple of int
        The shape of each layer; one entry for a model that is one array.
    dtype : str
        "float64" or "float32".
    layered : bool
        Whether the model is a list.
    names : tuple of str, optional
        The names of the layers, if they have any.

    Examples
    --------
    >>> layout = Layout.of([np.zeros(1), np.ones((1, 2))])
    >>> layout.shape, layout.pack([np.zeros(1), np.ones((1, 2))])
    ((3,), array([0., 1., 1.]))
    """

    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    layered: bool
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.layered and self.shapes == ((),):
            raise ConfigError("a model needs an axis: write shape (1,) for a single number, not ()")

    @classmethod
    def of(cls, model: Model | Sequence[Array], names: tuple[str, ...] | None = None) -> Layout:
        """Return the layout of `model`; float64 unless every array is float32."""
        layered = isinstance(model, list | tuple)
        arrays = [plain_array("the model", a) for a in (model if layered else [model])]
        if not arrays or any(a.size == 0 for a in arrays):
            raise ConfigError("a model needs at least one entry in every array")
        single = all(a.dtype == np.float32 for a in arrays)
        return cls(
            shapes=tuple(a.shape for a in arrays),
            dtype="float32" if single else "float64",
            layered=layered,
            names=names,
        )

    @classmethod
    def for_objective(cls, objective: Any) -> Layout | None:
        """Return the layout that an objective's `shape` and `dtype` state; None without `shape`.

        A list of tuples as `shape` stands for a model that is a list of layers; their names are
        in `layer_names`, if the objective has that.
        """
        shape = getattr(objective, "shape", None)
        if shape is None:
            return None
        layered = isinstance(shape, list)
        try:
            shapes = tuple(tuple(map(operator.index, s)) for s in (shape if layered else [shape]))
        except TypeError:
            raise ConfigError(
                f"an objective's shape must be a tuple of whole numbers, or a list of such tuples, "
                f"got {shape!r}"
            ) from None
        single = np.dtype(getattr(objective, "dtype", np.float64)) == np.float32
        names = getattr(objective, "layer_names", None)
        return cls(shapes, "float32" if single else "float64", layered, names and tuple(names))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each layer."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def _places(self) -> list[slice]:
        """Where each layer is in the packed array."""
        ends = [0, *accumulate(self.sizes)]
        return [slice(*pair) for pair in pairwise(ends)]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the packed array."""
        return (sum(self.sizes),) if self.layered else self.shapes[0]

    @cached_property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of the packed array."""
        return np.dtype(self.dtype)

    @cached_property
    def size(self) -> int:
        """Number of entries of the model, d."""
        return sum(self.sizes)

    def pack(
        self, model: Model | Sequence[Array], name: str = "the model", *, keep: bool = True
    ) -> Array:
        """Return `model` as one array of this layout's dtype.

        Without `keep` it may be the given array itself.

        Raises
        ------
        ConfigError
            If its shapes are not the layout's, or a value is not finite; `name` names it.
        """
        if self.layered and not isinstance(model, list | tuple):
            raise ConfigError(f"{name} must be a list of {len(self.shapes)} arrays, got {model!r}")
        arrays = list(model) if self.layered else [model]
        shapes = tuple(np.shape(a) for a in arrays)
        if shapes != self.shapes:
            raise ConfigError(f"{name} has shape {shapes}, expected {self.shapes}")
        alone = len(arrays) == 1
        checked = (float_array(name, a, keep=alone and keep) for a in arrays)
        if alone:
            return next(checked).astype(self.dtype, copy=False).reshape(self.shape)
        packed = np.empty(self.shape, self.array_dtype)
        for place, layer in zip(self._places, checked, strict=True):
            packed[place] = layer.reshape(-1)
        return packed

    def unpack(self, packed: Array) -> Model:
        """Return a packed array in the user's form, as views where possible."""
        if not self.layered:
            return packed
        pairs = zip(self._places, self.shapes, strict=True)
        return [packed[place].reshape(shape) for place, shape in pairs]

    def to_json(self) -> str:
        """Return the layout as JSON text, for the wire."""
        named = [] if self.names is None else [self.names]
        return json.dumps([self.shapes, self.dtype, self.layered, *named])

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Return the layout written by `to_json`; the text is not trusted.

        Raises
        ------
        ConfigError
            If it is not a layout, or has more than 2**32 numbers.
        """
        try:
            shapes, dtype, layered, *named = json.loads(text)
            sizes = [n for shape in shapes for n in shape]
            whole = all(type(n) is int and n >= 1 for n in sizes)
            typed = dtype in ("float64", "float32") and type(layered) is bool
            if not (whole and typed and shapes and (layered or len(shapes) == 1)):
                raise ValueError("it has other parts")
            names = tuple(named[0]) if named else None
            if names is not None and not all(type(name) is str for name in names):
                raise ValueError("its names are no texts")
            layout = cls(tuple(tuple(shape) for shape in shapes), dtype, layered, names)
            if layout.size > _LARGEST:
                raise ValueError(f"it has {layout.size} numbers")
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(f"not the layout of a model ({error}): {text[:60]!r}") from None
        return layout


@lru_cache(maxsize=1024)
def array_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of a C-ordered array in NumPy's format: header and data.

    >>> array_bytes((10,), np.dtype("float64"))
    208
    """
    header = io.BytesIO()
    description = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    return len(header.getvalue()) + math.prod(shape) * dtype.itemsize


_WRAPPERS = {"module", "_orig_mod"}  # DistributedDataParallel and its like; torch.compile


def renamed(found: Collection[str], names: Sequence[str]) -> dict[str, str]:
    """Map layers' names that differ from `names` only by prefixes of wrappers to these.

    A name that two others match is left out.

    >>> renamed(["_orig_mod.a.weight", "b.bias"], ["module.a.weight", "b.bias"])
    {'_orig_mod.a.weight': 'module.a.weight'}
    """

    def bare(name: str) -> str:
        return ".".join(part for part in name.split(".") if part not in _WRAPPERS)

    kept = {*found} & {*names}
    each, stand = (Counter(map(bare, {*some} - kept)) for some in (found, names))
    wanted = {bare(name): name for name in names if name not in kept}
    return {
        name: wanted[plain]
        for name in found
        if name not in kept and each[plain := bare(name)] == stand[plain] == 1
    }


def as_named(found: Mapping[str, Value], names: Sequence[str]) -> dict[str, Value]:
    """Return a model's values under the names `names`, without the prefixes of wrappers.

    >>> as_named({"module.fc.weight": 0}, ["_orig_mod.fc.weight"])
    {'_orig_mod.fc.weight': 0}
    """
    same = renamed(found, names)
    return {same.get(name, name): value for name, value in found.items()}
