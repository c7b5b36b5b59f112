"""Text on the wire: names in the exchanges of tables, as bytes of JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError

_TEXT = 10**7  # bytes accepted from one node


def packed_text(content: Any) -> np.ndarray[Any, Any]:
    """Return text for the wire: JSON, as bytes."""
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return np.frombuffer(data, dtype=np.uint8)


def unpacked_text(array: Any) -> Any:
    """Return the content of `packed_text`.

    Raises
    ------
    ConfigError
        If the bytes are not such text.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.size > _TEXT:
        raise ConfigError("it does not hold a list of categories")
    try:
        return json.loads(array.tobytes())
    except (ValueError, RecursionError):
        raise ConfigError("its list of categories is damaged") from None
