"""The tables of methods: what the classes declare, and what the studies measured."""

import re
import tomllib
from pathlib import Path

from mathematics import cell, table

from flower_fedcon.card import first_sentence
from flower_fedcon.registry import algorithms, client_class
from flower_fedcon.validation import parameters

MEASURED = Path(__file__).parents[2] / "tests" / "pins" / "claims"
STUDIES = {
    "regularizer": "participation",
    "constraint": "participation",
    "smooth": "participation_smooth",
}
SHARES = ("100", "10")

KINDS = {
    "regularizer": "A regularizer, F(x) + psi(x)",
    "constraint": "A set, F(x) subject to x in D",
    "functional": "Constraint functions, F(x) subject to g(x) <= 0",
    "smooth": "Nothing but F(x)",
    "worst": "The largest f_i(x) in place of the mean",
}


def kind_of(method):
    """Return which of the problems a method is for, by its arguments and declarations."""
    known = parameters(method)
    if method.scope.worst:
        return "worst"
    if method.constraints:
        return "functional"
    for name in ("constraint", "regularizer"):
        if name in known:
            return name
    return "smooth"


def measured(study):
    """Return what a study measured at each share: rounds and megabytes, by method."""
    found = {}
    for share in SHARES:
        claims = tomllib.loads((MEASURED / f"{study}_{share}.toml").read_text("utf-8"))
        of = {"rounds": {}, "megabytes": {}}
        late = {}
        for claim in claims["claim"]:
            methods = [name.partition(" ")[0] for name in claim["algorithms"]]
            if "near" in claim:
                of[claim.get("of", "rounds")] |= dict(zip(methods, claim["near"], strict=True))
            else:
                late |= dict.fromkeys(methods, f"not in {claim['above']:,.0f}")
        for name, rounds in of["rounds"].items():
            found.setdefault(name, {})[share] = f"{rounds:.0f}, {of['megabytes'][name]:.2f} MB"
        for name, text in late.items():
            found.setdefault(name, {})[share] = text
    return found


def convexity(method):
    """Return what a method asks of the objectives' curvature, as it is declared."""
    need = method.scope.convexity
    if "strong_convexity" in parameters(method):
        return "mu is an argument" if need == "convex" else "mu > 0 is an argument"
    if need == "strong":
        return "assumed, mu > 0"
    return "not needed, nor is convexity" if need == "none" else "not needed"


def first_clause(text):
    """Return what a text says before its first reservation; the method's page has it whole."""
    return re.split(r"[;.]", re.sub(r" \([^)]*\)", "", text), maxsplit=1)[0]


def state(method):
    """Return what a client keeps between rounds."""
    kept = client_class(method.name).state_type
    if kept is None:
        return "nothing"
    names = getattr(kept, "_fields", ())
    return ", ".join(f"`{name}`" for name in names) or "its state"


def row(method, figures):
    """Return a method's row."""
    card = method.card()
    cells = [
        f"[{method.title}](methods/{method.name}.rst)",
        convexity(method),
        "everyone" if method.needs_everyone else cell(first_clause(card.participation)),
        state(method),
        cell(first_sentence(card.wire)),
        "no" if method.needs_mean else "yes",
        "no" if method.release.single else method.release.form or "yes",
    ]
    return cells + [figures.get(method.__name__, {}).get(share, "") for share in SHARES] * bool(
        figures
    )


def tables():
    """Return a table for each of the problems."""
    parts = []
    for kind, title in KINDS.items():
        figures = measured(STUDIES[kind]) if kind in STUDIES else {}
        rows = [row(m, figures) for m in algorithms().values() if kind_of(m) == kind]
        titles = ["Method", "Strong convexity", "Who takes part", "A client keeps", "Each round",
                  "Robust rule", "Sum is enough"]  # fmt: skip
        if figures:
            titles += [f"Measured, {share} %" for share in SHARES]
        parts.append(f"## {title}\n\n{table(titles, rows)}")
    return "\n\n".join(parts) + "\n"


def by_words(title, words):
    """Return the methods by what their cards say, in the order of their first."""
    found = {}
    for method in algorithms().values():
        found.setdefault(words(method.card()), []).append(method.__name__)
    rows = [[", ".join(names), cell(text)] for text, names in found.items()]
    return f"{table(['Methods', title], rows)}\n"


def unequal():
    """Return how means weight uploads where clients take part unequally often."""
    everyone = "need everyone in each round"
    return by_words("Under unequal probabilities", lambda card: card.weights or everyone)


def first_contact():
    """Return what clients start from that take part first in a late round."""
    return by_words("A client starts", lambda card: card.first_contact)


def late():
    """Return what replies to earlier models do."""
    return by_words("With `Buffered`", lambda card: card.asynchronous)


def server_steps():
    """Return which methods with a `server_optimizer` take which steps."""
    rows = []
    for method in algorithms().values():
        if "server_optimizer" in parameters(method):
            reasons = (
                method.needs_server_lr,
                method.needs_server_lr or method.needs_one_length,
                method.needs_constant_lr,
            )
            rows.append([method.__name__, *("no" if why else "yes" for why in reasons)])
    titles = ["Method", "`Momentum`", "`Adagrad`, `Adam`, `Yogi`", "Schedule as `client_lr`"]
    return f"{table(titles, rows)}\n"
