"""What a method cannot be given, be played on, or be asked of: refused, with what to do."""

from __future__ import annotations

import contract  # noqa: F401  (before the cases, which import it)
import numpy as np
import pytest
from cases.fedsgm import FIVE as SGM
from harness import OpenRun
from problems import (
    HALF,
    plain,
    q6,
    q6_l1,
    q6_limited,
    two_clients,
    two_groups,
    two_limited,
    two_own,
    two_walls,
)
from q6_runs import PSI, unknown

from flower_fedcon import Bernoulli, Buffered, FederatedProblem, Only, Sample, simulate
from flower_fedcon.aggregation import CoordinateMedian
from flower_fedcon.compressors import QSGD, Natural, RandK, TopK
from flower_fedcon.core.participation import Participation
from flower_fedcon.errors import ConfigError, FedConError, ParticipationError
from flower_fedcon.objectives import (
    GroupLossBounds,
    LeastSquares,
    LogisticRegression,
    Noisy,
    Quadratic,
)
from flower_fedcon.optimizers import Adam
from flower_fedcon.privacy import GaussianDP
from flower_fedcon.problems import facility
from flower_fedcon.regularizers import L1, MCP, ElasticNet, GroupLasso, Indicator, Zero
from flower_fedcon.runs.toml import parse_value
from flower_fedcon.schedules import AdaPGM, DeltaSGD, InverseSqrt
from flower_fedcon.sets import (
    AffineSubspace,
    Box,
    HalfSpace,
    Intersection,
    L1Ball,
    L2Ball,
    Polyhedron,
    Product,
    ShiftedSet,
    Simplex,
)
from flower_fedcon.strategies import (
    SDANE,
    TAMUNA,
    APDAInexact,
    AveragedFW,
    CFedDA,
    CompositeFL,
    DualFL,
    FastFedDA,
    FedAvg,
    FedDR,
    FedDualAvg,
    FedDyn,
    FedExProx,
    FedFW,
    FedFWPlus,
    FedLin,
    FedMiD,
    FedPD,
    FedProx,
    FedProxAL,
    FedSGM,
    FiveGCS,
    LoCoDL,
    MCFedDA,
    Scaffnew,
    Scaffold,
)

STEPS = {"client_lr": 0.1, "local_steps": 2}
ONE = {"client_lr": 0.1, "local_steps": 1}
NOISE = GaussianDP(clip=1.0, noise_multiplier=1.0, target_delta=1e-5)
MU = {"strong_convexity": 1.0}
DA = {**MU, "damping": 100.0, "local_steps": 5}


def played(strategy, problem=None):
    simulate(strategy, q6() if problem is None else problem, 1)


def opened(strategy, problem=None):
    """Refused although estimates may be asked for: outside `simulate` there are none."""
    OpenRun(strategy, unknown() if problem is None else problem)


def flat():
    """Two clients with mu = 0."""
    return FederatedProblem([LogisticRegression(np.array([[1.0, 2.0]]), np.array([1.0]))] * 2)


def rowless():
    """A client that counts no rows."""
    return FederatedProblem([plain(lambda x: 0.0, lambda x: x, shape=(2,))])


def without_batches():
    """A client that draws its rows, and cannot be asked for chosen ones."""
    more = {"num_examples": 4, "stochastic_gradient": lambda x, rng, batch_size: x}
    return FederatedProblem([plain(lambda x: 0.0, lambda x: x, **more)], x0=np.ones(2))


def noisy():
    return FederatedProblem([Noisy(f, 0.1) for f in q6().objectives])


def corner():
    clients = [Quadratic(np.eye(2), np.ones(2))]
    return FederatedProblem(clients, constraint=Simplex(), x0=np.array([1.0, 0.0]))


def outside():
    clients = [Quadratic(np.eye(3), np.ones(3))]
    return FederatedProblem(clients, constraint=L1Ball(1.0), x0=np.ones(3))


def entropy(psi, **more):
    return FedDualAvg(psi, **ONE, distance="entropy", **more)


