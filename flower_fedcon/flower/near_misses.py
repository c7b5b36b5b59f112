"""Keys of a configuration that are nearly right; an app may have others of its own."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

_log = logging.getLogger("flwr")
_NEAR = 0.8  # the similarity from which a key counts as misspelled


def warn_of_near_misses(config: Mapping[str, Any], known: Sequence[str], reader: str) -> None:
    """Warn of keys that are nearly one of the known ones.

    Parameters
    ----------
    config : dict
        A run's configuration, or a node's.
    known : sequence of str
    reader : str
        Who reads the known keys, in words.
    """
    for key in config.keys() - {*known}:
        said = key.lower().replace("_", "-")
        words = {*said.split("-")}
        near = [k for k in known if k == said or (len(words) > 1 and words < {*k.split("-")})]
        near += difflib.get_close_matches(said, known, 1, _NEAR)
        if near and (near[0] == said or near[0] not in config):
            _log.warning(
                "%s does not read %r: did you mean %r? A key that your own code reads may stay",
                reader,
                key,
                near[0],
            )
