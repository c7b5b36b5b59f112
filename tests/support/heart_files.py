"""The four hospitals' files, and their schema."""

from __future__ import annotations

from pathlib import Path

import flower_fedcon.tables
from flower_fedcon.tables import Schema

FOLDER = Path(flower_fedcon.tables.__file__).parent / "data" / "heart"
SCHEMA = Schema.load(FOLDER / "schema.toml")
