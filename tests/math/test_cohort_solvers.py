"""Local solvers of a cohort: each client's solution is that of its problem alone."""

import numpy as np
import pytest

from flower_fedcon.clients.families.dual import Certified
from flower_fedcon.errors import ConfigError
from flower_fedcon.objectives import (
    LeastSquares,
    LogisticRegression,
    PoissonRegression,
    Quadratic,
    Scaled,
    SoftmaxRegression,
)
from flower_fedcon.objectives.cohorts import stack
from flower_fedcon.regularizers import L1, ElasticNet, GroupLasso
from flower_fedcon.solvers import (
    AOGM,
    LBFGS,
    Exact,
    GradientDescent,
    LocalProblem,
    quasi_newton,
    served,
)
from flower_fedcon.solvers.problem import ClientsError
from flower_fedcon.solvers.served import CohortSolver, ServedClients

N = 7
SOLVERS = [
    Exact(),
    AOGM(),
    AOGM(restart="function", over_step=False),
    AOGM(restart=None, backtracking=False),
    AOGM(rule="energy", tolerance=1e-6),
    GradientDescent(tolerance=1e-11),
    GradientDescent(steps=7, lr=0.05),
    LBFGS(),
]
# Objectives, psi, type, and which arrays are one model's, the same for all clients.
CASES = {
    "quadratic": ("quadratic", None, np.float64, ()),
    "least squares, L1": ("least squares", L1(0.1), np.float64, ()),
    "wide, all terms shared": ("wide", None, np.float64, ("start", "linear", "center")),
    "scaled": ("scaled", None, np.float64, ()),
    "logistic, start and center shared": ("logistic", None, np.float64, ("start", "center")),
    "logistic, elastic net": ("logistic", ElasticNet(0.1, 0.2), np.float64, ("center",)),
    "intercept": ("intercept", None, np.float64, ()),
    "softmax": ("softmax", None, np.float64, ()),
    "softmax, one prox at a time": ("softmax", GroupLasso, np.float64, ()),
    "poisson": ("poisson", None, np.float64, ("start",)),
    "float32": ("quadratic", None, np.float32, ()),
    "logistic in float32": ("logistic", None, np.float32, ()),
}


def objectives(kind, dtype=np.float64):
    """Clients of 12 rows and 6 unknowns (5 rows: "wide"), all different in scale and curvature."""
    rng, found = np.random.default_rng(4), []
    for j in range(N):
        rows = 5 if kind == "wide" else 12
        A = ((1 + 0.15 * j) * rng.standard_normal((rows, 6))).astype(dtype)
        b = rng.standard_normal(rows).astype(dtype)
        y = np.where(b > 0, 1, -1)
        if kind == "quadratic":
            found.append(Quadratic(A.T @ A / rows + np.eye(6, dtype=dtype), 2 * b[:6]))
        elif kind in ("least squares", "wide"):
            found.append(LeastSquares(A, b, scale=1.0 + j % 3))
        elif kind == "scaled":
            found.append(Scaled(LogisticRegression(A, y), 0.5 + j))
        elif kind == "logistic":
            found.append(LogisticRegression(A, y, l2=0.1 * (j % 2)))
        elif kind == "poisson":
            found.append(PoissonRegression(0.3 * A, rng.integers(0, 4, rows), l2=0.1))
        elif kind == "intercept":
            found.append(LogisticRegression(A[:, :5], y, l2=0.1, intercept=True))
        else:
            found.append(SoftmaxRegression(A[:, :2], rng.integers(0, 3, rows), 3, l2=0.1 * (j % 2)))
    return found


def given(parts, places=None, **terms):
    """Return the problem of some clients of a stack, for `CohortSolver`, and each one's own."""
    places = np.arange(len(parts)) if places is None else np.array(places)
    served = ServedClients(stack(parts), [parts[place] for place in places], places)
    many = LocalProblem(served, **terms)
    axes = len(parts[0].shape)

    def own(term, i):
        return term[i] if isinstance(term, np.ndarray) and term.ndim > axes else term

    each = [
        LocalProblem(parts[place], **{name: own(term, i) for name, term in terms.items()})
        for i, place in enumerate(places)
    ]
    return many, each


def terms(shape, dtype=np.float64, seed=1):
    rng = np.random.default_rng(seed)
    start, linear, center = rng.standard_normal((3, N, *shape)).astype(dtype)
    return {"start": start, "linear": 0.3 * linear, "shift": 0.5, "center": center}


