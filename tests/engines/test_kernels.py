"""Compiled kernels: what NumPy finds, on any number of cores, and never needed."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from types import FunctionType

import numpy as np
import pytest
from agreement import squares
from row_clients import clients

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon import compiled as door
from flower_fedcon.compiled import threads
from flower_fedcon.compiled.threads import cores
from flower_fedcon.engines import workers
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares, LogisticRegression
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedFW, Scaffold

numba = pytest.importorskip("numba", reason="the extra `fast` is not installed")
compiled = pytest.importorskip("flower_fedcon.compiled.calls")
from flower_fedcon.compiled import jit  # noqa: E402


@pytest.mark.parametrize("which", [slice(0, 5), slice(1, 3), np.array([3, 0, 4])])
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["least squares", "logistic", "scaled", "matrix"])
def test_gradients_are_those_of_each_client(always, kind, dtype, rows, which):
    shape = (2, 3) if kind == "matrix" else (7,)
    objectives = clients(kind, 5, rows, shape, dtype)
    stacked, chosen = stack(objectives), np.arange(5)[which]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((len(chosen), *shape)).astype(dtype)
    center, start = x[0] + 1, rng.standard_normal(x.shape).astype(dtype)
    batch = rng.integers(0, rows, (len(chosen), 2 * rows + 1))[:, ::2]  # not contiguous
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == np.float64 else {"rtol": 3e-5}
    if dtype == np.float32:
        tolerance["atol"] = 3e-5
    each = np.stack([objectives[c].gradient(x[i]) for i, c in enumerate(chosen)])
    shared = np.stack([objectives[c].gradient(center) for c in chosen])
    batches = np.stack([objectives[c].batch_gradient(x[i], batch[i]) for i, c in enumerate(chosen)])
    added = start.copy()
    stacked.add_gradient(x, added, 0.5, which)
    found = {
        "each": (stacked.gradient(x, which), each),
        "one point": (stacked.gradient(center, which), shared),
        "batch": (stacked.batch_gradient(x, which, batch), batches),
        "added": (added, start + 0.5 * each),
        "pulled": (
            stacked.pulled_gradient(x, 0.5, center, 3.0, which),
            0.5 * each + 3 * (x - center),
        ),
    }
    for gradient, expected in found.values():
        assert gradient.dtype == dtype
        np.testing.assert_allclose(gradient, expected, **tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["least squares", "logistic", "scaled", "matrix"])
def test_values_are_those_of_each_client(always, monkeypatch, kind, dtype):
    shape = (2, 3) if kind == "matrix" else (7,)
    objectives, used = clients(kind, 5, 9, shape, dtype), []
    kernels = door.loops(np.ones(1))
    plain = kernels.find_losses
    monkeypatch.setattr(kernels, "find_losses", lambda *a: (used.append(1), plain(*a)))
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal(shape), 300 * rng.standard_normal(shape), np.zeros(shape)):
        found = stack(objectives).values(x.astype(dtype))
        expected = [f.value(x.astype(dtype)) for f in objectives]
        np.testing.assert_allclose(found, expected, rtol=1e-12 if dtype == np.float64 else 1e-5)
    assert used == [1, 1, 1]
    assert np.isnan(stack(objectives).values(np.full(shape, np.nan, dtype))).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("rows", [1, 4, 9])
def test_hessian_products_are_those_of_each_client(always, dtype, l2, rows):
    rng = np.random.default_rng(0)
    parts = [
        LogisticRegression(
            rng.standard_normal((rows, 7)).astype(dtype),
            np.where(rng.standard_normal(rows) > 0, 1, -1),
            l2=l2 * j,
            intercept=j > 0,
        )
        for j in range(3)
    ]
    exact = {"rtol": 1e-12, "atol": 1e-12} if dtype == np.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for objectives in (parts[1:], parts[:1] * 2):
        x, v = rng.standard_normal((2, 2, *objectives[0].shape)).astype(dtype)
        found = stack(objectives).hessian_products(x)(np.asfortranarray(v))
        assert found.dtype == dtype
        for i, objective in enumerate(objectives):
            np.testing.assert_allclose(found[i], objective.hessian(x[i]) @ v[i], **exact)


def test_the_kernels_are_what_is_used(always, monkeypatch):
    used, kernels = [], door.loops(np.ones(1))
    plain = kernels.add_gradients
    monkeypatch.setattr(kernels, "add_gradients", lambda *a: (used.append(1), plain(*a)))

    def play(dtype=np.float64):
        x = np.ones((3, 2), dtype)
        stack(clients("least squares", 3, 4, (2,), np.float64)).gradient(x, slice(0, 3))
        return len(used)

    assert play() == 1
    with door.numpy_only():
        assert play() == 1
    assert play(np.float32) == 1  # of another type than the data: by NumPy


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found(always, value):
    g = np.ones((4, 5))
    g[2, 3], g[2, 4] = value, 7.0
    with pytest.raises(ConfigError, match=r"L1Ball.* finite"):
        L1Ball(1.0).lmo(g, batch=1)
    objectives = clients("least squares", 4, 5, (5,), np.float64)
    found = stack(objectives).gradient(g, slice(0, 4))
    assert not np.isfinite(found[2]).any()
    assert np.isfinite(found[[0, 1, 3]]).all()


@pytest.mark.parametrize("kind", [">f8", "longdouble", "float16", "int64"])
def test_other_types_are_numpys(always, kind):
    g = np.array([[1, -3, 2], [4, 0, 4]]).astype(kind)
    assert door.loops(g) is None
    found = L1Ball(1.0).lmo(g, batch=1)
    assert found.code.tolist() == [2, -1]


def fedfw(n: int = 40, d: int = 60) -> tuple[FedFW, FederatedProblem]:
    constraint = L1Ball(1.0)
    problem = FederatedProblem(
        clients("least squares", n, 20, (d,), np.float64), constraint=constraint
    )
    return FedFW(constraint, penalty=1.0), problem


def test_the_number_of_cores_changes_no_bit(monkeypatch):
    monkeypatch.setattr(door, "WORTHWHILE", 0)
    strategy, problem = fedfw()
    found = {simulate(strategy, problem, 30, engine="stacked").x.tobytes()}  # small: one thread
    monkeypatch.setattr(compiled, "FEW", 0)
    for n in range(1, cores() + 1):
        found.add(simulate(strategy, problem, 30, engine="stacked", threads=n).x.tobytes())
    assert len(found) == 1


def test_a_forked_child_works_on_one_core(always):
    """A parallel region of OpenMP, entered by parent and child, would end the child."""
    strategy, problem = fedfw()
    expected = simulate(strategy, problem, 10, engine="stacked").x.tobytes()
    child = os.fork()
    if child == 0:
        same = False
        try:
            same = simulate(strategy, problem, 10, engine="stacked").x.tobytes() == expected
        finally:
            os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


HIDDEN = """
import sys
import numpy as np
from flower_fedcon import compiled as door
from flower_fedcon.sets import L1Ball
assert door.loops(np.ones(2**20)) is None
assert door.describe() == "none: NumPy alone"
assert abs(L1Ball(1.0).lmo(np.eye(300), batch=1).code).sum() == sum(range(1, 301))
"""
SMALL = """
import sys
import numpy as np
from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedFW
clients = [LeastSquares(np.eye(4), np.ones(4)) for _ in range(5)]
problem = FederatedProblem(clients, constraint=L1Ball(1.0))
simulate(FedFW(problem.constraint, penalty=1.0), problem, 3, engine="stacked")
assert "numba" not in sys.modules
"""


@pytest.mark.parametrize(
    ("code", "more"),
    [
        (f"import sys; sys.modules['numba'] = None{HIDDEN}", {}),
        (HIDDEN, {"NUMBA_DISABLE_JIT": "1"}),
        (SMALL, {}),
    ],
    ids=["without numba", "switched off", "small arrays do not load it"],
)
def test_numba_is_never_needed(code, more):
    env = {**os.environ, **more}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120
    )
    assert (done.stderr, done.returncode) == ("", 0)


# --- how many threads -----------------------------------------------------------------------------


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


# --- files of numba -------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "_told", set())
    monkeypatch.setattr(jit, "_filled", set())
    return tmp_path


def twice(x):
    return 2 * x


def loop():
    """Return the function, compiled at its first call, as a new process would."""
    return jit.jit(FunctionType(twice.__code__, {}, "twice"))


def was_read(made):
    return bool(sum(made._cache_hits.values()))


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [lambda old: b"", lambda old: b"?" * 99, lambda old: old[:-40]])
def test_damaged_files_are_replaced(kind, damage, folder, caplog):
    assert loop()(3) == 6
    (path,) = folder.rglob(f"*.{kind}")
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING, "flwr"):
        made = loop()
        assert made(3) == 6
    assert not was_read(made)
    assert f"numba's files in {path.parent} cannot be used" in caplog.text
    third = loop()
    assert third(3) == 6
    assert was_read(third)


def test_who_waits_for_a_compiler_is_told_once(folder, caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        assert loop()(3) == 6
        assert loop()(3) == 6  # from the files
        assert loop()(0.5) == 1.0
    assert caplog.text.count(f"they are kept in {folder}") == 1


def test_a_full_disk_costs_the_files_alone(folder, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        made = loop()
        result = made(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result == 6
    assert caplog.text.count("cannot be used") == 1
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_folder_that_cannot_be_made_is_done_without(folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder / "file" / "below"))
    assert loop()(3) == 6
