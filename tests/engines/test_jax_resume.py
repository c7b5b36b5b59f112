"""Checkpoints of the compiled engine are those of the others."""

from __future__ import annotations

from typing import Any

import pytest
from test_stacked import COUNTED, made, objectives

from flower_fedcon import Full, Sample, simulate

pytest.importorskip("jax")


@pytest.mark.parametrize(("first", "then"), [("jax", "local"), ("local", "jax"), ("jax", "jax")])
@pytest.mark.parametrize("name", ["fedfw", "compositefl"])
def test_one_engine_goes_on_with_the_run_of_another(name, first, then, tmp_path):
    for rule in (Full(), Sample(fraction=0.5)) if first != then else (Full(),):
        strategy, problem = made(name, objectives("least squares"), participation=rule)
        whole = simulate(strategy, problem, 30)
        folder = tmp_path / type(rule).__name__
        options: dict[str, Any] = {"run_dir": folder, "checkpoint_every": 7, "evaluate_every": 10}
        simulate(strategy, problem, 19, engine=first, **options)
        rest = simulate(strategy, problem, 30, engine=then, resume=True, **options)
        assert rest.x == pytest.approx(whole.x, abs=1e-10)
        for column in COUNTED:
            assert rest.rows[-1][column] == whole.rows[-1][column]


def test_a_run_is_resumed_to_the_same_bytes(tmp_path):
    """A block may be cut anywhere."""
    strategy, problem = made("scaffold", objectives("logistic"), batch_size=5)
    whole = simulate(strategy, problem, 40, engine="jax", evaluate_every=0)
    simulate(strategy, problem, 17, engine="jax", evaluate_every=0, run_dir=tmp_path / "a")
    rest = simulate(strategy, problem, 40, engine="jax", run_dir=tmp_path / "a", resume=True)
    assert rest.x.tobytes() == whole.x.tobytes()
