"""Options of methods: who takes which, and says so; their names in files; and refusals."""

from __future__ import annotations

import pytest
from contract import CONTRACTS, EACH, FIRST, strategy
from problems import q6

from flower_fedcon import simulate
from flower_fedcon.aggregation import CoordinateMedian, TrimmedMean
from flower_fedcon.compressors import EF21, QSGD, Identity, Natural, Sign, TopK
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.optimizers import Adam, Momentum, Yogi
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.registry import algorithms, strategy_class
from flower_fedcon.regularizers import MCP, SCAD, WithIntercept
from flower_fedcon.schedules import Constant, Cosine, Inverse, InverseSqrt, StepDecay
from flower_fedcon.strategies import FedAvg, FedMiD, Scaffold
from flower_fedcon.strategies.base import FedConStrategy
from flower_fedcon.strategies.families.local_steps import LocalSteps
from flower_fedcon.validation import parameters

RULE, MEDIAN, NOISE = EF21(TopK(count=2)), CoordinateMedian(), GaussianDP(1.0, 1.0, 1e-5)
LOCAL = [name for name, kind in algorithms().items() if issubclass(kind, LocalSteps)]


def taking(needs, names=None):
    """Return the methods that have no reason to refuse an option."""
    known = algorithms() if names is None else names
    return {name for name in known if not getattr(strategy_class(name), needs)}


def test_who_takes_which_option():
    assert taking("needs_uncompressed") == {
        "area", "fedavg", "feddr", "feddualavg", "feddyn", "fedmid", "fedprox", "fivegcs",
        "mifa", "scaffnew", "scaffold",
    }  # fmt: skip
    assert taking("needs_mean") == {
        "cfedda", "fastfedda", "fedavg", "feddualavg", "fedmid", "fedprox", "fedsgm", "mcfedda",
    }  # fmt: skip
    assert taking("needs_server_lr", LOCAL) == {"fedavg", "fedmid", "fedvarp", "scaffold"}
    assert {*LOCAL} - taking("needs_one_length", LOCAL) == {"fedmid"}
    assert {*LOCAL} - taking("needs_constant_lr", LOCAL) == {"compositefl"}
    regularized = [name for name, kind in algorithms().items() if "regularizer" in parameters(kind)]
    convex = {"area", "fedavg", "fedmid", "feddr", "compositefl", "frecon", "mifa"}
    assert taking("needs_convex", regularized) == convex


OPTIONS = {
    "compression": ("needs_uncompressed", RULE, "takes no compression=EF21", ";", "none"),
    "aggregation": ("needs_mean", MEDIAN, "takes no aggregation=Coord", ".", "only the mean"),
}


@EACH
@pytest.mark.parametrize("option", OPTIONS)
def test_a_card_says_what_an_option_does_or_why_there_is_none(name, option):
    needs, value, words, end, instead = OPTIONS[option]
    kind, text = strategy_class(name), getattr(strategy_class(name).card(), option)
    if why := getattr(kind, needs):
        assert text == f"{instead}: {why}"
        with pytest.raises(ConfigError, match=words) as found:
            strategy(name, FIRST[name], **{option: value})
        assert f"{why}{end}" in str(found.value)
    elif option == "aggregation":
        assert text.startswith("any rule of `flower_fedcon.aggregation`")
        assert "only without heterogeneity" in text
    else:
        stateless = name in ("fedavg", "feddualavg", "fedmid", "fedprox")
        assert text.startswith("any" if stateless else "EF21")
        assert "same" in text


@EACH
def test_a_card_says_whether_a_regularizer_may_be_weakly_convex(name):
    kind, small = strategy_class(name), CONTRACTS[name].small
    if "regularizer" not in parameters(kind):
        assert kind.card().regularizer == ""
    elif why := kind.needs_convex:
        assert kind.card().regularizer == f"only convex: {why}"
        for psi in (MCP(0.1), SCAD(0.1), WithIntercept(MCP(0.1))):
            words = r"needs a convex regularizer.*modulus 0\.3"
            with pytest.raises(ConfigError, match=words) as told:
                kind(regularizer=psi, **small)
            assert why in str(told.value)
    else:
        assert "weakly convex" in kind.card().regularizer
        assert kind(regularizer=MCP(0.1), **small).regularizer == MCP(0.1)


@pytest.mark.parametrize("name", LOCAL)
def test_a_card_says_which_steps_a_method_takes(name):
    kind = algorithms()[name]
    made = {"client_lr": 0.1, "local_steps": 1}
    if "regularizer" in parameters(kind):
        made["regularizer"] = None
    falling = InverseSqrt(0.1)
    for option, value, why in (
        ("server_optimizer", Momentum(), kind.needs_server_lr),
        ("server_optimizer", Adam(), kind.needs_server_lr or kind.needs_one_length),
        ("client_lr", falling, kind.needs_constant_lr),
    ):
        if why:
            assert why in kind.card().step_sizes
            what = "schedule for client_lr, " if value is falling else "server_optimizer="
            with pytest.raises(ConfigError, match=f"takes no {what}.*{why}"):
                kind(**{**made, option: value})
        else:
            assert getattr(kind(**{**made, option: value}), option) == value


