"""Minibatches whose epochs go on over the rounds: by hand, in every engine, and who takes them."""

from __future__ import annotations

import numpy as np
import pytest

from flower_fedcon import FederatedProblem, Sample, simulate
from flower_fedcon.core.rng import EPOCH, stream
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import LeastSquares
from flower_fedcon.sets import L1Ball
from flower_fedcon.strategies import FedAvg, FedFW, FedProx, Scaffnew, Scaffold


def _problem(rows=(7, 7, 7), **parts):
    rng = np.random.default_rng(3)
    return FederatedProblem(
        [LeastSquares(rng.normal(size=(m, 3)), rng.normal(size=m)) for m in rows], **parts
    )


def test_each_row_once_in_an_epoch():
    """Seven rows in batches of two: three batches an epoch, two of them in each round."""
    problem = _problem()
    made = FedAvg(client_lr=0.1, local_steps=2, batch_size=2, batch_order="epoch")
    x = simulate(made, problem, 3, seed=4).x
    orders = [[stream(4, EPOCH, e, j).permutation(7) for e in (0, 1)] for j in range(3)]
    batches = [[order[i : i + 2] for order in own for i in (0, 2, 4)] for own in orders]
    w = np.zeros(3)
    for t in range(3):
        ends = []
        for f, own in zip(problem.objectives, batches, strict=True):
            v = w
            for rows in own[2 * t : 2 * t + 2]:
                v = v - 0.1 * f.batch_gradient(v, rows)
            ends.append(v)
        w = np.mean(ends, axis=0)
    np.testing.assert_allclose(x, w, rtol=1e-12)


@pytest.mark.parametrize(
    ("made", "parts"),
    [
        (FedAvg(client_lr=0.1, local_steps=2, batch_size=2, batch_order="epoch"), {}),
        (
            Scaffold(
                client_lr=0.1,
                local_steps=3,
                batch_size=3,
                batch_order="epoch",
                participation=Sample(count=2),
            ),
            {},
        ),
        (
            FedFW(
                L1Ball(1.0), penalty=1.0, gradient="stochastic", batch_size=2, batch_order="epoch"
            ),
            {"constraint": L1Ball(1.0)},
        ),
    ],
    ids=["fedavg", "scaffold", "fedfw"],
)
def test_engines_go_on_alike(made, parts, tmp_path):
    here = simulate(made, _problem(**parts), 6, seed=1)
    there = simulate(made, _problem(**parts), 6, seed=1, engine="stacked")
    np.testing.assert_allclose(there.x, here.x, rtol=1e-9, atol=1e-12)
    simulate(made, _problem(**parts), 3, seed=1, run_dir=tmp_path / "run")
    resumed = simulate(made, _problem(**parts), 6, seed=1, run_dir=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.x, here.x)


def test_compiled_rounds_go_on_alike(caplog):
    pytest.importorskip("jax")
    made = FedAvg(client_lr=0.1, local_steps=2, batch_size=2, batch_order="epoch")
    here, there = (
        simulate(made, _problem(), 6, evaluate_every=6, engine=engine)
        for engine in ("local", "jax")
    )
    assert not caplog.records
    np.testing.assert_allclose(there.x, here.x, rtol=1e-9)


class _OwnDraws:
    """A loss that draws its batches itself."""

    shape, num_examples = (3,), 7

    def value(self, x):
        return float(x @ x) / 2

    def gradient(self, x):
        return x

    def stochastic_gradient(self, x, rng, batch_size=None):
        return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FedAvg(client_lr=0.1, local_steps=1, batch_size=2, batch_order="epochs"),
            "batch_order must be",
        ),
        (
            lambda: FedAvg(client_lr=0.1, local_steps=1, batch_order="epoch"),
            "is for minibatches: give batch_size",
        ),
        (lambda: FedProx(proximal=1.0, batch_order="epoch"), "is for minibatches"),
        (
            lambda: simulate(
                Scaffnew(
                    client_lr=0.1,
                    communication_probability=0.5,
                    batch_size=2,
                    batch_order="epoch",
                ),
                _problem(),
                1,
            ),
            "draws the number of its local steps",
        ),
        (
            lambda: simulate(
                FedAvg(client_lr=0.1, local_steps=1, batch_size=2, batch_order="epoch"),
                FederatedProblem([_OwnDraws()]),
                1,
            ),
            "needs an objective with batch_gradient",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
