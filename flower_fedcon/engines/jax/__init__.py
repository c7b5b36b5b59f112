"""The engine whose rounds JAX compiles. Only this room imports JAX."""

from __future__ import annotations

from typing import Any

from flower_fedcon.errors import needing


def jax_engine() -> Any:
    """Return the class of the engine.

    Raises
    ------
    MissingExtraError
        If JAX is not installed.
    """
    same = 'take engine="stacked", which finds the same iterates'
    with needing('engine="jax" needs JAX', "jax", same):
        import jax  # noqa: F401
    from flower_fedcon.engines.jax.program import JaxEngine

    return JaxEngine
