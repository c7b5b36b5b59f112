"""What histories show: counts of what clients do, and certificates that are what they say."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from agreement import squares
from contract import FIRST, strategy
from harness import OpenRun, client_states, wire_exchange
from problems import avg, l1ls, q6, q6_l1
from scipy.optimize import brentq

from flower_fedcon import EarlyStopping, FederatedProblem, Sample, simulate
from flower_fedcon.clients.base import FedConClient
from flower_fedcon.core.gate import COUNTS
from flower_fedcon.core.round import Round
from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.objectives.curvatures import entry_curvatures
from flower_fedcon.regularizers import L1, Zero
from flower_fedcon.runs.certificates import certify
from flower_fedcon.strategies import FedAvg, FedDualAvg, FedFW, FedMiD, FedProx, Scaffold

GRADIENTS = (
    "gradient value_and_gradient batch_gradient stochastic_gradient add_gradient pulled_gradient "
    "constraint_gradient constraint_sums_gradient"
)
CALLS = dict.fromkeys(GRADIENTS.split(), "gradients") | {
    "hessian_products": "hessian_products", "hessian": "hessian_products",
    "prox": "proxes", "lmo": "lmos",
}  # fmt: skip


class Counter:
    """Counts the calls of methods of objects, where a client's step makes them, the outermost."""

    def __init__(self) -> None:
        self.found = dict.fromkeys(COUNTS, 0)
        self.inside, self.depth = False, 0

    def of(self, thing, but=()):
        """Return a copy of an object whose calls count."""
        if thing is None:
            return None
        own = {n: self._counted(thing, n) for n in CALLS if hasattr(thing, n) and n not in but}
        kind = type(thing)
        made = copy.copy(thing)
        known = {
            n: property(lambda _, n=n: getattr(thing, n))
            for n in ("smoothness", "strong_convexity")
            if hasattr(thing, n)
        }
        made_of = type(kind.__name__, (kind,), {**known, **own, "__module__": __name__})
        object.__setattr__(made, "__class__", made_of)
        return made

    def _counted(self, thing, name):
        base = getattr(type(thing), name)
        rows = {
            "batch_gradient": lambda x, rows: len(rows),
            "stochastic_gradient": lambda x, rng, batch_size=None: batch_size,
        }.get(name, lambda *_, **__: getattr(thing, "num_examples", 1))

        def call(own, *args, **kwargs):
            outermost = self.inside and not self.depth
            self.depth += 1
            try:
                result = base(own, *args, **kwargs)
            finally:
                self.depth -= 1
            if outermost:
                self.count(CALLS[name], rows(*args, **kwargs))
            if name == "hessian_products" and result is not None:
                if outermost:
                    self.found["hessian_products"] -= 1
                return lambda v: self.product(result, v, outermost)
            if name == "hessian" and outermost:
                self.found["hessian_products"] += result.shape[0] - 1
            return result

        return call

    def count(self, what, rows):
        self.found[what] += 1
        if what == "gradients":
            self.found["examples_seen"] += rows

    def product(self, product, v, counts):
        self.found["hessian_products"] += counts
        return product(v)

    def watch(self, monkeypatch):
        serve = FedConClient.serve

        def served(client, *args):
            self.inside = args[0].phase != "certify"
            try:
                return serve(client, *args)
            finally:
                self.inside = False

        monkeypatch.setattr(FedConClient, "serve", served)


CASES = [pytest.param(name, case, id=name) for name, case in FIRST.items()]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_history_counts_what_clients_call(monkeypatch, name, case):
    counter, plain = Counter(), case.problem()
    # An augmented Lagrangian's gradient is one, whatever constraints are in it.
    but = ("constraint_gradient",) if name == "fedproxal" else ()
    problem = copy.copy(plain)
    problem.objectives = [counter.of(f, but) for f in plain.objectives]
    made = strategy(name, case)
    for oracle in ("regularizer", "constraint"):
        if not isinstance(getattr(made, oracle, None), Zero | None):
            setattr(made, oracle, counter.of(getattr(made, oracle)))
            if getattr(problem, oracle, None) is not None:
                setattr(problem, oracle, getattr(made, oracle))
    counter.watch(monkeypatch)
    rounds = min(3, case.rounds)
    row = simulate(made, problem, rounds, evaluate_every=0).rows[-1]
    assert {n: row.get(n, 0) for n in COUNTS} == counter.found
    assert row["gradients"] > 0


@pytest.mark.parametrize(("name", "case"), CASES)
def test_engines_count_alike(name, case):
    runs = [
        simulate(strategy(name, case), case.problem(), min(3, case.rounds), engine=engine).rows
        for engine in ("local", "stacked")
    ]
    here, there = ([{n: row.get(n, 0) for n in COUNTS} for row in rows] for rows in runs)
    assert here == there


STEPS = {"client_lr": 0.1, "local_steps": 3}
PSI = L1(0.1)
BY_HAND = [  # 3 steps of all rows, of 20 in all, in each of 4 rounds; and of 2 rows, for 4 clients
    (FedAvg(**STEPS), None, {"gradients": 48, "examples_seen": 240}),
    (FedAvg(**STEPS, batch_size=2), None, {"gradients": 48, "examples_seen": 96}),
    (Scaffold(**{**STEPS, "local_steps": 2}, participation=Sample(count=2)), None,
     {"gradients": 16}),
    (FedMiD(PSI, **STEPS), PSI, {"gradients": 48, "examples_seen": 240, "proxes": 48}),
]  # fmt: skip


def unequal(psi=None):
    return squares((4, 6, 4, 6), regularizer=psi)


