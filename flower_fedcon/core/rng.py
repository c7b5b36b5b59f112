"""Random streams: every draw of a run comes from (seed, purpose, round, client)."""

from __future__ import annotations

import numpy as np

from flower_fedcon.errors import ConfigError

COHORT, BATCH, COMPRESS, COIN, NOISE, EPOCH = 1, 2, 3, 4, 5, 6
FOLDS = 12
CLOCK = 13
SCALES = 14
MAX_SEED = 2**63 - 1
_WORD = 2**32 - 1


def check_seed(seed: int) -> int:
    """Return `seed` if it is a whole number in [0, 2**63)."""
    if (
        isinstance(seed, bool)
        or not isinstance(seed, int | np.integer)
        or not 0 <= seed <= MAX_SEED
    ):
        raise ConfigError(f"seed must be a whole number in [0, 2**63), got {seed!r}")
    return int(seed)


def stream(seed: int, purpose: int, server_round: int, client: int = 0) -> np.random.Generator:
    """Return the generator of one purpose, round and client.

    Streams with different keys are independent, so that a client's draws do not depend on who
    else takes part, on the engine, or on the order in which replies come in.

    >>> int(stream(0, BATCH, 3, 1).integers(100)) == int(stream(0, BATCH, 3, 1).integers(100))
    True
    """
    # The same as default_rng of these four, which would split them into words: a third slower.
    words = []
    for number in (seed, purpose, server_round, client):
        words.append(number & _WORD)
        if number > _WORD:
            words.append(number >> 32)
    return np.random.Generator(np.random.PCG64(np.array(words, np.uint32)))