# --- in files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "stated", "made", "override", "other"),
    [
        ("compression", {"type": "EF21", "compressor": {"type": "TopK", "fraction": 0.5}},
         EF21(TopK(fraction=0.5)), "{type = 'Natural'}", Natural()),
        ("aggregation", {"type": "TrimmedMean", "fraction": 0.2}, TrimmedMean(0.2),
         "{type = 'CoordinateMedian'}", MEDIAN),
        ("norm_bound", 10, 10.0, "5", 5.0),
        ("server_optimizer", {"type": "Adam", "tau": 1e-2}, Adam(tau=1e-2), "{type = 'Yogi'}",
         Yogi()),
        ("client_lr", {"type": "Cosine", "initial": 0.01, "rounds": 4}, Cosine(0.01, 4),
         "{type = 'Inverse', initial = 0.1}", Inverse(0.1)),
    ],
)  # fmt: skip
def test_files_and_overrides_name_it(option, stated, made, override, other, tmp_path):
    tables = {
        "problem": {"name": "quadratics"},
        "run": {"rounds": 5},
        "algorithm": {"name": "FedAvg", "client_lr": 0.1, "local_steps": 1, option: stated},
    }
    assert getattr(Experiment(tables).strategy(), option) == made
    changed = Experiment(tables, overrides=[f"algorithm.{option}={override}"])
    assert getattr(changed.strategy(), option) == other
    path = tmp_path / "again.toml"
    path.write_text(changed.to_toml())
    assert getattr(Experiment.load(path).strategy(), option) == other


def in_a_file(**more):
    algorithm = {"name": "FedAvg", "client_lr": 0.1, "local_steps": 1, **more}
    tables = {"problem": {"name": "quadratics"}, "run": {"rounds": 5}, "algorithm": algorithm}
    return Experiment(tables).strategy()


# --- refusals -------------------------------------------------------------------------------------


class Silent(FedAvg):
    """A method of one's own that declares nothing."""

    needs_uncompressed, needs_mean = FedConStrategy.needs_uncompressed, FedConStrategy.needs_mean


def made(kind=FedAvg, **more):
    return kind(**{"client_lr": 0.1, "local_steps": 1, **more})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: in_a_file(aggregation="median"),
         r"aggregation must be a table \{type = \.\.\.\} of CoordinateM.*'median'"),
        (lambda: made(Silent, compression=RULE),
         "it does not declare that compressed uploads are right"),
        (lambda: made(Silent, aggregation=MEDIAN),
         "does not declare that another rule than the mean is right"),
        (lambda: made(norm_bound=0), "norm_bound must be finite and > 0, got 0"),
        (lambda: made(compression=TopK(count=2)), r"is biased, and alone .*: give.*EF21\(TopK"),
        (lambda: made(compression=Sign()), r"is biased, and alone .*: give.*EF21\(Sign"),
        (lambda: made(compression=Identity()), "must be a compressor of"),
        (lambda: made(compression=0.1), "must be a compressor of .*got 0.1"),
        (lambda: made(Scaffold, compression=QSGD(levels=4)),
         r"would add up in.*give compression=EF21\(QSGD\(levels=4\)\)"),
        (lambda: made(compression=RULE, aggregation=MEDIAN), "only without compression"),
        (lambda: made(compression=RULE, privacy=NOISE),
         "takes privacy=... only without compression"),
        (lambda: simulate(made(compression=EF21(TopK(count=9))), q6(), 1),
         "count=9.*more than the model's 8 entries"),
        (lambda: made(server_optimizer="adam"), "must be Momentum"),
        (lambda: made(server_momentum=0.5, server_optimizer=Adam()),
         "either server_momentum or server_optimizer"),
        (lambda: made(client_lr="fast"), "client_lr must be a number"),
        (lambda: FedMiD(MCP(1.0, 0.5), client_lr=InverseSqrt(0.3), local_steps=2),
         "steps of up to 0.6"),
        (lambda: Momentum(1.0), r"Momentum\(beta\) must be in \[0, 1\)"),
        (lambda: Adam(tau=0.0), r"Adam\(tau\) must be"),
        (lambda: Yogi(beta_2=-0.1), r"Yogi\(beta_2\) must be"),
        (lambda: Constant(0.0), r"Constant\(initial\) must be"),
        (lambda: Inverse(0.1, 0.0), r"Inverse\(decay\) must be"),
        (lambda: Cosine(0.1, 1), r"Cosine\(rounds\) must be a whole number >= 2"),
        (lambda: Cosine(0.1, 5, 0.2), r"Cosine\(final\) must be at most initial = 0.1"),
        (lambda: StepDecay(0.1, 0), r"StepDecay\(every\) must be"),
        (lambda: StepDecay(0.1, 1, 2.0), r"StepDecay\(factor\) must be in \(0, 1\]"),
        (lambda: StepDecay(0.1, 1, 0.5, 0.2), r"StepDecay\(smallest\) must be at most"),
    ],
)  # fmt: skip
def test_refusals(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