def alike(found, each, solver, stop=None, tolerance=1e-9, counts=True):
    """Assert that every client's solution is that of the solver of one client."""
    for i, problem in enumerate(each):
        own = None if stop is None else stop(i)
        want = solver.solve(problem, stop=own)
        scale = max(1.0, float(np.abs(want.x).max()))
        assert found.x[i].dtype == want.x.dtype
        np.testing.assert_allclose(found.x[i], want.x, rtol=0, atol=tolerance * scale)
        if not counts:
            continue  # rounding decides
        assert found.converged[i] == want.converged
        if isinstance(solver, LBFGS):
            continue  # another line search
        if getattr(solver, "restart", None) == "function":
            continue  # near the minimiser rounding decides when to restart
        # Where a test is decided by rounding, one of the two may go a little further.
        slack = 3 + 0.15 * want.iterations
        assert abs(int(found.iterations[i]) - want.iterations) <= slack
        assert abs(int(found.evaluations[i]) - want.evaluations) <= 3 * slack + 8
        if isinstance(solver, AOGM):
            assert abs(int(found.trials[i]) - want.trials) <= 3 * slack + 8


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_the_solutions_of_one_at_a_time(solver, case):
    kind, psi, dtype, shared = CASES[case]
    parts = objectives(kind, dtype)
    shape = parts[0].shape
    if psi is GroupLasso:
        psi = GroupLasso(0.1, np.arange(6).reshape(shape) % 2)
    if kind == "poisson" and getattr(solver, "backtracking", True) is False:
        pytest.skip("it has no smoothness")
    if psi is not None and isinstance(solver, LBFGS):
        pytest.skip("it takes no regularizer")
    own = {k: t[0] if k in shared else t for k, t in terms(shape, dtype).items()}
    many, each = given(parts, **own, regularizer=psi)
    found = CohortSolver(solver).solve(many)
    single = dtype is np.float32
    alike(found, each, solver, tolerance=1e-4 if single else 1e-9, counts=not single)
    if psi is not None:
        for x, problem in zip(found.x, each, strict=True):
            assert np.array_equal(x == 0, solver.solve(problem).x == 0)


def test_few_iterations_do_not_converge():
    parts = objectives("logistic")
    capped = CohortSolver(AOGM(max_iterations=3)).solve(given(parts, **terms((6,)))[0])
    assert not capped.converged.any()
    assert (capped.iterations == 3).all()


@pytest.mark.parametrize("kind", ["least squares", "logistic", "softmax"])
@pytest.mark.parametrize("solver", [Exact(), AOGM(), LBFGS()], ids=repr)
def test_a_solution_does_not_depend_on_the_others(solver, kind, monkeypatch):
    parts = objectives(kind)
    all_terms = terms(parts[0].shape)
    whole = CohortSolver(solver).solve(given(parts, **all_terms)[0]).x
    for places in ([3], [0, 2, 5], [4, 5, 6]):
        some = {k: t[places] if isinstance(t, np.ndarray) else t for k, t in all_terms.items()}
        found = CohortSolver(solver).solve(given(parts, places, **some)[0]).x
        np.testing.assert_allclose(found, whole[places], rtol=0, atol=1e-11)
    monkeypatch.setattr(served, "_TOGETHER", 150)  # two clients together
    found = CohortSolver(solver).solve(given(parts, **all_terms)[0]).x
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-11)


@pytest.mark.parametrize("solver", [Exact(), AOGM(), LBFGS()], ids=repr)
def test_stopping_rules_are_each_clients_own(solver):
    parts = objectives("logistic")
    some = terms((6,))
    many, each = given(parts, **some)
    rule = Certified(some["linear"], 1e-3, 1)
    found = CohortSolver(solver).solve(many, stop=rule)
    if not isinstance(solver, LBFGS):  # whose way there is another
        alike(found, each, solver, stop=lambda i: Certified(some["linear"][i], 1e-3, 1))
    full = CohortSolver(solver).solve(many)
    assert (found.evaluations < full.evaluations).all()
    lengths = [np.linalg.norm(p.gradient(x)) for p, x in zip(each, found.x, strict=True)]
    assert 1e-9 < max(lengths) <= 1e-3


@pytest.mark.parametrize(
    "solver", [Exact(), AOGM(), GradientDescent(tolerance=1e-9, lr=0.1), LBFGS()]
)
def test_who_diverges_is_named_and_spoils_nobody(solver):
    parts = objectives("quadratic")
    parts[2] = Quadratic(np.diag([1.0, -30.0, 1.0, 1.0, 1.0, 1.0]), np.zeros(6))
    many, each = given(parts, start=np.ones((N, 6)))
    with pytest.raises(ClientsError, match="diverged") as told:
        CohortSolver(solver).solve(many)
    assert list(told.value.errors) == [2]
    with pytest.raises(type(told.value.errors[2]), match="diverged"):
        solver.solve(each[2])
    rest = [0, 1, 3, 4, 5, 6]
    found = CohortSolver(solver).solve(given(parts, rest, start=np.ones((6, 6)))[0])
    alike(found, [each[i] for i in rest], solver)