def groups(*losses):
    """Clients with these losses of groups."""
    f = Quadratic([[1.0]], [0.0])
    bounds = [GroupLossBounds(f, [f if there else None for there in each], 0.0) for each in losses]
    return FederatedProblem(bounds, constraints="groups")


def dual_in_the_clients(form, **more):
    return DualFL(form=form, regularizer=L1(0.6), **more)


def sgm(**more):
    return FedSGM(**STEPS, tolerance=0.1, **more)


class Odd(Participation):
    """Cohorts of no known size."""

    def draw(self, num_clients, rng):
        return [0]

    def rate(self, num_clients):
        return 0.3


CONFIG = [
    # --- constants that clients do not state
    (lambda: opened(FedLin(local_steps=2)), "smoothness L is unknown: give client_lr, about 1/"),
    (lambda: opened(Scaffnew()), "smoothness L is unknown: give client_lr"),
    (lambda: opened(LoCoDL(**MU)), "L is unknown: give client_lr, less than 2/L"),
    (lambda: opened(LoCoDL(client_lr=0.1)), "LoCoDL needs strong_convexity > 0"),
    (lambda: opened(APDAInexact(primal_lr=0.1)), "smoothness L is unknown: give dual_damping"),
    (lambda: opened(FedExProx(step_size=1.0)),
     "smoothness L_i is unknown: give extrapolation a number"),
    (lambda: opened(SDANE()), "smoothness L is unknown: give proximal, from delta"),
    (lambda: played(FiveGCS(), flat()),
     r"5GCS needs .* > 0, and clients 0, 1 state mu = 0\. Give each objective a square"),
    (lambda: opened(FiveGCS(strong_convexity=0.1)), "give smoothness, or primal_lr"),
    (lambda: opened(FastFedDA(Zero(), **MU, local_steps=1, weight_power=2.0)),
     "L is unknown: give weight_shift, about 4 L/mu"),
    (lambda: opened(FastFedDA(Zero(), **MU, local_steps=1, weight_power=2.0, weight_shift=3.0)),
     "give damping, about 5 L"),
    *((lambda kind=kind: opened(kind(Zero(), **MU, local_steps=3)),
       f"is unknown: give damping, about {multiple} L")
      for kind, multiple in ((FastFedDA, 5), (CFedDA, 15), (MCFedDA, 15))),
    (lambda: played(DualFL(), unknown()),
     "modulus is unknown: give strong_convexity, or regularization"),
    (lambda: played(DualFL(), FederatedProblem([Quadratic(np.diag([1.0, 0.0]), np.ones(2))])),
     r"client 0 states mu = 0\. Give each objective a square \(such as l2=0.01\), or regulariz"),
    (lambda: opened(FedSGM(tolerance=0.1), facility(clients=2, columns=3)),
     "gradients at the start are unknown: give lipschitz"),
    # --- steps
    (lambda: FedAvg(client_lr=0.1, local_steps=1, regularizer=L1Ball(1.0)).initialize(np.zeros(2)),
     "no subgradient"),
    (lambda: FedMiD("l1", **ONE), "a regularizer must be None"),
    (lambda: FedDualAvg(L1(1.0), client_lr=0.1, local_steps=2.5),
     "local_steps must be a whole number >= 1, got 2.5"),
    (lambda: played(FedAvg(**ONE, batch_size=2), rowless()),
     "does not state its number of rows"),
    (lambda: FedAvg(**STEPS, clip=0.0), "clip must be finite and > 0, got 0"),
    (lambda: sgm(clip=1.0), "FedSGM takes no clip=1.0: its bound on the violation"),
    (lambda: FedDyn(proximal=1.0, clip=1.0), "FedDyn takes no clip=1.0: .*local_solver=SGD"),
    (lambda: FedProx(proximal=1.0, local_solver="exakt"),
     "unknown local solver 'exakt': did you mean 'exact'"),
    *((lambda make=make: make(InverseSqrt(0.1)),
       r"takes no schedule for client_lr, got Inverse.*: \w+") for make in (
        lambda rate: CompositeFL(PSI, client_lr=rate, local_steps=2),
        lambda rate: FedSGM(client_lr=rate, local_steps=2, tolerance=0.1),
        lambda rate: LoCoDL(client_lr=rate),
        lambda rate: Scaffnew(client_lr=rate),
        lambda rate: TAMUNA(client_lr=rate),
    )),
    (lambda: CompositeFL(L1(0.1), **STEPS, server_optimizer=Adam()),
     "`fedcon info Adam` says which methods take it"),
    (lambda: CompositeFL(L1(0.1), client_lr=InverseSqrt(0.1), local_steps=2),
     "`fedcon info InverseSqrt` says which methods take"),
    # with lengths T_i of the clients' own, delta_i = -T_i s at the optimum, and c_i moves
    (lambda: CompositeFL(L1(0.1), client_lr="adaptive"), "T_i"),
    (lambda: Scaffold(client_lr="adaptive"), "finds its own steps"),
    (lambda: FedDualAvg(L1(1.0), client_lr=AdaPGM()), "finds its own steps"),
    (lambda: FedAvg(client_lr="adaptive", local_steps=1), "at least 2"),
    (lambda: DeltaSGD(initial=0.0), "initial"),
    (lambda: FedMiD(MCP(1.0, 3.0), client_lr="adaptive", local_steps=3), "up to inf"),
    *((lambda engine=engine: simulate(FedAvg(client_lr="adaptive"), noisy(), 1, engine=engine),
       "noise") for engine in ("local", "stacked")),
    (lambda: played(FedAvg(client_lr=DeltaSGD(0.1), batch_size=2), without_batches()),
     "batch_gradient"),
    (lambda: FedPD(step_size="balanced", skip_probability=0.5), "or skip_probability=0"),
    (lambda: FedDyn(proximal="balancing"), "must be a number"),
    (lambda: FedDR(MCP(1.0, 3.0), step_size="balanced"), "up to inf"),
    (lambda: played(FedPD(step_size="balanced", privacy=NOISE)), "no noise protects"),
    *((lambda kind=kind, more=more: kind(**STEPS, **more), words) for kind in (FedAvg, Scaffold)
      for more, words in (
        ({"window": 0}, "window must be a whole number >= 1, got 0"),
        ({"window": 2.5}, "window must be a whole number >= 1, got 2.5"),
        ({"amplification": 0}, "amplification must be finite and > 0, got 0"),
    )),
    # --- control variates
    (lambda: LoCoDL(uplink_compressor=TopK(count=2)),
     "uplink_compressor must be unbiased, such as RandK"),
    (lambda: LoCoDL(share=1.0), "share must be in"),
    (lambda: LoCoDL(communication_probability=1.5), "communication_probability must be in"),
    (lambda: APDAInexact(primal_lr=0.1, batch_size=2), "takes no batch_size"),
    *((lambda p=p: Scaffnew(communication_probability=p), "communication_probability must be")
      for p in (0.0, 1.5)),
    *((lambda q=q: Scaffnew(stop_probability=q), words) for q, words in (
        (1.5, r"stop_probability must be in \[0, 1\], got 1.5"),
        ([0.5, -0.1], "stop_probability must be finite and >= 0, got -0.1"),
        ("auto", "stop_probability must be one of 'rule', got 'auto'"),
    )),
    (lambda: played(Scaffnew(stop_probability=[0.1, 0.2])),
     "one for each of 6 clients, got 2 numbers"),
    (lambda: Scaffnew(stop_probability="rule", batch_size=2),
     "no stop_probability='rule' with batch_size=2: .* noisy. Leave one of them out"),
    (lambda: opened(Scaffnew(client_lr=0.1, stop_probability="rule")),
     r"L is unknown: give stop_probability, numbers in \[0, 1\]"),
    (lambda: Scaffnew(refresh_probability=0.5), "is for minibatches: give batch_size, or leave it"),
    *((lambda s=s: Scaffnew(refresh_probability=s, batch_size=2), words) for s, words in (
        (0.0, "refresh_probability must be finite and > 0, got 0"),
        (1.5, r"refresh_probability must be in \(0, 1\], got 1.5"),
        ("auto", "refresh_probability must be one of 'rule', got 'auto'"),
    )),
    (lambda: played(Scaffnew(client_lr=0.1, batch_size=2, refresh_probability=0.5),
                    without_batches()), "refresh_probability=0.5 .*batch_gradient.*Leave it out"),
    (lambda: played(TAMUNA(copies=7)), "copies must be from 2 to 6, the size of a cohort, got 7"),
    (lambda: TAMUNA(copies=1), "copies must be a whole number >= 2, got 1"),
    (lambda: TAMUNA(communication_probability=1.5), r"must be in \(0, 1\], got 1.5"),
    (lambda: FiveGCS(batch_size=4), "5GCS takes no batch_size, got 4.*GradientDescent"),
    (lambda: played(FiveGCS(dual_lr=0.1)), "dual_lr must be at least mu/N = 0.167, got 0.1"),
    (lambda: played(FiveGCS(primal_lr=1.0)), "a smaller primal_lr"),
    # --- proximal points and splittings
    (lambda: FedExProx(step_size=1.0, extrapolation="gradient"),
     "extrapolation must be one of 'constant', 'diversity'"),
    (lambda: FedExProx(step_size=1.0, extrapolation=0.0),
     "extrapolation must be finite and > 0, got 0.0"),
    (lambda: FedExProx(step_size=1.0, infimum=float("nan")), "infimum must be finite, got nan"),
    (lambda: FedExProx(step_size=1.0, max_extrapolation=-1.0),
     "max_extrapolation must be finite and > 0"),
    (lambda: played(SDANE(privacy=NOISE, **HALF)), "private cohorts are drawn anew in each round"),
    (lambda: SDANE(form="fast"), "form must be"),
    (lambda: FedPD(step_size=0.1, skip_probability=1),
     r"skip_probability must be in \[0, 1\), got 1"),
    *((lambda r=r: FedDR(None, step_size=0.1, relaxation=r), "relaxation must be")
      for r in (0.0, 2.1)),
    (lambda: FederatedProblem([Quadratic([[1.0]], [3.0])], constraints="all"),
     "constraints must be one of 'mean', 'each', 'groups', got"),
    # --- dual averaging
    (lambda: entropy(GroupLasso(0.1, 1)), "has no closed form, and no equation in one unknown"),
    (lambda: entropy(Simplex(), server_prox_only=True), "needs server_prox_only=False"),
    (lambda: played(entropy(corner().constraint), corner()),
     "starts from a vector with entries above 0"),
    (lambda: FastFedDA(Zero(), **MU, local_steps=1, weight_power=2.0, output="mean"),
     "output must be one of 'last', 'average'"),
    *((lambda psi=psi: CFedDA(psi, **DA, radius=1.0),
       "a radius needs a regularizer with a norm ball")
      for psi in (Zero(), ElasticNet(1.0, 1.0), L1Ball(1.0), L1([1.0, 2.0]))),
    *((lambda psi=psi: MCFedDA(psi, **DA, stages=[(1, 1.0, 3)]), "or leave the radius out")
      for psi in (Zero(), ElasticNet(1.0, 1.0), L1Ball(1.0), L1([1.0, 2.0]))),
    *((lambda stages=stages: MCFedDA(L1(0.6), **DA, stages=stages), words) for stages, words in (
        ([], "must be a list of"),
        ("4, 2, 1", "must be a list of"),
        ([4, 2, 1], r"1 must be \(multiple, radius, rounds\), got 4"),
        ([(1, None)], r"1 must be \(multiple, radius, rounds\)"),
        ([(2, None, 5)], r"must end in 1.*got \[2.0\]"),
        ([(1, None, 5), (2, None, 5), (1, None, 5)], "must not increase"),
        ([(2, None, 5), (0.5, None, 5)], "must end in 1"),
        ([(0, None, 5), (1, None, 5)], "multiple 1 must be finite and > 0"),
        ([(2, -1, 5), (1, None, 5)], "radius 1 must be finite and > 0, got -1"),
        ([(2, None, 5), (1, None, 0)], "rounds 2 must be a whole number >= 1"),
    )),
    # --- vertices
    *((lambda kind=kind, set_=set_, more=more: kind(set_, penalty=1.0, **more), words)
      for kind in (FedFW, FedFWPlus) for set_, more, words in (
        (None, {}, "needs a constraint set"),
        (L1Ball(1.0), {"schedule": "concave"}, "schedule must be one of 'convex', 'nonconvex'"),
        (L1Ball(1.0), {"batch_size": 3}, "give both"),
        (L1Ball(1.0), {"gradient": "stochastic"}, "give both"),
    )),
    *((lambda kind=kind: played(kind(L1Ball(1.0), penalty=1.0), outside()),
       "x0 is outside L1Ball.*constraint.project") for kind in (FedFW, FedFWPlus)),
    # --- DualFL
    (lambda: played(DualFL(strong_convexity=1.01)),
     "strong_convexity must be at most 1, the clients' mu plus"),
    (lambda: played(DualFL(momentum=1.5)), r"momentum must be at most 1, got 1\.5"),
    (lambda: played(DualFL(momentum=1.5, **MU), unknown()),
     r"momentum must be at most 1, got 1\.5"),
    *((lambda form=form, wrong=wrong: played(dual_in_the_clients(form, **wrong), q6_l1()),
       "in the clients' problems DualFL")
      for form in ("paper", "block") for wrong in ({"momentum": 0.01}, {"stopping": "gap"})),
    *((lambda wrong=wrong: played(DualFL(form="block", **wrong)),
       r"with form=.block. DualFL .*: use form=.accelerated")
      for wrong in ({"momentum": 0.01}, {"stopping": "gap"})),
    (lambda: played(DualFL(form="accelerated", momentum=0.06)),
     "momentum must be at most nu/L = 0.05, got 0.06"),
    (lambda: DualFL(form="fast"), "form must be one of 'paper', 'accelerated', 'block'"),
    (lambda: DualFL(reply_rate=1.5), r"reply_rate must be in \(0, 1\], got 1.5"),
    (lambda: DualFL(reply_rate=0.0), "reply_rate must be finite and > 0"),
    (lambda: played(DualFL(reply_rate=0.5, form="paper")),
     "reply_rate is for form=.accelerated., got 0.5 with form='paper'"),
    (lambda: DualFL(batch_size=5), "takes no batch_size, got 5"),
    (lambda: DualFL(stopping="energy"), "stopping must be one of 'solver', 'gap'"),
    (lambda: DualFL(gap_gamma=0), "gap_gamma must be finite and > 0"),
    (lambda: DualFL(regularization=-1), "regularization must be finite and >= 0"),
    # --- FedSGM, and constraints that are functions
    *((lambda more=more: played(FedSGM(**{**SGM, **more}), q6_limited()), words)
      for more, words in (
        ({"switching": "medium"}, "switching must be one of 'soft', 'hard', got 'medium'"),
        ({"tolerance": 0}, "tolerance must be finite and > 0, got 0"),
        ({"sharpness": -1}, "sharpness must be finite and > 0, got -1"),
        ({"uplink": "topk"}, r"a compressor is Identity\(\), RandK.*got 'topk'"),
        ({"uplink": RandK(count=9)}, r"RandK\(count=9\) is more than the model's 8 entries"),
        ({"uplink": TopK(count=9)}, r"TopK\(count=9\) is more than the model's 8 entries"),
        ({"downlink": QSGD(levels=2)}, r"contractive.*QSGD\(levels=2\).*1.41 .*more levels"),
    )),
    (lambda: played(FedSGM(local_steps=1, distance=1.0, lipschitz=1.0, uplink=TopK(count=1)),
                    facility(clients=2, columns=3)),
     "without error feedback: give client_lr and tolerance"),
    (lambda: played(FedSGM(**SGM)),
     r"FedSGM needs objectives with a constraint.*no constraint_value\(x\): use Neyman"),
    (lambda: sgm(constraints="all"),
     "constraints must be one of 'mean', 'each', 'groups', got 'all'"),
    (lambda: sgm(constraints="groups"), "groups is the number of constraints.*groups=None"),
    (lambda: sgm(groups=3), "belongs to constraints='groups', got constraints='mean', groups=3"),
    (lambda: sgm(constraints="groups", groups=0), "groups must be a whole number >= 1, got 0"),
    (lambda: sgm(constraints="each", aggregation=CoordinateMedian()), "only for the mean"),
    (lambda: FederatedProblem(two_limited().objectives, constraints="groups"),
     r"ignores the constraints \(constraint_value\) of clients 0, 1"),
    (lambda: groups([1], [1, 0]), r"of one shape \(m,\) on all clients.*\(1,\), \(2,\)"),
    (lambda: groups([1, 0], [1, 0]), "the group 1 has no rows on any client"),
    # --- who takes part
    (lambda: played(FedAvg(**ONE, participation=Only(6))),
     r"Only\(client=6\): there are 6 clients"),
    (lambda: Only(-1), "must be a whole number >= 0"),
    # --- names, and what stands without one
    (lambda: FastFedDA(), "FastFedDA needs regularizer: `fedcon info FastFedDA`"),
    (lambda: FedFW(penalty=1.0), "FedFW needs constraint"),
    (lambda: DualFL(L1(0.1)), r"DualFL takes no argument without a name, got L1\(weight=0.1\)"),
    (lambda: DualFL(L1(0.1)), r"write DualFL\(regularizer=L1\(weight=0.1\)\), with a name of"),
    (lambda: Scaffold(L1(0.1)), r"Scaffold takes no regularizer, got L1.*: its problem is m"),
    (lambda: Scaffold(L1Ball(1.0)), "Scaffold takes no constraint, got L1Ball"),
    (lambda: FedFW(L1Ball(1.0), 3.0), "FedFW takes constraint without a name, got 3.0 too"),
    (lambda: RandK(fraction=0.1, scaled="no"), r"RandK\(scaled\) must be True or False"),
    (lambda: parse_value("{fraction = .2}"), "is not valid TOML.*write numbers as 0.2"),
    (lambda: parse_value("[1, 2"), "is not valid TOML"),
    (lambda: WEDGE.check_shape((2, 4)), r"give it an array of shape \(m, 2, 4\)"),
    *((lambda rate=rate: Scaffold(client_lr=rate, local_steps=2),
       r"a schedule of flower_fedcon\.schedules, such as") for rate in ("InverseSqrt", len)),
    *((lambda rule=rule: rule.compress(np.full(4, 1e308), np.random.default_rng(0)),
       "If the run diverges, use smaller steps") for rule in (QSGD(levels=3), Natural())),
]  # fmt: skip
COHORTS = [
    (lambda: DualFL(participation=Only(0)), "DualFL keeps state on every client"),
    (lambda: played(DualFL(participation=Sample(count=3), form="paper")),
     r"DualFL needs everyone in its paper's form, got Sample\(count=3.*: use form=.accelerated"),
    (lambda: played(TAMUNA(), FederatedProblem(two_clients().objectives[:1])),
     "cohorts of one size of at least 2"),
    *((lambda rule=rule: played(CompositeFL(PSI, **STEPS, participation=rule), q6_l1()),
       "fixed size of at least 2, got .*use Sample")
      for rule in (Sample(count=1), Sample(fraction=0.2), Bernoulli(0.5))),
    (lambda: played(CompositeFL(PSI, **STEPS, participation=Sample(count=2), mirror=False),
                    q6_l1()), "needs its mirror for cohorts.*use mirror=True"),
    (lambda: played(FedPD(step_size=0.1, participation=Sample(count=3))),
     "FedPD needs every client.*what all clients hol"),
    (lambda: played(FiveGCS(participation=Bernoulli(0.5))),
     "5GCS needs cohorts of one size, got Bernoulli"),
    (lambda: played(FiveGCS(participation=Odd())), "cohorts of one size"),
    *((lambda kind=kind, more=more: opened(kind(**STEPS, **more, participation=Buffered())), words)
      for kind in (FedAvg, Scaffold) for more, words in (
        ({"window": 5}, "takes no window=5 with Buffered.*counts rounds of cohorts.*Leave window"),
        ({"amplification": 1.5}, "takes no amplification=1.5 with Buffered.*over rounds of coh"),
    )),
]  # fmt: skip
MISMATCHES = [
    (lambda: played(FedProxAL(coupling=1.0), q6_limited()),
     "handles each client's own.*give.*constraints=.each"),
    (lambda: played(FedAvg(**ONE), two_walls()), "FedAvg.*ignores each client's own.*FedProxAL"),
    (lambda: played(sgm(), two_own()), "keeps.*mean|has each.*give FedSGM constraints='each'"),
    (lambda: played(sgm(constraints="each"), two_groups([0.0, 0.0])),
     "give FedSGM constraints='groups', groups=2"),
    (lambda: played(sgm(constraints="groups", groups=3), two_groups([0.0, 0.0])),
     "this client has 2 groups.*groups=3"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "says"), CONFIG)
