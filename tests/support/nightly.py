"""Cases of a test that only `make nightly` runs."""

from __future__ import annotations

from typing import Any

import pytest


def nightly(*values: Any, **more: Any) -> Any:
    """Return one case's values, marked."""
    return pytest.param(*values, marks=pytest.mark.nightly, **more)


def at_night(values: Any, *, but: Any = ()) -> list[Any]:
    """Return a parameter's values, marked but for some."""
    return [value if value in but else nightly(value) for value in values]
