"""MCFedDA: what the contract test holds it to."""

from __future__ import annotations

from contract import Case, Contract
from problems import HALF, q6_l1, two_clients

from flower_fedcon.regularizers import L1
from flower_fedcon.strategies import MCFedDA

ONE, FIVE = ({"strong_convexity": 1.0, "local_steps": k} for k in (1, 5))
STAGES = {"stages": [(4.0, 2.0, 50), (2.0, 1.0, 50), (1.0, None, 100)]}


def mcfedda():
    # mu = 1, gamma = 10, K = 2, psi = .5 |w|, doubled in the first round; z = 11, A = 2, c = 11.
    # 1: g = -2, v = soft(13, 2)/11 = 1, g = -4;  2: g = 2, v = 7/11, g = 2 + 18/11 = 40/11
    # z = 11 + 2/11, w = (9 + 2/11)/11 = 101/121
    # Second stage, from w_0 = 101/121: z = 101/11.  1: g = 202/121 - 4 = -282/121,
    #   v = (1111 + 282 - 121)/1331 = 1272/1331, g = (-3102 - 2780)/1331 = -5882/1331
    # 2: g = 222/121, v = (1111 - 222 - 121)/1331 = 768/1331, g = (2442 + 2099)/1331 = 4541/1331
    # z = 101/11 + 1341/2662, w = (z - 1)/11 = 23121/29282
    problem = two_clients(regularizer=L1(0.5))
    strategy = MCFedDA(
        problem.regularizer,
        strong_convexity=1.0,
        damping=10.0,
        local_steps=2,
        stages=[(2.0, None, 1), (1.0, None, 1)],
    )
    return strategy, problem, [101 / 121, 23121 / 29282]


def invariant(run):
    """The stage follows from the round, and at its start nothing but w is remembered."""
    s, (stage, inner) = run.server.strategy, run.state
    stages = s.constants.stages
    begins = [sum(x.rounds for x in stages[:k]) for k in range(len(stages))]
    done = run.server.round
    assert stage == max(k for k, begin in enumerate(begins) if begin <= done)
    assert inner.r == done - begins[stage] + 1
    if inner.r == 1:
        pull = s.damping + s.strong_convexity / 2 * s.local_steps
        assert (inner.z == pull * inner.w).all()
        assert (inner.anchor == inner.w).all()
        assert (inner.total == inner.w).all()
    radius = stages[stage].radius
    if radius is not None:
        assert abs(inner.w - inner.anchor).sum() <= radius * (1 + 1e-12)


CONTRACT = Contract(
    cases=[
        Case("one step", q6_l1, {**ONE, **STAGES}, 2100, 0, 1e-10),
        Case("five steps", q6_l1, {**FIVE, **STAGES}, 2100, 1.0e-3, 2.0e-3),
        Case("default stages", q6_l1, ONE, 2666, 0, 1e-10),
    ],
    sampled=[Case("half", q6_l1, {**ONE, **STAGES, **HALF}, 2000, 0, 0.05)],
    first_rounds=[mcfedda],
    small={"strong_convexity": 1.0, "damping": 30.0, "local_steps": 2},
    oracle="regularizer",
    invariant=invariant,
)
