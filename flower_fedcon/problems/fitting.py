"""Which methods fit a problem and its participation, by what their classes and cards declare."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

from flower_fedcon.card import Card
from flower_fedcon.core.method import Method
from flower_fedcon.core.participation import Participation
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.scales import UNIT, Scales
from flower_fedcon.core.scope import Scope
from flower_fedcon.errors import ConfigError, FedConError, UnknownScaleError
from flower_fedcon.objectives.many import representatives
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.mismatch import kept_constraints, oracles, why_mismatched
from flower_fedcon.registry import algorithms, names, own_algorithms
from flower_fedcon.validation import parameters

LARGE = 20
"""Uploads above this multiple of the model's size count as too large."""


def why_unfit(
    card: Card,
    kind: type[Method[Any]],
    *,
    strongly_convex: bool | None,
    convex: bool | None,
    each: bool,
    sampled: bool,
    functional: bool = True,
    twice: bool = True,
) -> str:
    """Return why a method does not solve the problem; "" if it does.

    Parameters
    ----------
    card : Card
    kind : type
    strongly_convex : bool, optional
        Whether the clients' objectives are so; None if that is unknown.
    convex : bool, optional
        Whether they are; None if that is unknown.
    each : bool
        Whether each client has its own constraint.
    sampled : bool
        Whether rounds leave clients out.
    functional : bool
        Whether the objectives have functional constraints.
    twice : bool
        Whether the objectives have second derivatives.
    """
    scope = kind.scope
    if kind.name not in names() and "scope" not in vars(kind):
        scope = scope_in(card, kind)
    if scope.refuted:
        return f"is {card.paper}"
    if scope.worst:
        return "minimises the clients' largest objective, not their mean"
    if scope.shared_minimiser:
        return "is for objectives with a minimiser that (nearly) all share"
    if scope.convexity == "strong" and not strongly_convex:
        known = "not known to be > 0" if strongly_convex is None else "0 for some client"
        return f"is for strongly convex objectives, and mu is {known}"
    if scope.hessians and not twice:
        return "is for objectives with hessian(x), the matrix of second derivatives"
    if scope.convexity in ("convex", "strong") and not convex:
        stated = (
            "are not" if convex is False else "state no strong_convexity (0.0 if they are convex)"
        )
        return f"is stated for convex objectives, and these {stated}"
    if kind.constraints and not (each or functional):
        return "is for a constraint on the objectives' own values"
    if kind.constraints == "each" and not each:
        return "is for each client's own constraint"
    if sampled and kind.needs_everyone:
        return f"needs every client in every round ({kind.needs_everyone})"
    return ""


def scope_in(card: Card, kind: type[Method[Any]]) -> Scope:
    """Return the scope that a card states in words, for own algorithms that declare none."""
    words = card.problem
    convexity: Literal["", "none", "convex", "strong"] = ""
    if "strongly" in words and "or not" not in words:
        convexity = "strong"
    elif "nonconvex" in words or "schedule" in parameters(kind):  # of Frank-Wolfe methods
        convexity = "none"
    elif "convex" in words:
        convexity = "convex"
    return Scope(
        convexity,
        hessians="twice differentiable" in words,
        shared_minimiser="minimiser" in words,
        refuted=card.source.startswith("refuted"),
        worst="max_lambda" in words,
    )


def has_hessians(problem: FederatedProblem) -> bool:
    """Return whether all objectives have `hessian`.

    >>> from flower_fedcon.problems import digits
    >>> has_hessians(digits())
    True
    """
    return all(hasattr(f, "hessian") for f in representatives(problem.clients))


def why_inexact(kind: type[Method[Any]], *, sampled: bool) -> str:
    """Return why a method's limit is not the optimum; "" if it is.

    >>> from flower_fedcon.strategies import SDANE, Scaffold
    >>> why_inexact(Scaffold, sampled=True), why_inexact(SDANE, sampled=False)
    ('', '')
    """
    return kind.bias or (kind.sampling_bias if sampled else "")


def contenders(
    problem: FederatedProblem, participation: Participation, setup: Setup
) -> tuple[list[Method[Any]], dict[str, str]]:
    """Return the methods for a race, with default settings, and why the others are left out.

    Raises
    ------
    ConfigError
        If no method fits.

    Examples
    --------
    >>> from flower_fedcon import Full
    >>> from flower_fedcon.engines.local import LocalEngine
    >>> from flower_fedcon.problems import digits
    >>> problem, rule = digits(l1_radius=9.0), Full()
    >>> setup = Setup.of(LocalEngine(problem).describe(), 9, problem.layout, rule, 0)
    >>> found, others = contenders(problem, rule, setup)
    >>> [method.title for method in found][2:5], others["FedAvg"]
    (['FedFW', 'FedFW+', 'Scaffnew'], 'uses neither a constraint nor a regularizer')
    """
    mu = setup.strong_convexity
    fitting: list[tuple[str, Method[Any]]] = []
    others: dict[str, str] = {}
    for kind in (*algorithms().values(), *own_algorithms().values()):
        try:
            card = kind.card()
            reason = why_unfit(
                card,
                kind,
                strongly_convex=None if mu is None else mu > 0,
                convex=None if mu is None else True,
                each=problem.has_functional_constraint and problem.constraints == "each",
                sampled=setup.sampled,
                functional=problem.has_functional_constraint,
                twice=has_hessians(problem),
            )
            if not reason:
                given = {**oracles(kind, problem), **kept_constraints(kind, problem)}
                made = kind(**{**given, "participation": participation})
                reason = why_mismatched(made, problem) or _why_unbound(made, setup)
        except (FedConError, TypeError) as error:
            reason = str(error)
        if not reason and made.most_entries(problem.layout) > LARGE * problem.layout.size:
            reason = f"uploads more than {LARGE} times the model"
        if reason:
            others[kind.__name__] = _brief(reason, kind)
        else:
            fitting.append((why_inexact(kind, sampled=setup.sampled), made))
    exact = [made for bias, made in fitting if not bias]
    if exact:
        others |= {
            type(made).__name__: f"does not reach the optimum: {bias}"
            for bias, made in fitting
            if bias
        }
    racing = exact or [made for _, made in fitting]
    if not racing:
        why = "; ".join(f"{name} {reason}" for name, reason in others.items())
        raise ConfigError(f"no method of the collection fits this problem: {why}")
    return racing, others


def _why_unbound(made: Method[Any], setup: Setup) -> str:
    """Return why a method refuses the setup; "" if it accepts, or gradients can supply the rest."""
    try:
        made.bind(setup)
    except UnknownScaleError:
        if setup.scales is not None:
            return ""
        any_scales = Scales([UNIT] * setup.num_clients, UNIT)
        return _why_unbound(made, replace(setup, scales=any_scales))
    except FedConError as error:
        return str(error)
    return ""


def _brief(reason: str, kind: type[Method[Any]]) -> str:
    """Return a reason without the method's name and the remedy."""
    words = re.split(r", the problem has |: take |: `fedcon info", reason)[0]
    for name in (kind.title, kind.__name__):
        words = words.removeprefix(name)
    return words.lstrip(": ")
