"""The engine whose rounds JAX compiles. Only this room imports JAX."""

from __future__ import annotations

from typing import Any

from flower_fedcon.errors import ConfigError


def jax_engine() -> Any:
    """Return the class of the engine.

    Raises
    ------
    ConfigError
        If JAX is not installed.
    """
    try:
        import jax  # noqa: F401
    except ImportError:
        raise ConfigError(
            'engine="jax" needs JAX: pip install "flower-fedcon[jax]", or take engine="stacked", '
            "which finds the same iterates"
        ) from None
    from flower_fedcon.engines.jax.program import JaxEngine

    return JaxEngine
