"""What the package says of itself: examples that run, and words for everything public."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from pages import ROOT

import flower_fedcon
from flower_fedcon import strategies
from flower_fedcon.registry import client_class

SHOWN = {path for path in (ROOT / "flower_fedcon").rglob("*.py") if ">>> " in path.read_text()}
MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in SHOWN)
HEAVY = ["matplotlib", "pandas", "pyarrow", "ray", "scipy", "sklearn", "typer"]
LIGHT = "flower_fedcon.flower.messages, flower_fedcon.clients, flower_fedcon.objectives"
ALGORITHMS = [name for name in strategies.__all__ if name != "FedConStrategy"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    module = import_module(name.removesuffix(".__init__"))
    found = doctest.testmod(module, extraglobs={"np": np}, optionflags=flags)
    assert found.failed == 0 < found.attempted


@pytest.mark.parametrize("name", flower_fedcon.__all__)
def test_promised_names_can_be_imported(name):
    value = getattr(flower_fedcon, name)
    assert (value.__doc__ or "").strip()
    assert value.__name__ == name
    assert value.__module__.startswith("flower_fedcon.")


def test_promises_are_complete():
    assert sorted(flower_fedcon.__all__) == flower_fedcon.__all__
    assert set(flower_fedcon._HOMES) == set(flower_fedcon.__all__)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        flower_fedcon.simulat  # noqa: B018
    assert flower_fedcon.__version__.count(".") == 2


@pytest.mark.parametrize("name", ALGORITHMS)
def test_strategies_document_every_argument(name):
    kind = getattr(strategies, name)
    text = inspect.cleandoc(kind.__doc__)
    parameters = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    heads = [line for line in parameters.splitlines() if line and not line.startswith(" ")]
    listed = {word.strip() for head in heads for word in head.partition(":")[0].split(",")}
    expected: set[str] = set()
    for home in kind.__mro__:
        if "__init__" in vars(home) and issubclass(home, strategies.FedConStrategy):
            known = inspect.signature(home.__init__).parameters.values()
            expected |= {p.name for p in known if p.kind is not p.VAR_KEYWORD}
    expected -= {"self"}
    if "batch_size" not in client_class(kind.name).fields:  # they are refused
        expected -= {"batch_size", "batch_order"}
    if "clip" not in client_class(kind.name).fields:
        expected -= {"clip"}
    assert listed == expected, f"{name}: document {expected - listed}, and not {listed - expected}"
    assert ">>> " in text.partition("Examples\n--------\n")[2]
    assert "Raises\n------\n" in text


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_are_the_documented_ones(name):
    kind = getattr(strategies, name)
    for home in kind.__mro__:
        if "__init__" not in vars(home) or not issubclass(home, strategies.FedConStrategy):
            continue
        for argument, parameter in inspect.signature(home.__init__).parameters.items():
            line = next(
                (x for x in inspect.cleandoc(kind.__doc__).splitlines() if x.startswith(argument)),
                "",
            )
            if "(default: " in line and home is not strategies.FedConStrategy:
                stated = line.partition("(default: ")[2].rstrip(")").replace('"', "'")
                assert stated == repr(parameter.default)


def modules_after(statement):
    """Return which heavy packages a fresh process holds after a statement."""
    code = f"import sys; {statement}; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_node_imports_little():
    """Nothing heavy beyond what Flower's own client side loads."""
    assert modules_after(f"import {LIGHT}") <= modules_after("import flwr.clientapp") & {"typer"}
    assert modules_after("from flower_fedcon import client_app") <= {"typer"}
