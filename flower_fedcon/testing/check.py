"""The contract test: the rules for every algorithm.

Each check is a function of a strategy and a problem that fits it; it raises `CheckError` if a rule
is broken. The checks do not test the speed of convergence; this is left to the method's author.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flower_fedcon.errors import AlgorithmError, FedConError
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.testing import faults, flow_checks, run_checks
from flower_fedcon.testing.expect import Strategy
from flower_fedcon.testing.problems import default_problem
from flower_fedcon.wire.own_code import with_place


def check_algorithm(strategy: Strategy, problem: FederatedProblem | None = None) -> None:
    """Check your own algorithm like those of the collection, and name all failed checks.

    Parameters
    ----------
    strategy : FedConStrategy
        With settings that suit the problem; its pair is registered (`flower_fedcon.register`).
    problem : FederatedProblem, optional
        A problem for the strategy; by default `default_problem(strategy)`, small quadratics.

    Raises
    ------
    AlgorithmError
        If checks fail, with the reason of each. In a test file, ``@pytest.mark.parametrize("name",
        CHECKS)`` makes each check a separate test.

    Examples
    --------
    >>> from flower_fedcon.strategies import Scaffold
    >>> from flower_fedcon.testing import check_algorithm
    >>> check_algorithm(Scaffold(client_lr=0.1, local_steps=2))
    """
    made = default_problem(strategy) if problem is None else problem
    failed: dict[str, list[str]] = {}  # reason -> checks: one cause may fail many of them
    for name, check in CHECKS.items():
        try:
            with _quiet():
                check(strategy, made)
        except Exception as error:  # a failing algorithm may raise any error
            ours = isinstance(error, FedConError)
            told = str(error) if ours else with_place(error)
            alike = (why for why in failed if told in why or why in told)  # one as a round tells it
            failed.setdefault(next(alike, told), []).append(name)
    if failed:
        reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in failed.items())
        number = sum(map(len, failed.values()))
        raise AlgorithmError(f"{strategy.title} fails {number} of {len(CHECKS)} checks: {reasons}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log: the checks break replies on purpose, which a run would log."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


CHECKS: dict[str, Callable[[Strategy, FederatedProblem], None]] = {
    check.__name__: check
    for check in (
        run_checks.registered,
        run_checks.fields_as_declared,
        run_checks.finite_iterates,
        run_checks.seeded,
        run_checks.same_through_records,
        run_checks.same_stacked,
        run_checks.strategy_unchanged,
        run_checks.state_unchanged,
        run_checks.resumed,
        run_checks.any_shape,
        run_checks.single_precision,
        faults.lost_replies,
        faults.bad_replies,
        faults.too_few_replies,
        faults.lost_state,
        flow_checks.earlier_models,
    )
}
"""The checks of `check_algorithm`, by name."""
