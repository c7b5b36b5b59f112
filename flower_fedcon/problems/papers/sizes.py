"""The sizes of synthetic data."""

from __future__ import annotations

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import count


def check_sizes(*, nonzeros: int, columns: int, **others: int) -> None:
    """Raise unless all sizes are whole numbers >= 1, and `nonzeros` is at most `columns`.

    Raises
    ------
    ConfigError
        If a size is not valid, or `nonzeros` exceeds `columns`.

    >>> check_sizes(clients=3, rows=5, columns=8, nonzeros=2)
    """
    for name, number in {**others, "columns": columns, "nonzeros": nonzeros}.items():
        count(name, number)
    if nonzeros > columns:
        raise ConfigError(f"nonzeros must be at most columns = {columns}, got {nonzeros}")