@pytest.mark.parametrize("engine", ["local", "stacked", "jax", "resumed"])
@pytest.mark.parametrize(("made", "psi", "expected"), BY_HAND)
def test_counts_by_hand(engine, made, psi, expected, tmp_path):
    more = {"evaluate_every": 4, "engine": engine}
    if engine == "jax":
        pytest.importorskip("jax")
    if engine == "resumed":
        more = {"run_dir": tmp_path, "resume": True}
        simulate(made, unequal(psi), 2, run_dir=tmp_path)
    row = simulate(made, unequal(psi), 4, **more).rows[-1]
    assert {n: row[n] for n in expected} == expected


def test_a_metric_of_that_name_stays_the_users():
    def evaluate(server_round, x):
        return {"gradients": -1.0}

    assert simulate(FedAvg(**STEPS), unequal(), 1, evaluate=evaluate).rows[-1]["gradients"] == -1.0


def test_solvers_of_many_clients_count_each_ones_own():
    rng = np.random.default_rng(1)
    data = [(rng.normal(size=(8, 3)), np.sign(rng.normal(size=8))) for _ in "ab"]
    problem = FederatedProblem([LogisticRegression(A, y, 0.1) for A, y in data])
    row = simulate(FedProx(proximal=1.0, local_solver="exact"), problem, 3).rows[-1]
    assert row["hessian_products"] > 0
    assert row["gradients"] + row["hessian_products"] == row["local_evaluations"]
    assert row["examples_seen"] == 8 * row["gradients"]


def test_what_a_round_holds_is_freed_when_it_is_over():
    """Not when Python looks for cycles: a round of few objects holds many large arrays."""
    run = OpenRun(avg(), q6())
    gc.collect()
    gc.disable()
    try:
        round_ = Round.begin(run.server)
        round_.take(run.answer(round_.next_request()))
        round_.finish()
        dispatch = weakref.ref(round_.dispatch)
        del round_
        assert dispatch() is None
    finally:
        gc.enable()


# --- certificates ---------------------------------------------------------------------------------


def test_gap_and_consensus_of_frank_wolfe():
    problem = l1ls()
    strategy = FedFW(problem.constraint, penalty=0.1)
    history = simulate(strategy, problem, 300, certificates=True, evaluate_every=50)
    x, gradient = history.x, problem.gradient(history.x)
    vertices = np.vstack([5 * np.eye(50), -5 * np.eye(50)])
    assert history["fw_gap"][-1] == pytest.approx(max((x - vertices) @ gradient), rel=1e-12)
    assert (history["fw_gap"] >= history["objective"] - problem.optimum.value).all()
    # In units in which each column has a mean square of 1: z = x / unit, and |unit| @ |z| <= 5.
    unit = np.mean([entry_curvatures(f) for f in problem.objectives], axis=0) ** -0.5
    point = x / unit - unit * gradient

    def step(threshold):
        return np.sign(point) * np.maximum(np.abs(point) - threshold * unit, 0)

    threshold = brentq(lambda t: unit @ np.abs(step(t)) - 5, 0, 1e3, xtol=1e-15, rtol=1e-15)
    assert history["kkt"][-1] == pytest.approx(np.linalg.norm(x / unit - step(threshold)), rel=1e-9)
    run = OpenRun(strategy, problem).play(300)
    spread = [np.linalg.norm(s.x - run.x) ** 2 for s in client_states(run)]
    assert history["consensus"][-1] == pytest.approx(np.sqrt(np.mean(spread)), rel=1e-12)


def test_residual_stops_a_composite_run():
    problem = q6_l1()
    strategy = FedDualAvg(problem.regularizer, client_lr=1 / 40, local_steps=1)
    history = simulate(
        strategy, problem, 6000, certificates=True, callbacks=[EarlyStopping(1e-6, "kkt")]
    )
    assert history.stopped
    assert history["kkt"][-1] <= 1e-6 < history["kkt"][-2]
    assert np.linalg.norm(history.x - problem.optimum.x) < 1e-5
    assert "fw_gap" not in history
    assert "consensus" not in history


def test_certificates_move_nothing_and_travel():
    problem = l1ls(6)
    strategy = FedFW(problem.constraint, penalty=0.1, participation=Sample(count=3))
    asked = simulate(strategy, problem, 30, certificates=True)
    calm = simulate(strategy, problem, 30)
    assert asked.x.tobytes() == calm.x.tobytes()
    assert np.array_equal(asked["uplink_bytes"], calm["uplink_bytes"])
    run = OpenRun(strategy, problem)
    engine, _ = wire_exchange(run)
    for server_round in range(30):
        run.round(engine)
        found = certify(run.server, engine)
        same = asked.rows[server_round]
        for name in ("kkt", "fw_gap"):
            assert found[name] == pytest.approx(same[name], rel=1e-12)
    assert found["consensus"] == pytest.approx(asked["consensus"][-1], rel=1e-12)
    assert run.x.tobytes() == calm.x.tobytes()


def test_a_missing_answer_is_no_certificate(caplog):
    """And no reason to end the run: the next one may be whole."""
    run = OpenRun(FedDualAvg(None, client_lr=0.01, local_steps=1), q6()).play(2)
    run.alter = lambda asked, reply: [] if asked.client == 3 else [reply]
    assert np.isnan(certify(run.server, run)["kkt"])
    assert "no certificate: no usable answer from 3" in caplog.text
    ball = l1ls(6)
    run = OpenRun(FedFW(ball.constraint, penalty=0.1), ball).play(2)
    run.alter = lambda asked, reply: [replace(reply, payload={"gradient": [np.full(50, 1e200)]})]
    found = certify(run.server, run)
    assert found.keys() == {"kkt", "fw_gap"}
    assert np.isnan([*found.values()]).all()
    stop = EarlyStopping(1.0, "kkt")
    assert [stop({"kkt": v}) for v in (np.nan, 0.5)] == [False, True]
