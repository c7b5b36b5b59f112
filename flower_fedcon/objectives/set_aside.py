"""Inherited methods that no longer match the methods that a user's subclass overrides."""

from __future__ import annotations

from typing import Any

_HERE = f"{__name__.partition('.')[0]}."
_SECOND = (
    *("hessian", "hessian_products", "second_derivatives"),
    *("entry_curvatures", "usual_sizes"),
)
_MADE_OF = {
    "value": ("value_and_gradient",),
    "gradient": (
        *("value_and_gradient", "batch_gradient", "add_gradient", "pulled_gradient"),
        *("clipped_sum", "gradient_operator", "in_units", "_curvature", *_SECOND),
    ),
    "stochastic_gradient": ("batch_gradient",),
}
_GENERIC = ("value_and_gradient", "_curvature")
"""Methods of every objective, built from its value and gradient only."""


class SetAside:
    """Replaces an inherited method that a class must not use: the class then lacks it.

    Parameters
    ----------
    name : str
        The method.
    override : str
        The method that the class overrides.
    owner : type
        The class that defines the method.
    """

    def __init__(self, name: str, override: str, owner: type) -> None:
        self.name, self.override, self.owner = name, override, owner

    def why(self, kind: str) -> str:
        """Return why a class of this name lacks the method, and the remedy."""
        return (
            f"{kind} defines its own {self.override}, which {self.owner.__name__}.{self.name} does "
            f"not use: define {self.name}, too"
        )

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError(self.why(owner.__name__))


def is_ours(kind: type) -> bool:
    """Return whether a class belongs to this package."""
    return kind.__module__.startswith(_HERE)


def owner_of(kind: type, name: str) -> type | None:
    """Return the class that defines an attribute of a class; None without it."""
    return next((one for one in kind.__mro__ if name in vars(one)), None)


def outdated(kind: type, override: str, name: str) -> type | None:
    """Return the class whose `name` does not match this class's `override`; None if all match.

    They do not match if a user's class defines `override` and inherits `name`.
    """
    by, owner = owner_of(kind, override), owner_of(kind, name)
    if by is None or owner is None or is_ours(by):
        return None
    order = kind.__mro__
    return owner if order.index(owner) > order.index(by) else None


def set_aside(kind: type, root: type) -> None:
    """Remove from a class the inherited methods that its own ones outdate.

    Parameters
    ----------
    kind : type
        A subclass of `Objective`.
    root : type
        `Objective`, whose own methods are built from those that a class defines.
    """
    for override, names in _MADE_OF.items():
        for name in names:
            owner = outdated(kind, override, name)
            if owner is None or owner is root:
                continue
            general = vars(root)[name] if name in _GENERIC else SetAside(name, override, owner)
            setattr(kind, name, general)


def _is_set_aside(kind: type, name: str, override: str) -> bool:
    owner = owner_of(kind, name)
    member = None if owner is None else vars(owner)[name]
    return isinstance(member, SetAside) and member.override == override


def set_losses_aside(kind: type, root: type) -> None:
    """Do the same for the three functions of a loss.

    Parameters
    ----------
    kind : type
        A subclass of `LinearModel`.
    root : type
        `LinearModel`, whose own methods are built from the three functions.
    """
    if outdated(kind, "loss", "_mean") not in (None, root):
        kind._mean = vars(root)["_mean"]  # type: ignore[attr-defined]
    for override in ("slope", "curvature"):
        if outdated(kind, override, "curvatures") is not None:
            kind.curvatures = vars(root)["curvatures"]  # type: ignore[attr-defined]
    owner = outdated(kind, "slope", "curvature")
    if owner is not None and owner is not root:
        kind.curvature = SetAside("curvature", "slope", owner)  # type: ignore[attr-defined]
    lacks = not hasattr(kind, "curvature")
    for name in _SECOND:
        owner = outdated(kind, "slope", name) or outdated(kind, "curvature", name)
        if not lacks and name in vars(root) and _is_set_aside(kind, name, "slope"):
            setattr(kind, name, vars(root)[name])  # a base class had no curvature
        elif owner is not None and (lacks or owner is not root):
            setattr(kind, name, SetAside(name, "slope", owner))
