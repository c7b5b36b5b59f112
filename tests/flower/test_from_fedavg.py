"""What people write who know Flower's own strategies: each is told what stands here instead."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg

import flower_fedcon
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower.from_fedavg import INSTEAD
from flower_fedcon.strategies import FedAvg, FedDyn

PAGE = Path(__file__).parents[2] / "docs" / "coming_from_fedavg.md"


def test_the_page_and_the_errors_say_the_same():
    rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line[:3] == "| `"]
    for name, instead in INSTEAD.items():
        found = [said for words, said in rows if re.search(rf"\b{name}\b", words)]
        assert len(found) == 1, name
        assert instead in found[0], name
    assert {*signature(FlowersFedAvg).parameters} <= INSTEAD.keys()


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_their_arguments_are_refused_with_what_stands_here(name):
    said = re.escape(INSTEAD[name]) if INSTEAD[name] != "nothing" else "no counterpart"
    for call in (FedAvg, FedAvg().start):
        given = {} if call is FedAvg else {"grid": None}
        with pytest.raises(ConfigError, match=f"no argument '{name}': Flower's {name} .*{said}"):
            call(**given, **{name: 0.5})


def test_the_package_lists_its_names():
    assert {*flower_fedcon.__all__} <= {*dir(flower_fedcon)}


def test_an_argument_without_its_name_is_told_with_it():
    with pytest.raises(ConfigError, match=r"write FedDyn\(proximal=0\.1\)"):
        FedDyn(0.1)
