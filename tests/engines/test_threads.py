"""How many threads compiled loops have: what is set, else all cores, and one for little work."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import squares

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon import compiled as door
from flower_fedcon.compiled import threads
from flower_fedcon.engines import workers
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.strategies import FedAvg, Scaffold

numba = pytest.importorskip("numba", reason="the extra `fast` is not installed")
compiled = pytest.importorskip("flower_fedcon.compiled.calls")

CORES = 64


@pytest.fixture
def forms(monkeypatch):
    """Call no loop; return the number of threads of each call, 0 for the form that has one."""
    called, now = [], [8]
    monkeypatch.setattr(threads, "cores", lambda: CORES)
    monkeypatch.setitem(vars(numba.config), "NUMBA_NUM_THREADS", CORES)
    monkeypatch.setattr(numba, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(numba, "set_num_threads", lambda n: now.__setitem__(0, n))
    both = (lambda: called.append(now[0]), lambda: called.append(0))
    monkeypatch.setitem(compiled.forms, "own", both)
    threads._of_text.cache_clear()
    yield called
    assert now == [8]  # numba's own number, of the user's loops, stays as it was
    threads._of_text.cache_clear()


def call(work: int = compiled.FEW) -> None:
    compiled.call("own", work)


def test_what_is_set_is_used(forms, monkeypatch):
    """For a run before that of the process; and one thread is the form without threads."""
    with threads.using(3):
        call()
        call(compiled.FEW - 1)
    monkeypatch.setenv("FEDCON_THREADS", "5")
    call()
    with threads.using(None):
        call()
    with threads.using(1):
        call()
    call()
    assert forms == [3, 0, 5, 5, 0, 5]


def test_without_a_setting_all_cores_are(forms, monkeypatch):
    monkeypatch.delenv("FEDCON_THREADS", raising=False)
    call()
    monkeypatch.setattr(numba, "get_num_threads", lambda: 1)
    call()
    assert forms == [8, 0]


STRATEGY = FedAvg(client_lr=0.1, local_steps=1)


@pytest.mark.parametrize("value", [0, 65, 1.5, True, "two"])
def test_a_number_that_cannot_be_is_named(forms, monkeypatch, value):
    said = "must be a whole number from 1 to 64, the cores that this process may use, got"
    with pytest.raises(ConfigError, match=rf"^threads {said} {value!r}: leave it out"):
        simulate(STRATEGY, squares((4, 4)), 1, threads=value)
    monkeypatch.setenv("FEDCON_THREADS", str(value))
    with pytest.raises(ConfigError, match=rf"^FEDCON_THREADS {said} .*: leave it out"):
        simulate(STRATEGY, squares((4, 4)), 1)


@pytest.mark.parametrize("more", [{"engine": "ray"}, {"workers": 2}])
def test_other_processes_have_their_part_of_the_cores(more):
    with pytest.raises(ConfigError, match=r"threads=1 is for clients in this process: .*FEDCON_TH"):
        simulate(STRATEGY, squares((4, 4)), 1, threads=1, **more)


def test_worker_processes_share_the_cores(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 8)
    given = []
    monkeypatch.setattr(
        workers, "ProcessPoolExecutor", lambda **options: given.append(options["initargs"][-1])
    )
    with pytest.raises(AttributeError):  # there is no pool
        simulate(STRATEGY, squares((4,) * 3), 1, workers=3)
    assert given == [2, 2, 2]


def test_the_number_reaches_the_loops_of_a_stacked_run(monkeypatch):
    """A call of enough work enters the form for several threads."""
    if numba.get_num_threads() < 2:
        pytest.skip("there is one core")
    monkeypatch.setattr(door, "WORTHWHILE", 0)
    monkeypatch.setattr(compiled, "FEW", 0)
    used, real = [], compiled.forms["take_steps"]
    both = tuple(
        lambda *given, loop=loop, alone=alone: (used.append(alone), loop(*given))
        for alone, loop in enumerate(real)
    )
    monkeypatch.setitem(compiled.forms, "take_steps", both)
    problem = squares((9,) * 4, 5)
    strategy = FedAvg(client_lr=0.1, local_steps=2)
    found = [simulate(strategy, problem, 3, engine="stacked", threads=n).x for n in (1, 2, None)]
    assert used == [1] * 3 + [0] * 6
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@pytest.mark.parametrize("method", [FedAvg, Scaffold], ids=["fedavg", "scaffold"])
def test_a_run_of_many_clients_is_that_of_any_number_of_threads(method):
    """Nor does it differ from the local engine's by more than rounding."""
    problem, strategy = squares((4,) * 40, 900), method(client_lr=1e-3, local_steps=3)
    one, all_ = (simulate(strategy, problem, 8, engine="stacked", threads=k).x for k in (1, None))
    assert one.tobytes() == all_.tobytes()
    np.testing.assert_allclose(one, simulate(strategy, problem, 8).x, rtol=0, atol=1e-13)


def test_a_client_with_a_nonfinite_model_is_dropped_by_name(caplog):
    """The gate sees it in the pass over all, and tells whose it is."""
    parts = list(squares((4,) * 40, 900).objectives)
    parts[7] = LeastSquares(np.full((4, 900), 1e45), np.ones(4))  # overflows in the sixth step
    strategy = FedAvg(client_lr=1e-3, local_steps=8, min_replies=39)
    history = simulate(strategy, FederatedProblem(parts), 1, engine="stacked")
    assert "dropped the reply of client 7: 'delta' holds non-finite values" in caplog.text
    assert history["dropped"][-1] == caplog.text.count("dropped the reply")
    assert np.isfinite(history.x).all()
