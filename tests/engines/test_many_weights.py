"""Many clients in one array: weights of weights, parts, the audit log, a kill before any state."""

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares, ManyClients
from flower_fedcon.strategies import FedAvg, Scaffold

rng = np.random.default_rng(0)
A, B, X = rng.standard_normal((6, 4, 3)), rng.standard_normal((6, 4)), np.array([1.0, -2.0, 0.5])
WEIGHTS = np.arange(6.0)


def many(**settings):
    return FederatedProblem(ManyClients(LeastSquares, A, B), **settings)


def each(**settings):
    return FederatedProblem([LeastSquares(*own) for own in zip(A, B, strict=True)], **settings)


@pytest.mark.parametrize("again", [None, WEIGHTS[::-1]])
def test_objectives_of_a_weighted_problem_keep_their_weights(again):
    made, expected = (
        FederatedProblem(kind(weights=WEIGHTS).objectives, weights=again) for kind in (many, each)
    )
    np.testing.assert_allclose(made.objective(X), expected.objective(X), rtol=1e-13)
    own = [objective.value(X) for objective in made.objectives]
    np.testing.assert_allclose(own, [f.value(X) for f in expected.objectives], rtol=1e-13)


@pytest.mark.parametrize("part", [slice(0, 1), slice(4, 6), slice(None, None, 2)])
def test_the_mean_of_some_clients_is_the_mean_of_their_values(part):
    some = many(weights=WEIGHTS).objectives[part]
    expected = np.mean([objective.value(X) for objective in some])
    np.testing.assert_allclose(some.mean.value(X), expected, rtol=1e-13)


def test_constants_where_a_chunk_has_mean_weights(monkeypatch):
    monkeypatch.setattr("flower_fedcon.objectives.many._AT_ONCE", 1)  # each client is one
    weights = np.array([1.0, 2.0, 3.0, 1.0, 2.0, 3.0])
    smooth, _ = many(weights=weights).objectives.constants()
    expected = [objective.smoothness for objective in each(weights=weights).objectives]
    np.testing.assert_allclose(smooth, expected, rtol=1e-12)


def test_clients_of_unlike_sizes_are_refused_in_words():
    with pytest.raises(ConfigError, match="list of objectives where rows differ"):
        ManyClients(LeastSquares, [[[1.0], [2.0]], [[1.0]]], np.ones((2, 2)))


def test_an_audit_log_of_many_clients(tmp_path):
    simulate(FedAvg(client_lr=0.05, local_steps=2), many(), 3, run_dir=tmp_path / "a", audit=True)
    assert (tmp_path / "a" / "audit.jsonl").read_text().count('"start"') == 1


@pytest.mark.parametrize("problem", [many, each])
def test_a_run_that_was_killed_before_any_client_had_a_state_goes_on(tmp_path, problem):
    strategy = Scaffold(client_lr=0.05, local_steps=2)
    given = {"engine": "stacked", "run_dir": tmp_path / "run"}
    simulate(strategy, problem(), 0, **given)  # its checkpoint is that of the start
    resumed = simulate(strategy, problem(), 5, resume=True, **given)
    np.testing.assert_array_equal(resumed.x, simulate(strategy, problem(), 5, engine="stacked").x)
