"""Groups of entries, and the ball of the sum of their norms."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.errors import ConfigError, repr_of
from flower_fedcon.sets.atoms import Atom, each_atom
from flower_fedcon.sets.base import ConstraintSet
from flower_fedcon.sets.compact import GroupAtom
from flower_fedcon.sets.shapes import ByValue, each, expect_finite, expect_unit
from flower_fedcon.sets.simplex import simplex_projection
from flower_fedcon.validation import Array, expect_array, expect_names, plain_array, positive

Groups: TypeAlias = "int | str | Array"


def check_groups(name: str, groups: Any) -> Groups:
    """Return `groups` if it is a size, "rows", or labels 0, 1, 2, ... in an array."""
    if isinstance(groups, str) and groups == "rows":
        return groups
    if isinstance(groups, int | np.integer) and not isinstance(groups, bool) and groups >= 1:
        return int(groups)
    if isinstance(groups, list | tuple | np.ndarray) and not _ragged(groups):
        given = plain_array(name, groups)
        if given.size and given.dtype.kind in "iu" and given.min() == 0:
            labels = given.astype(np.int64)
            if labels.max() < labels.size and np.bincount(labels.ravel()).all():
                labels.flags.writeable = False
                return labels
    raise ConfigError(
        f'{name} must be a size >= 1, "rows", or an array of labels in which each of 0, 1, ... '
        f"occurs; got {repr_of(groups)}{_by_label(groups)}"
    )


def _ragged(groups: Any) -> bool:
    """Return whether a list holds lists of several lengths, or lists mixed with other values."""
    try:
        return not isinstance(groups, np.ndarray) and len({np.shape(group) for group in groups}) > 1
    except ValueError:
        return True


def _by_label(groups: Any) -> str:
    """Return how to write groups that are given as lists of indices; "" for other groups."""
    try:
        entries = [int(operator.index(entry)) for group in groups for entry in group]
        if sorted(entries) != list(range(len(entries))):
            return ""
        labels = {int(entry): label for label, group in enumerate(groups) for entry in group}
    except TypeError:
        return ""
    return f": label the entries, {[labels[entry] for entry in range(min(len(labels), 20))]}"


def labels_for(groups: Groups, shape: tuple[int, ...]) -> Array:
    """Return the group of each entry of a model of `shape`, flattened.

    Raises
    ------
    ConfigError
        If the groups do not fit the shape.

    Examples
    --------
    >>> labels_for(2, (4,)), labels_for("rows", (2, 3))
    (array([0, 0, 1, 1]), array([0, 0, 0, 1, 1, 1]))
    """
    size = math.prod(shape)
    if isinstance(groups, np.ndarray):
        if groups.shape != shape:
            raise ConfigError(f"the groups have shape {groups.shape}, the model {shape}")
        flat: Array = groups.reshape(-1)
        return flat
    if isinstance(groups, str):
        if len(shape) < 2:
            raise ConfigError(f'groups="rows" needs a matrix, the model has shape {shape}')
        groups = size // shape[0]
    if size % groups:
        raise ConfigError(f"groups of {groups} do not divide a model of {size} entries")
    return np.repeat(np.arange(size // groups), groups)


def group_norms(flat: Array, labels: Array) -> Array:
    """Return the l2 norm of each group, in float64, safe from under- and overflow."""
    largest = float(np.abs(flat).max())
    if largest == 0.0:
        return np.zeros(int(labels.max()) + 1)
    wide = flat.astype(np.float64, copy=False)
    if 1e-100 < largest < 1e100:  # squares neither overflow nor lose digits
        return np.sqrt(np.bincount(labels, weights=wide * wide))
    wide = wide / largest
    return largest * np.sqrt(np.bincount(labels, weights=wide * wide))


def rescale_groups(x: Array, labels: Array, norms: Array, new: Array) -> Array:
    """Return `x` with each group rescaled from its norm to a new one."""
    factors = np.divide(new, norms, out=np.zeros_like(norms), where=norms > 0)
    return (x.reshape(-1) * factors[labels]).astype(x.dtype).reshape(x.shape)


@dataclass(frozen=True, eq=False)
class GroupL2Ball(ByValue, ConstraintSet):
    """The set sum_g ||x_g||_2 <= radius, over groups g of entries that do not overlap.

    Parameters
    ----------
    radius : float
        > 0.
    groups : int, "rows" or array of int
        An int is the size of equal, contiguous groups of the flattened model. With "rows", each
        index of the first axis is a group. An array of the model's shape holds the label 0, 1, 2,
        ... of each entry's group.

    Examples
    --------
    >>> ball = GroupL2Ball(radius=5.0, groups=2)
    >>> ball.project(np.array([6.0, 8.0, 0.5, 0.0]))
    array([3., 4., 0., 0.])
    >>> ball.lmo(np.array([3.0, 4.0, 1.0, 1.0])).dense() + 0.0
    array([-3., -4.,  0.,  0.])
    """

    radius: float
    groups: Groups

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("GroupL2Ball(radius)", self.radius))
        object.__setattr__(self, "groups", check_groups("GroupL2Ball(groups)", self.groups))

    @property
    def scale(self) -> float:
        """The radius."""
        return self.radius

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless the groups fit models of `shape`."""
        labels_for(self.groups, shape)

    def excess(self, x: Array) -> float:
        """Return sum_g ||x_g||_2 - radius."""
        norms = group_norms(x.reshape(-1), labels_for(self.groups, x.shape))
        return float(norms.sum()) - self.radius

    def diameter_for(self, shape: tuple[int, ...]) -> float:
        """Return 2 radius."""
        return 2.0 * self.radius

    @property
    def diameter(self) -> float:
        """2 radius."""
        return 2.0 * self.radius

    def project(self, x: Array, *, batch: int = 0) -> Array:
        """Project the groups' norms onto the l1 ball."""
        labels = labels_for(self.groups, x.shape[batch:])
        expect_finite(self, x)

        def project(model: Array) -> Array:
            norms = group_norms(model.reshape(-1), labels)
            if norms.sum() <= self.radius:
                return model.copy()
            return rescale_groups(model, labels, norms, simplex_projection(norms, self.radius))

        return each(x, batch, project)

    def lmo(self, g: Array, *, batch: int = 0) -> Atom:
        """Return -radius g_k / ||g_k|| on the group k of largest norm; +radius e_1 for g = 0."""
        labels = labels_for(self.groups, g.shape[batch:])
        expect_finite(self, g)

        def vertex(model: Array) -> GroupAtom:
            flat = model.reshape(-1)
            group = int(group_norms(flat, labels).argmax())
            index = np.flatnonzero(labels == group)
            part = flat[index].astype(np.float64)
            largest = float(np.abs(part).max())
            unit = part / largest if largest else -np.eye(1, part.size)[0]
            unit /= np.linalg.norm(unit)
            return GroupAtom(group, unit.astype(g.dtype), index, self.radius, model.shape)

        return each_atom(g, batch, vertex)

    def decode_atom(
        self, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Atom:
        """Return the vertex with this group's number and unit vector."""
        labels = labels_for(self.groups, shape)
        expect_names(arrays, ("group", "unit"))
        group = int(expect_array(arrays, "group", (), np.dtype(np.int32)))
        if not 0 <= group <= labels.max():
            raise ConfigError(f"group {group} is outside 0 to {labels.max()}")
        index = np.flatnonzero(labels == group)
        unit = expect_array(arrays, "unit", index.shape, dtype)
        expect_unit(unit)
        return GroupAtom(group, unit, index, self.radius, shape)
