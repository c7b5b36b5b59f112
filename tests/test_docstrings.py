"""What the package says of itself: examples that run, and words for everything public."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

import flower_fedcon
from flower_fedcon import objectives, regularizers, sets, strategies
from flower_fedcon.registry import client_class

MODULES = sorted(m.name for m in pkgutil.walk_packages(flower_fedcon.__path__, "flower_fedcon."))
HEAVY = ["matplotlib", "pandas", "pyarrow", "ray", "scipy", "sklearn", "typer"]
LIGHT = "flower_fedcon.flower.messages, flower_fedcon.clients, flower_fedcon.objectives"


def public() -> dict[str, type]:
    """Return the classes of the public interface, by where a user finds them."""
    found = {}
    for module in (flower_fedcon, sets, objectives, strategies, regularizers):
        names = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
        for name in names:
            value = getattr(module, name)
            if inspect.isclass(value) and value.__module__.startswith("flower_fedcon"):
                found[f"{module.__name__}.{name}"] = value
    return found


CLASSES = public()
ALGORITHMS = [name for name in strategies.__all__ if name != "FedConStrategy"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testmod(module, extraglobs={"np": np}, optionflags=flags)
    assert found.failed == 0


def test_modules_are_found():
    for part in (
        "sets.balls",
        "strategies.fedfw",
        "clients.fedfw",
        "engines.grid",
        "problems.federated",
    ):
        assert f"flower_fedcon.{part}" in MODULES


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


@pytest.mark.parametrize("name", CLASSES)
def test_classes_and_methods_say_what_they_are(name):
    kind = CLASSES[name]
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}("), "a dataclass without docstring"
    for method, value in vars(kind).items():
        target = value.fget if isinstance(value, property) else getattr(value, "func", value)
        target = getattr(target, "__func__", target)
        if method[0] != "_" and inspect.isfunction(target):
            assert (target.__doc__ or "").strip(), f"{name}.{method} has no docstring"


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


def modules_after(statement: str) -> set[str]:
    """Return which heavy packages a fresh process holds after a statement."""
    code = f"import sys; {statement}; print(*(m for m in {HEAVY} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_node_imports_little():
    """Nothing heavy beyond what Flower's own client side loads."""
    assert modules_after(f"import {LIGHT}") <= modules_after("import flwr.clientapp") & {"typer"}
    assert modules_after("from flower_fedcon import client_app") <= {"typer"}
