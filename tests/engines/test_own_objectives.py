"""Objectives of one's own: what they return, what they do to x, and what they raise."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import q6_objectives

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.core.protocol import ClientInfo
from flower_fedcon.errors import ConfigError, RoundError
from flower_fedcon.layout import Layout
from flower_fedcon.objectives import Quadratic
from flower_fedcon.objectives.foreign import ForeignObjective, as_seen
from flower_fedcon.strategies import FedAvg, FedProx

PLAIN = {
    "returns a list": lambda x, g: g.tolist(),
    "changes x": lambda x, g: x.fill(7.0) or g,
    "returns x": lambda x, g: x.__setitem__(slice(None), g) or x,
    "returns float32 lists": lambda x, g: list(g),
}
MUST = r"Own.gradient\(x\) must return an array of shape \(8,\), got"
REFUSED = {
    "None": (lambda x, g: None, f"{MUST} None"),
    "a number": (lambda x, g: 3.0, f"{MUST} 3.0"),
    "rows": (lambda x, g: [[1.0], [2.0, 3.0]], "must return an array"),
    "texts": (lambda x, g: ["a"] * 8, "must return an array"),
    "objects": (lambda x, g: [None] * 8, "must return an array"),
    "shape": (lambda x, g: g[:, None], r"must return an array .*, got ndarray array\("),
    "value error": (lambda x, g: int("x"), "ValueError: invalid literal"),
    "no file": (lambda x, g: Path("/nowhere").read_text(), r"FileNotFoundError: \[Errno 2\]"),
}  # fmt: skip


class Own:
    """One of six quadratics, by another's hand."""

    shape = (8,)
    gradient_steps = 5  # which means nothing here

    def __init__(self, f: Any, what: Any = lambda x, g: g) -> None:
        self.f, self.what = f, what

    def value(self, x):
        return np.array([self.f.value(x)])

    def gradient(self, x):
        return self.what(x, self.f.gradient(x))


def problem(what: Any, **more: Any) -> FederatedProblem:
    return FederatedProblem([Own(f, what) for f in q6_objectives()], **more)


STRATEGIES = [
    FedAvg(client_lr=0.01, local_steps=3),
    FedProx(proximal=1.0, local_solver="exact"),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
@pytest.mark.parametrize("weights", [None, [1, 2, 3, 1, 1, 1]])
def test_what_numpy_understands_is_right(strategy, weights):
    known = FederatedProblem(q6_objectives(), weights=weights)
    if strategy.name == "fedavg":
        steps = simulate(strategy, known, 4).x
        found = simulate(strategy, problem(lambda x, g: g, weights=weights), 4).x
        np.testing.assert_allclose(found, steps, rtol=1e-12)
    expected = simulate(strategy, problem(lambda x, g: g, weights=weights), 4, certificates=True)
    for what in PLAIN.values():
        found = simulate(strategy, problem(what, weights=weights), 4, certificates=True)
        assert found.x.tobytes() == expected.x.tobytes()
        assert found["kkt"].tolist() == expected["kkt"].tolist()


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_gradient_is_that_clients_fault(what):
    wrong, words = REFUSED[what]
    own = [Own(f, wrong) if j == 2 else Own(f) for j, f in enumerate(q6_objectives())]
    history = simulate(STRATEGIES[0], FederatedProblem(own), 2)
    assert history["dropped"].tolist() == [1, 2]
    with pytest.raises(RoundError, match=rf"client 2: .*{words}"):
        simulate(FedAvg(client_lr=0.01, local_steps=1, min_replies=6), FederatedProblem(own), 2)


def test_values():
    own, at = Own(q6_objectives()[0]), np.zeros(8)
    assert isinstance(as_seen(own, Layout.of(at)).value(at), float)
    own.value_and_gradient = lambda x: 3.0
    with pytest.raises(ConfigError, match=r"value_and_gradient\(x\) must return a number and an"):
        ForeignObjective(own).value_and_gradient(at)
    assert pickle.loads(pickle.dumps(ForeignObjective(q6_objectives()[0]))).num_examples == 1

    class Counted(Quadratic):
        """One of the package's: solvers know it."""

    known = Counted(np.eye(2), np.ones(2))
    assert as_seen(known, Layout.of(np.zeros(2))) is known


@pytest.mark.parametrize("value", ["a", None, 1j, [1.0, 2.0]])
def test_a_value_that_is_no_number_names_the_client(value):
    own = Own(q6_objectives()[0])
    own.value = lambda x: value
    words = rf"Own.value\(x\) must return a number{', got None' if value is None else ''}"
    with pytest.raises(ConfigError, match=words):
        FederatedProblem([own]).objective(np.zeros(8))
    both = FederatedProblem([Own(q6_objectives()[1]), own], names=["Bonn", "Ulm"])
    with pytest.raises(ConfigError, match=f"client Ulm: {words}"):
        simulate(STRATEGIES[0], both, 1)


def test_layers_cannot_be_changed_either():
    class Layers:
        shape = [(2,), (1, 2)]  # noqa: RUF012

        def __init__(self, answer):
            self.answer = answer

        def value(self, x):
            return sum(float((layer**2).sum()) for layer in x)

        def gradient(self, x):
            for layer in x:
                layer *= 2
            return self.answer(x)

    x0 = [np.ones(2), np.ones((1, 2))]
    found = simulate(STRATEGIES[0], FederatedProblem([Layers(lambda x: x)], x0=x0), 1).x
    assert [layer.shape for layer in found] == [(2,), (1, 2)]
    assert np.concatenate([layer.ravel() for layer in found]) == pytest.approx(0.98**3)
    with pytest.raises(RoundError, match="a gradient must be a list of 2 arrays, got None"):
        simulate(STRATEGIES[0], FederatedProblem([Layers(lambda x: None)], x0=x0), 1)


# --- what clients say of themselves ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"smoothness": 1e300}, "smoothness must be at most 1e.100, got 1e.300"),
        ({"smoothness": np.inf}, "smoothness must be finite and >= 0"),
        ({"smoothness": "large"}, "an objective's smoothness must be a number, got 'large'"),
        ({"strong_convexity": -1}, "strong_convexity must be finite and >= 0, got -1"),
        ({"smoothness": 1.0, "strong_convexity": 2.0}, r"at most smoothness, got 2.0 > 1.0"),
        ({"num_examples": 0}, "num_examples must be a whole number >= 1"),
        ({"num_examples": np.nan}, "num_examples must be a number, got nan"),
        ({"shape": ()}, r"a model needs an axis: write shape \(1,\)"),
        ({"shape": 5}, "shape must be a tuple of whole numbers"),
        ({"shape": (2.5,)}, "shape must be a tuple of whole numbers"),
    ],
)
def test_constants_out_of_range_are_refused(values, words):
    own = Own(q6_objectives()[0])
    vars(own).update(values)
    with pytest.raises(ConfigError, match=words):
        ClientInfo.of(own, "0")


def test_a_single_number_is_no_model():
    own = Own(q6_objectives()[0])
    own.shape = None
    with pytest.raises(ConfigError, match="a model needs an axis"):
        FederatedProblem([own], x0=np.array(1.0))


@pytest.mark.parametrize("scale", [1e308, 1.7e308, 1e-308, 5e-324])
def test_huge_and_tiny_weights(scale):
    equal = FederatedProblem(q6_objectives(), weights=[scale] * 6)
    assert equal.weights.tolist() == pytest.approx([1 / 6] * 6)
    x = np.ones(8)
    assert equal.objective(x) == pytest.approx(FederatedProblem(q6_objectives()).objective(x))