def test_a_method_says_what_it_cannot_be_given(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize(("make", "says"), COHORTS)
def test_a_method_says_which_cohorts_it_needs(make, says):
    with pytest.raises(ParticipationError, match=says):
        make()


@pytest.mark.parametrize(("make", "says"), MISMATCHES)
def test_problem_and_strategy_must_mean_the_same(make, says):
    with pytest.raises(FedConError, match=says):
        make()


# --- sets without an oracle -----------------------------------------------------------------------

D = 8
BOTH = Intersection((L2Ball(0.3), Box(-0.1, 0.1)))
WEDGE = Polyhedron(np.eye(D), np.full(D, 0.1))
RNG = np.random.default_rng(1)
OBJECTIVES = [LeastSquares(RNG.normal(size=(10, D)), RNG.normal(size=10)) for _ in range(3)]
NONE = [
    BOTH,
    WEDGE,
    HalfSpace(np.ones(D), 1.0),
    AffineSubspace(np.ones((1, D)), np.ones(1)),
    ShiftedSet(BOTH, 0.1),
    Product(((L1Ball(1.0), (3,)), (BOTH, (5,)))),
]


@pytest.mark.parametrize("constraint", NONE, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("method", [FedFW, FedFWPlus, AveragedFW])
def test_frank_wolfe_methods_refuse_sets_without_an_oracle(method, constraint):
    assert constraint.without_oracle
    with pytest.raises(ConfigError, match=r"steps to vertices.*no linear minimisation oracle"):
        method(constraint, **({} if method is AveragedFW else {"penalty": 0.1}))
    with pytest.raises(ConfigError, match="no linear minimisation oracle"):
        constraint.lmo(np.ones(D))


def test_a_bounded_polyhedron_has_an_oracle():
    cube = Polyhedron(np.vstack([np.eye(D), -np.eye(D)]), np.full(2 * D, 0.1))
    assert cube.without_oracle == ""
    assert FedFW(cube, penalty=0.1).constraint is cube


@pytest.mark.parametrize("constraint", NONE[:4], ids=lambda c: type(c).__name__)
def test_certificates_do_without_the_gap_where_there_is_no_oracle(constraint):
    problem = FederatedProblem(OBJECTIVES, regularizer=Indicator(constraint))
    strategy = FedDR(Indicator(constraint), step_size=1.0)
    history = simulate(strategy, problem, 40, certificates=True, evaluate_every=20)
    assert "fw_gap" not in history.rows[-1]
    assert history["kkt"][-1] < 0.1 * history["kkt"][0] or history["kkt"][-1] < 1e-6


def test_a_constructor_of_ones_own_may_hand_on_what_has_no_name():
    class Pulled(FedMiD):
        def __init__(self, *args, pull=0.5, **steps):
            super().__init__(*args, **steps)
            self.pull = pull

    made = Pulled(L1(0.1), client_lr=0.1, local_steps=2)
    assert (made.regularizer.weight, made.pull) == (0.1, 0.5)
    with pytest.raises(ConfigError, match=r"Pulled takes regularizer without a name, got 3\.0 too"):
        Pulled(L1(0.1), 3.0, client_lr=0.1, local_steps=2)
