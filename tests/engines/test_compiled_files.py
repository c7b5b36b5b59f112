"""What numba keeps on disk may be damaged, or have no place: loops are compiled anew."""

import logging
import resource
from types import FunctionType

import pytest

numba = pytest.importorskip("numba")

from flower_fedcon.kernels import jit  # noqa: E402


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


def callback():
    """Return another, compiled at once."""
    return jit.cached(numba.cfunc, FunctionType(twice.__code__, {}, "twice"), "int64(int64)")


def of(made):
    return made(3) if made.__class__.__name__ != "CFunc" else made.ctypes(3)


def was_read(made):
    hits = made._cache_hits
    return bool(hits if isinstance(hits, int) else sum(hits.values()))


@pytest.mark.parametrize("make", [loop, callback])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [lambda old: b"", lambda old: b"?" * 99, lambda old: old[:-40]])
def test_damaged_files_are_replaced(make, kind, damage, folder, caplog):
    assert of(make()) == 6
    (path,) = folder.rglob(f"*.{kind}")
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING, "flwr"):
        made = make()
        assert of(made) == 6
    assert not was_read(made)
    assert f"numba's files in {path.parent} cannot be used" in caplog.text
    third = make()
    assert of(third) == 6
    if make is loop:  # a callback's are written again one start later
        assert was_read(third)
    fourth = make()
    assert of(fourth) == 6
    assert was_read(fourth)


def test_who_waits_for_a_compiler_is_told_once(folder, caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        assert of(loop()) == 6
        assert of(loop()) == 6  # from the files
        assert loop()(0.5) == 1.0
    assert caplog.text.count(f"they are kept in {folder}") == 1


@pytest.mark.parametrize("make", [loop, callback])
def test_a_full_disk_costs_the_files_alone(make, folder, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        made = make()
        result = of(made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result == 6
    assert caplog.text.count("cannot be used") == 1
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_folder_that_cannot_be_made_is_done_without(folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder / "file" / "below"))
    assert of(loop()) == of(callback()) == 6
