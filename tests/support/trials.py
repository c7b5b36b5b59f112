"""Times to events that R's survival was run on, for tests to equal its numbers."""

from __future__ import annotations

from typing import Any

import pytest


def lung() -> Any:
    """Return lifelines' lung, rows without missing values in what is used: 226 rows of 18 sites."""
    datasets = pytest.importorskip("lifelines.datasets")
    return datasets.load_lung().dropna(subset=["inst", "time", "status", "age", "sex", "ph.ecog"])


def rossi() -> Any:
    """Return lifelines' rossi: 432 rows, with many ties."""
    return pytest.importorskip("lifelines.datasets").load_rossi()


def gbsg2() -> Any:
    """Return lifelines' gbsg2 with hormone therapy as 0 or 1: 686 rows, with ties."""
    table = pytest.importorskip("lifelines.datasets").load_gbsg2()
    return table.assign(horm=(table["horTh"] == "yes").astype(float))
