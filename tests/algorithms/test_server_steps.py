"""docs/server_steps.md, and `fedcon info` of what methods take."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import import_module

import pytest
from harness import refusal
from pages import ROOT, blocks

from flower_fedcon import simulate
from flower_fedcon.cli.parts_by_name import parts, takers
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.optimizers import Adam
from flower_fedcon.problems import digits
from flower_fedcon.registry import algorithms
from flower_fedcon.regularizers import L1
from flower_fedcon.schedules import InverseSqrt
from flower_fedcon.strategies import FedAvg
from flower_fedcon.validation import parameters

PAGE = "docs/server_steps.md"


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table under a title."""
    return cells((ROOT / PAGE).read_text("utf-8").partition(f"## {title}")[2].partition("\n## ")[0])


def cells(text: str) -> list[list[str]]:
    """Return the cells of a table, without its titles."""
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
    return [[cell.strip("`") for cell in row] for row in found[2:]]


def accepts(kind, **more) -> str:
    psi = {"regularizer": L1(0.1)} if "regularizer" in parameters(kind) else {}
    try:
        kind(**{"client_lr": 0.1, "local_steps": 2, **psi, **more})
    except ConfigError:
        return "no"
    return "yes"


def test_the_page_s_table_is_what_the_classes_accept(monkeypatch):
    """The site's build makes it."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    made = import_module("which").server_steps()
    assert "{include} _generated/server_steps.txt" in (ROOT / PAGE).read_text("utf-8")
    table = {row[0]: row[1:] for row in cells(made)}
    known = algorithms().values()
    stepping = {k.__name__: k for k in known if "server_optimizer" in parameters(k)}
    assert table.keys() == stepping.keys(), "the table has a row for each of them"
    found = parts()
    for name, kind in stepping.items():
        optimizers = [accepts(kind, server_optimizer=found[n]()) for n in ("Momentum", "Adam")]
        assert table[name] == [*optimizers, accepts(kind, client_lr=InverseSqrt(0.1))]
        for other in ("Adagrad", "Yogi"):
            assert accepts(kind, server_optimizer=found[other]()) == optimizers[1]
        for part in ("Momentum", "Adam"):
            listed = takers(found[part]).get("server_optimizer", [])
            assert (accepts(kind, server_optimizer=found[part]()) == "yes") == (name in listed)


@pytest.mark.parametrize(("page", "name"), [("participation", "unequal"), ("asynchronous", "late")])
def test_a_table_has_each_method_once(page, name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    made = getattr(import_module("which"), name)()
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    assert f"{{include}} _generated/{name}.txt" in text
    listed = [method for row in cells(made) for method in row[0].split(", ")]
    assert sorted(listed) == sorted(kind.__name__ for kind in algorithms().values())


def test_the_page_s_blocks(capsys):
    for block, text in zip(blocks("python", PAGE), blocks("text", PAGE), strict=True):
        exec(compile(block, PAGE, "exec"), {})
        assert capsys.readouterr().out == text
    (given,) = blocks("toml", PAGE)
    tables = {
        "problem": {"name": "digits"},
        "run": {"rounds": 5},
        "algorithm": {"name": "FedAvg", "local_steps": 5, **tomllib.loads(given)},
    }
    strategy = Experiment(tables).strategy()
    assert strategy.server_optimizer == Adam(tau=1e-3)
    assert strategy.client_lr == InverseSqrt(1.0)
    plain = {**tables, "algorithm": {"name": "FedAvg", "client_lr": 0.1, "local_steps": 5}}
    page = " ".join((ROOT / PAGE).read_text("utf-8").split())
    command = re.search(r"`(fedcon run FILE\.toml .*?)`", page)
    texts = [text for text in shlex.split(command[1]) if text.startswith("algorithm.")]
    told = Experiment(plain, overrides=texts).strategy()
    assert (told.server_optimizer, told.server_lr) == (Adam(), 0.03)


def test_the_page_s_numbers():
    """Of two cells; the others are of the same loop."""
    table = {row[0]: row[1:] for row in rows("The scale of `server_lr`")}
    for lr, column, optimizer in (("1", 0, None), ("1", 2, Adam()), ("0.03", 2, Adam())):
        strategy = FedAvg(
            client_lr=0.3, local_steps=5, server_lr=float(lr), server_optimizer=optimizer
        )
        run = simulate(strategy, digits(l2=0.01), 30, evaluate_every=10)
        expected = [float(text) for text in table[lr][column].split(", ")]
        assert run["objective"][[0, 2]] == pytest.approx(expected[:2], rel=6e-3)


def test_info_says_what_a_part_is_and_who_takes_it(run_command):
    for name, words in (
        ("Adam", ("FedAdam", "tau", "server_optimizer= FedAvg, FedVARP, Scaffold")),
        (
            "InverseSqrt",
            ("initial / sqrt(t)", "client_lr= FedAvg, FedMiD, FedDualAvg, MIFA"),
        ),
        ("EF21", ("Error feedback by a memory", "compression= FedAvg, FedMiD,")),
        ("TopK", ("fraction", "downlink_compressor= FedSGM")),
        ("L1", ("weight ||x||_1", "Arguments", "`fedcon info METHOD` says whether")),
        ("NuclearNormBall", ("singular values sum to at most radius", "radius required")),
    ):
        code, out, error = run_command("info", name)
        assert (code, error) == (0, "")
        shown = " ".join(out.split())
        assert all(word in shown for word in words), shown
    assert "--size counts the bytes of an algorithm" in refusal(
        run_command, "info", "Adam", "--size", "5"
    )
    assert "Adam" in refusal(run_command, "info", "Adan")
