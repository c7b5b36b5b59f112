"""Algorithms that are not the collection's: registered, or installed by another package.

`engines/test_engines.py` has one on nodes and in Ray.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import Command, refusal
from own_algorithm import Own, OwnClient
from own_package import install
from problems import q6

from flower_fedcon import registry, simulate
from flower_fedcon.clients.base import FedConClient
from flower_fedcon.errors import AlgorithmError, ConfigError
from flower_fedcon.registry import algorithms, client_class, register, strategy_class
from flower_fedcon.strategies import FedAvg
from flower_fedcon.validation import parameters

STEPS = {"client_lr": 1 / 40, "local_steps": 2}


@pytest.fixture
def registered(monkeypatch):
    """Register the pair for one test."""
    monkeypatch.setattr(registry, "_own", {})
    register(Own, OwnClient)


@pytest.fixture
def installed(tmp_path):
    """Return the path of an environment in which another package has the pair."""
    more = "broken = own_algorithm:NOTHING", "fedavg = own_algorithm:PAIR"
    return install(tmp_path / "site", *more)


@pytest.mark.usefixtures("registered")
def test_it_runs_in_every_process_of_this_machine(tmp_path):
    expected = simulate(Own(**STEPS), q6(), 6, seed=1).x
    assert np.linalg.norm(expected - simulate(FedAvg(**STEPS), q6(), 6, seed=1).x) > 1e-3
    for options in ({"engine": "stacked"}, {"workers": 2}):
        found = simulate(Own(**STEPS), q6(), 6, seed=1, **options).x
        assert found == pytest.approx(expected, abs=1e-12)
    simulate(Own(**STEPS), q6(), 3, seed=1, run_dir=tmp_path)
    again = simulate(Own(**STEPS), q6(), 6, seed=1, run_dir=tmp_path, resume=True)
    assert again.x.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("registered")
def test_it_is_found_listed_and_run_by_name(run_command: Command):
    fedcon = run_command
    assert (strategy_class("OWN_momentum"), client_class("own_momentum")) == (Own, OwnClient)
    out = fedcon("list")[1]
    assert "FedAvg with momentum one half on the server. (own_algorithm)" in " ".join(out.split())
    assert "client_lr" in fedcon("info", "own_momentum")[1]
    assert "did you mean 'own_momentum'" in refusal(fedcon, "info", "own_momentun")
    text = '[problem]\nname = "counterexample"\n[run]\nrounds = 3\non_mismatch = "warn"\n'
    Path("own.toml").write_text(
        f'{text}[algorithm]\nname = "own_momentum"\nclient_lr = 0.1\nlocal_steps = 1\n'
    )
    assert fedcon("run", "own.toml")[0] == 0


def test_a_node_lists_what_it_accepts():
    with pytest.raises(ConfigError) as caught:
        client_class("own_momentum")
    told = str(caught.value)
    assert "the algorithm 'own_momentum' is not accepted here; accepted: apdainexact, " in told
    assert f"{max(registry.names())}. Install the package that has it, or call flower" in told
    with pytest.raises(ConfigError, match=r"Register your own by flower_fedcon\.register"):
        strategy_class("own_momentum")
    with pytest.raises(ConfigError, match="'own_momentum' is not accepted here"):
        simulate(Own(**STEPS), q6(), 1)


def run_python(code: str, path: list[str]) -> str:
    inserted = f"import sys; sys.path[:0] = {path!r}\n"
    done = subprocess.run([sys.executable, "-c", inserted + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_an_installed_package_is_found_and_only_loaded_where_asked_for(installed):
    code = """
from flower_fedcon import registry
assert "own_momentum" in registry.accepted() and "broken" in registry.accepted()
registry.client_class("fedavg")
assert "own_algorithm" not in sys.modules and "flower_fedcon.strategies" not in sys.modules
assert registry.client_class("own_momentum").__name__ == "OwnClient"
assert registry.strategy_class("own_momentum").__name__ == "Own"
assert registry.client_class("fedavg").__module__ == "flower_fedcon.clients.fedavg"
from flower_fedcon.cli import main
assert main(["list"]) == 0
try:
    registry.client_class("broken")
except registry.AlgorithmError as error:
    print(error)
"""
    told = run_python(code, installed)
    assert "Own " in told
    words = "the algorithm 'broken' of own-algorithm (own_algorithm:NOTHING) cannot be loaded"
    assert told.count(words) == 2  # once by `fedcon list`, which shows the rest
    assert "the algorithm 'fedavg' of own-algorithm (own_algorithm:PAIR): the name is tak" in told


@pytest.mark.parametrize(
    ("strategy", "client", "words"),
    [
        (OwnClient, OwnClient, "expected a subclass of FedConStrategy"),
        (Own, Own, "expected a subclass of FedConClient"),
        (type("A", (Own,), {"name": "Own"}), OwnClient, "must be lower-case .*, got 'Own'"),
        (type("A", (Own,), {"name": "a"}), OwnClient, "is 'own_momentum' and A.name 'a'"),
        (FedAvg, type("C", (OwnClient,), {"algorithm": "fedavg"}), "of the collection: choose"),
        (Own, FedConClient, "FedConClient has no algorithm"),
        (type("Other", (Own,), {}), OwnClient, "is already the name of"),
        (Own, type("Other", (OwnClient,), {}), "is already the name of"),
    ],
)
@pytest.mark.usefixtures("registered")
def test_pairs_that_do_not_fit_are_refused(strategy, client, words):
    with pytest.raises(AlgorithmError, match=words):
        register(strategy, client)
    register(Own, OwnClient)  # the same again is no mistake


def test_the_symbols_of_a_card_are_arguments():
    """A renamed argument is renamed there, too: words after "=" are arguments, or mathematics."""
    kinds = [kind for kind in algorithms().values() if kind.__module__.startswith("flower_fedcon.")]
    words = {word for kind in kinds for word in parameters(kind)}
    for kind in kinds:
        said = {*re.findall(r"= ([a-z]+(?:_[a-z]{2,})*)\b", kind.card().symbols or "")}
        assert {word for word in said if word in words or "_" in word} <= {*parameters(kind)}, kind


@pytest.mark.usefixtures("registered")
def test_a_misspelt_upload_names_the_classes(monkeypatch):
    monkeypatch.setattr(Own, "uplink", ("delte",))
    with pytest.raises(AlgorithmError, match="correct the names in OwnClient, or `uplink` in Own"):
        simulate(Own(**STEPS), q6(), 1)
