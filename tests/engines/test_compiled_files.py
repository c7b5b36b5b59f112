"""What numba keeps on disk may be damaged, or have no place: loops are compiled anew."""

import logging
import resource
from types import FunctionType

import pytest

numba = pytest.importorskip("numba")

from flower_fedcon.compiled import jit  # noqa: E402


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