def test_lbfgs_below_rounding_is_for_aogm(monkeypatch):
    """Where no step is good any more, and no sooner."""
    parts, handed = objectives("logistic"), []
    many, each = given(parts, **terms((6,)))
    own = quasi_newton.finish
    monkeypatch.setattr(quasi_newton, "finish", lambda *a: handed.append(a) or own(*a))
    CohortSolver(LBFGS()).solve(many)
    assert not handed
    solver = LBFGS(tolerance=1e-18)
    monkeypatch.setattr(quasi_newton, "target", lambda *a: np.full(N, 1e-17))
    monkeypatch.setattr(LocalProblem, "rounding", lambda problem, x: np.zeros(len(x)))
    found = CohortSolver(solver).solve(many)
    assert handed
    lengths = [np.linalg.norm(p.gradient(x)) for p, x in zip(each, found.x, strict=True)]
    assert max(lengths) <= 1e-14


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1.0, 100.0, 1e6])
def test_lbfgs_does_not_go_in_circles(dtype, size):
    """Where the terms are so large that rounding is more than the tolerance."""
    parts = objectives("logistic", dtype)
    start = (size * np.random.default_rng(1).standard_normal((N, 6))).astype(dtype)
    many, each = given(parts, start=start, shift=100.0, center=start)
    found = CohortSolver(LBFGS()).solve(many)
    for i, problem in enumerate(each):
        want = LBFGS().solve(problem)
        assert found.converged[i] >= want.converged
        assert found.iterations[i] <= want.iterations + 25
        np.testing.assert_allclose(found.x[i], want.x, rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_lbfgs_along_a_flat_valley(seed):
    """Where values fall in their last digits, and gradients grow for a while."""
    rng, columns = np.random.default_rng(seed), np.array([1.0, 1e3, 1e-3, 1.0])
    parts = [
        LeastSquares(rng.standard_normal((5, 4)) * columns, 100 * rng.standard_normal(5))
        for _ in range(3)
    ]
    center = np.zeros((3, 4))
    many, each = given(parts, list(range(3)), start=center, shift=1.0, center=center)
    found = CohortSolver(LBFGS()).solve(many)
    assert found.converged.all()
    assert found.iterations.max() < 100
    for x, problem in zip(found.x, each, strict=True):
        np.testing.assert_allclose(x, Exact().solve(problem).x, rtol=0, atol=1e-5)


def test_lbfgs_of_next_to_no_curvature_and_of_very_much():
    slopes = np.diag([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    parts = [Quadratic(scale * slopes, np.ones(6)) for scale in (1e-16, 1.0, 1e-20, 1e20)]
    found = CohortSolver(LBFGS()).solve(given(parts, [0, 1, 2, 3], start=np.zeros((4, 6)))[0])
    for x, f in zip(found.x, parts, strict=True):
        assert np.linalg.norm(f.gradient(x)) <= 1e-9
    assert found.converged.all()
    assert found.iterations.max() < 60


def test_lbfgs_of_few_steps_and_of_a_matrix():
    parts = objectives("softmax")
    many, each = given(parts, **terms(parts[0].shape))
    found = CohortSolver(LBFGS(max_iterations=2)).solve(many)
    assert (found.iterations == 2).all()
    assert not found.converged.any()
    better = [p.value(x) < p.value(p.start) for p, x in zip(each, found.x, strict=True)]
    assert all(better)
    with pytest.raises(ConfigError, match="LBFGS cannot solve a problem with L1"):
        CohortSolver(LBFGS()).solve(given(parts, start=many.start, regularizer=L1(1.0))[0])


def test_who_is_not_a_number_is_named():
    parts = objectives("logistic")
    start = np.zeros((N, 6))
    start[4] = np.nan
    for solver in (Exact(), AOGM(), LBFGS()):
        with pytest.raises(ClientsError, match="diverged") as told:
            CohortSolver(solver).solve(given(parts, start=start, shift=1.0)[0])
        assert list(told.value.errors) == [4]


def test_singular_hessians_are_left_to_steps():
    parts = [Quadratic(np.diag([1.0, float(j % 2)]), np.array([2.0, 0.0])) for j in range(4)]
    many, each = given(parts, start=np.tile([0.0, 5.0], (4, 1)))
    found = CohortSolver(Exact()).solve(many)
    np.testing.assert_allclose(found.x, [[2, 5], [2, 0]] * 2, atol=1e-11)
    alike(found, each, Exact())


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_extreme_conditions(kind):
    """Columns of sizes 1 to 1e-6, and next to no curvature otherwise."""
    rng, parts = np.random.default_rng(0), []
    for _ in range(N):
        A = rng.standard_normal((40, 4)) * np.logspace(0, -6, 4)
        labels = rng.integers(0, 2, 40)
        if kind == "logistic":
            parts.append(LogisticRegression(A, 2 * labels - 1, l2=1e-10))
        else:
            parts.append(SoftmaxRegression(A, labels, 2, l2=1e-10))
    many, each = given(parts, start=np.zeros((N, *parts[0].shape)))
    found = CohortSolver(Exact()).solve(many)
    for i, problem in enumerate(each):
        want = Exact().solve(problem)
        assert found.converged[i] == want.converged
        assert np.linalg.norm(problem.gradient(found.x[i])) <= 2e-12


def test_a_smoothness_that_is_not_known_is_told():
    many, _ = given(objectives("poisson"), start=np.zeros(6), shift=0.5)
    with pytest.raises(ConfigError, match="states its smoothness"):
        CohortSolver(AOGM(backtracking=False)).solve(many)
