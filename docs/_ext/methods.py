"""A page for each method, and their list."""

import textwrap
from itertools import groupby
from pathlib import Path

from docstrings import literal
from typeset import mixed, steps

from flower_fedcon.card import first_sentence, one_line
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments import reproduce
from flower_fedcon.registry import algorithms, client_class
from flower_fedcon.training.loop_client import own_loop

TOLD = ("participation", "first_contact", "weights", "state", "wire", "regularizer", "step_sizes",
        "release", "aggregation", "compression", "lost_state", "not_for", "source")  # fmt: skip


def box(text):
    """Return a text in a frame of its own."""
    return ".. container:: algorithm\n\n" + textwrap.indent(text, "   ")


def heading(text, line="-"):
    return f"{text}\n{line * len(text)}"


def source(path):
    return f".. dropdown:: {path}\n\n   .. literalinclude:: ../../{path}\n      :language: python"


def takes_loops(name):
    """Whether a method works in train loops of its users."""
    try:
        own_loop(name)
    except ConfigError:
        return False
    return True


SIMS = Path(__file__).parents[2] / "sims"


def as_in_the_paper(card):
    """Return a figure of ours laid out as the paper's, as a list of one part, or of none."""
    if not card.papers:
        return []
    author = reproduce.first_author(card.papers[0].surnames[0])
    drawn = (SIMS / "figures" / f"paper_{author}.png").exists()
    told = reproduce.caption(author, reproduce.find(SIMS)) if drawn else ""
    if not told:
        return []
    text = f"{told} :doc:`The claims <../claims>` beside it, with their measurements."
    figure = f".. figure:: ../../sims/figures/paper_{author}.png\n\n   {text}"
    return [heading("As in the paper"), figure]


def page(kind, drawn):
    """Return the page of a strategy class."""
    card, client = kind.card(), client_class(kind.name)
    parts = [
        heading(card.title, "="),
        literal(card.summary[0].upper() + card.summary[1:]) + ".",
        heading("Problem"),
        box(mixed(card.problem, r"\displaystyle ")),
        heading("A round"),
        box(steps(card.update)),
    ]
    for formulas, lines in groupby(card.remarks.splitlines(), lambda line: line[:1] == " "):
        if formulas:
            parts.append(box(steps(textwrap.dedent("\n".join(lines)))))
        else:
            parts += [mixed(line) for line in lines if line]
    if card.symbols:
        title = "" if card.symbols.startswith("Defaults: ") else "Symbols: "
        parts.append(title + mixed(card.symbols))
    if drawn:
        caption = (
            "The problem of its contract test, with the settings stated there: the error against "
            "the optimum of an independent solver. The dotted line is where the test holds it. "
            "Beside it stand two other methods that fit the problem, with the steps of their rules."
        )
        parts += [heading("Measured"), f".. figure:: figures/{kind.name}.png\n\n   {caption}"]
    parts += as_in_the_paper(card)
    parts.append(heading("What it needs"))
    for name in TOLD:
        if text := getattr(card, name):
            title = name.replace("_", " ").capitalize()
            said = literal(text) if name == "source" else mixed(text)
            parts.append(f"**{title}.** {said}")
    if takes_loops(kind.name):
        parts.append("**In a Flower app.** It works in :doc:`your own training loop "
                     "<../training_loops>`, too.")  # fmt: skip
    parts += [
        heading("In Python"),
        f".. autoclass:: flower_fedcon.strategies.{kind.__name__}\n   :no-members:",
        heading("The code"),
        source(f"flower_fedcon/strategies/{kind.name}.py"),
        source(f"flower_fedcon/clients/{kind.name}.py"),
        f"A node runs ``flower_fedcon.clients.{kind.name}.{client.__name__}``.",
    ]
    return "\n\n".join(parts) + "\n"


def index():
    """Return the list of all methods."""
    rows = []
    for kind in algorithms().values():
        card = kind.card()
        formulas = one_line(card.problem), *map(first_sentence, (card.participation, card.wire))
        texts = card.paper, card.stated
        rows.append(
            [f":doc:`{card.title} <{kind.name}>`", *map(mixed, formulas), *map(literal, texts)]
        )
    titles = ("Method", "Problem", "Participation", "Wire, each round", "Source", "Stated")
    lines = [".. list-table::", "   :header-rows: 1", "   :class: wide", ""]
    for row in [titles, *rows]:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(row)]
    listed = "\n".join(f"   {kind.name}" for kind in algorithms().values())
    told = (
        "A page for each method of the collection: its problem, its steps, what clients "
        "remember and send, and the error that it reaches on the problem of its contract test. "
        ":doc:`../which_method` helps to choose."
    )
    toctree = f".. toctree::\n   :hidden:\n\n{listed}"
    return "\n\n".join([heading("All methods", "="), told, "\n".join(lines), toctree]) + "\n"
