"""SuperNodes, SuperLink and ServerApps are killed while they work; nothing is lost or doubled.

The nodes keep their clients' state in a `state-dir`, the server its checkpoint in the run
directory. Every run ends at the bytes of the undisturbed one. `tests/support/chaos.py` does the
same for as long as one likes, at random.
"""

from __future__ import annotations

import pytest
from chaos import Chaos


@pytest.mark.nightly
@pytest.mark.deployment
def test_every_run_ends_where_the_undisturbed_one_does(tmp_path):
    chaos = Chaos(tmp_path, seed=0, rounds=6)
    chaos.play(
        25,  # minutes at most: a machine may be slow
        misfortunes=[
            "a node dies twice",
            "a stranger joins",
            "the ServerApps die",
            "the server's machine goes down",
        ],
        pause=4,
    )
    assert chaos.wrong() == []
