"""A package with an algorithm of its own, as `pip install` leaves it."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, *more: str) -> list[str]:
    """Return the folders that Python's path needs for the package `own-algorithm`.

    `more` are lines of entry points beside its own.
    """
    info = folder / "own_algorithm-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-algorithm\nVersion: 1.0\n")
    lines = ["[flower_fedcon.algorithms]", "own_momentum = own_algorithm:PAIR", *more]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return [str(folder), str(Path(__file__).parent)]
