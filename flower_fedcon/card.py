"""An algorithm's card: what `fedcon list`, `fedcon info` and the README's table show.

It is read off the module docstring of the strategy, which states the method once: a first line,
the problem in the first indented block, the steps in the block after "Round", and the paragraphs
that begin with "Symbols:", "State:", "Wire:", "Participation:", "Aggregation:", "Compression:",
"Lost state:", "Not for:" and "Source:". The last one names each paper as

    Ali Dadras, Alp Yurtsever, "Its Title", ICML 2022 (arXiv:2201.00001)
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flower_fedcon.errors import ConfigError
from flower_fedcon.validation import parameters

PARAGRAPHS = (
    "Symbols", "State", "Wire", "Participation", "Aggregation", "Compression", "Lost state",
    "Not for", "Source",
)  # fmt: skip
_OPTIONAL = ("Symbols", "Aggregation", "Compression", "Not for")


@dataclass(frozen=True)
class Paper:
    """A paper that a card's source names: its authors, "its title", where and when.

    Attributes
    ----------
    authors : tuple of str
        As they sign, "Ali Dadras".
    title : str
    venue : str
        "ICML"; "" for one that is on arXiv alone.
    year : int
    arxiv : str
        Its number there, or "".
    """

    authors: tuple[str, ...]
    title: str
    venue: str
    year: int
    arxiv: str

    @property
    def surnames(self) -> list[str]:
        """The authors' surnames.

        >>> Paper(("Ada Lovelace", "Blaise Agüera y Arcas"), "Notes", "", 1843, "").surnames
        ['Lovelace', 'Agüera y Arcas']
        """
        return [re.findall(r"\S+(?: y \S+)?$", name)[0] for name in self.authors]


_CAPITAL = "[A-ZÀ-ÖØ-Þ]"
_NAME = rf"{_CAPITAL}(?:\.|[\w'-]+)(?: (?:y|{_CAPITAL}(?:\.|[\w'-]+)))*"
_PAPER = re.compile(rf'((?:{_NAME}, )+)"([^"]+)", ([^,;:"]*?)(\d{{4}})\b(?: \(arXiv:([\w./]+)\))?')


def papers_in(text: str) -> list[Paper]:
    """Return the papers that a text names in the form of a card's source.

    >>> papers_in('refuted in Kurt Gödel, "On it", ICML 2022 (arXiv:2201.00001), Theorem 1.')
    [Paper(authors=('Kurt Gödel',), title='On it', venue='ICML', year=2022, arxiv='2201.00001')]
    """
    return [
        Paper(tuple(names.split(", ")[:-1]), title, venue.strip(), int(year), arxiv)
        for names, title, venue, year, arxiv in _PAPER.findall(text)
    ]


@dataclass(frozen=True)
class Card:
    """One algorithm in words.

    Attributes
    ----------
    title : str
        The name as the paper writes it.
    summary : str
        What it is, in one line.
    problem : str
        The problem that it solves.
    update : str
        The steps of a round, a line for each.
    symbols : str
        What the paper's symbols are in the code, and what is taken where they are left out.
    state : str
        What client and server remember.
    wire : str
        What crosses the wire in a round, for each client, down and up.
    participation : str
        Which cohorts the method allows, and what sampling does to it.
    weights : str
        Whether means weigh uploads by 1/p where clients take part unequally often, or why not.
    aggregation : str
        Whether a robust rule may take the place of the mean, and what that does; or why not.
    regularizer : str
        Whether psi must be convex, and why; "" for a method without one.
    step_sizes : str
        Whether a server optimizer and a schedule will do, or why not; "" without these arguments.
    clipping : str
        Whether the gradients of local steps may be clipped, and what is proved then; or why not.
    compression : str
        Which compression of uploads is right, and what it does; or why none is.
    release : str
        What the server needs of the uploads: their sum, or each of them.
    lost_state : str
        What happens when a client's state is gone.
    not_for : str
        Where another method serves better, and which.
    source : str
        The papers, and what of the method is not from them.
    """

    title: str
    summary: str
    problem: str
    update: str
    symbols: str
    state: str
    wire: str
    participation: str
    weights: str
    aggregation: str
    regularizer: str
    step_sizes: str
    clipping: str
    compression: str
    release: str
    lost_state: str
    not_for: str
    source: str

    @property
    def stated(self) -> str:
        """Whether all is stated as in the paper: if not, what `source` says of that.

        >>> card = dict.fromkeys(Card.__dataclass_fields__, "")
        >>> Card(**card | {"source": "A paper, ICML; the steps are reconstructed. More."}).stated
        'the steps are reconstructed'
        """
        clauses = re.split(r"[.;:](?:\s|$)", self.source)
        found = [clause for clause in clauses if re.search("reconstructed|second-hand", clause)]
        return "; ".join(found) or "as in its paper"

    @property
    def papers(self) -> list[Paper]:
        """The papers that `source` names, the method's own first."""
        return papers_in(self.source)

    @property
    def paper(self) -> str:
        """The first of them as tables show it: surnames, title, venue and year.

        >>> card = dict.fromkeys(Card.__dataclass_fields__, "")
        >>> Card(**card | {"source": 'refuted in Kurt Gödel, "On it", ICML 2022. More.'}).paper
        'refuted in Gödel, "On it", ICML 2022'
        """
        if not self.papers:
            return first_sentence(self.source)
        own = self.papers[0]
        before = self.source.partition(own.authors[0])[0]
        few = len(own.surnames) < 5
        names = ", ".join(own.surnames) if few else f"{own.surnames[0]} et al."
        return f'{before}{names}, "{own.title}", {own.venue} {own.year}'.replace("  ", " ")


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop.

    >>> first_sentence("any (the theory is for full). Bernoulli cohorts too.")
    'any (the theory is for full)'
    >>> first_sentence("Martin J. Wainwright. A paper.")
    'Martin J. Wainwright'
    """
    return re.split(r"(?<!\bal)(?<!\bet)(?<!\b[A-Z])\.(?:\s|$)", text, maxsplit=1)[0]


def one_line(text: str) -> str:
    r"""Return a text's lines as one.

    >>> one_line("min F(x)\ns.t. x in D")
    'min F(x) s.t. x in D'
    """
    return " ".join(text.split())


def read_card(title: str, docstring: str, where: str) -> Card:
    """Return the card that a module docstring holds.

    Parameters
    ----------
    title : str
    docstring : str
    where : str
        The module's name, for errors.

    Raises
    ------
    ConfigError
        If a part is missing, naming it.
    """
    text = inspect.cleandoc(docstring)
    found = {
        name: _paragraph(text, name) for name in PARAGRAPHS
    } | {"Round": _round(text), "Problem": _block(text)}  # fmt: skip
    missing = [name for name, value in found.items() if not value and name not in _OPTIONAL]
    if missing:
        raise ConfigError(
            f"the docstring of {where} has no {', '.join(missing)}: it needs the problem as an "
            'indented block, a block of steps after a line "Round ...:", and paragraphs that begin '
            f"with {', '.join(f'{name}:' for name in PARAGRAPHS)}"
        )
    summary = text.partition("\n")[0].rstrip(".")
    return Card(
        title=title,
        summary=summary.partition(": ")[2] or summary,
        problem=found["Problem"],
        update=found["Round"],
        symbols=found["Symbols"],
        state=found["State"],
        wire=found["Wire"],
        participation=found["Participation"],
        weights="",
        aggregation=found["Aggregation"],
        regularizer="",
        step_sizes="",
        clipping="",
        compression=found["Compression"],
        release="",
        lost_state=found["Lost state"],
        not_for=found["Not for"],
        source=found["Source"],
    )


def _paragraph(text: str, name: str) -> str:
    """Return the paragraph that begins with `name`, as one line.

    It ends with an empty line, or where the next one begins.
    """
    others = "|".join(PARAGRAPHS)
    match = re.search(rf"^{name}: (.+?)(?:\n\n|\n(?:{others}): |\Z)", text, re.M | re.S)
    return one_line(match.group(1)) if match else ""


def _block(text: str) -> str:
    """Return the first indented block, as one line for each of its own."""
    match = re.search(r"^((?: {4}.*\n?)+)", text, re.M)
    if match is None:
        return ""
    lines = [one_line(line) for line in match.group(1).strip().splitlines()]
    return "\n".join(lines)


def _round(text: str) -> str:
    """Return the steps after the line that begins with "Round"."""
    match = re.search(r"^Round[^\n]*:\n((?: {4}.*\n?)+)", text, re.M)
    return textwrap.dedent(match.group(1)).rstrip() if match else ""


def _psi(kind: type[Any]) -> str:
    """Return which regularizers a method takes."""
    if "regularizer" not in parameters(kind):
        return ""
    if kind.needs_convex:
        return f"only convex: {kind.needs_convex}"
    return (
        "convex, or weakly convex (MCP, SCAD) if 1/rho, rho its modulus, is above every prox step; "
        "the theory is for convex psi"
    )


def _defaults(kind: type[Any]) -> str:
    """Return what a method takes for arguments that are left out, by its own docstring.

    >>> class Halving:
    ...     '''Steps.
    ...
    ...     Parameters
    ...     ----------
    ...     client_lr : float or "auto", optional
    ...         eta > 0; by default 1/(2 L), and
    ...         1 without L.
    ...     '''
    >>> _defaults(Halving)
    'client_lr is 1/(2 L), and 1 without L'
    """
    found = []
    text = inspect.getdoc(kind) or ""
    for name, described in re.findall(r'^(\w+) : .*"auto".*\n((?: {4}.*\n?)+)', text, re.M):
        rule = re.search(r"by default (.+?)(?:[.:;](?:\s|$)|$)", one_line(described))
        if rule:
            found.append(f"{name} is {rule.group(1)}")
    return "; ".join(found)


def _step_sizes(kind: type[Any]) -> str:
    """Return which server optimizers and schedules a method takes."""
    known, said = parameters(kind), []
    if "server_optimizer" in known:
        rule = f"none: {kind.needs_server_lr}" if kind.needs_server_lr else "any"
        if not kind.needs_server_lr and kind.needs_one_length:
            rule = f"only Momentum: {kind.needs_one_length}"
        said = [f"server_optimizer: {rule}"]
    if "client_lr" in known:
        why = kind.needs_constant_lr
        rule = f"only a number: {why}" if why else "a number or a schedule"
        own = "" if kind.needs_common_lr else ", or each client's own (DeltaSGD, AdaPGM)"
        said.append(f"client_lr: {rule}{own}")
    return "; ".join(said)


def _clipping(kind: type[Any], fields: Sequence[str]) -> str:
    """Return whether the gradients of local steps may be clipped, and what is proved then."""
    if "local_solver" in fields:
        return "in local_solver=SGD(..., clip=...)"
    if "clip" not in fields or kind.needs_gradient:
        return f"none: {kind.needs_gradient}" if "batch_size" in fields else ""
    return (
        "clip shortens gradients in local steps, before terms are added. The theory holds if no "
        "gradient is longer near the limit. If some are, the shortened gradients sum to 0 at the "
        "limit instead of the gradients, and no rate is proved"
    )


def _noise(kind: type[Any]) -> str:
    """Return whether noise in the sum may be correlated over the rounds."""
    if kind.release.single:
        return ""
    why = kind.needs_independent
    return f"; noise independent in each round: {why}" if why else "; noise of any mechanism"


def _weights(kind: type[Any]) -> str:
    """Return what becomes of uploads of clients that take part unequally often."""
    if kind.needs_everyone:
        return ""
    if kind.needs_uniform:
        return f"none: {kind.needs_uniform}"
    return (
        "1/(N p_i), if the participation states p_i (Weighted): on average the server moves as if "
        "everyone took part"
    )


def card_of(kind: type[Any], fields: Sequence[str]) -> Card:
    """Return a strategy class's card; a subclass without a `name` of its own has its parent's.

    `fields` are those of its client.
    """
    home = next((base for base in kind.__mro__ if "name" in vars(base)), kind)
    module = inspect.getmodule(home)
    card = read_card(kind.title, (module and module.__doc__) or "", home.__module__)
    card = replace(
        card,
        release=str(kind.release) + _noise(kind),
        weights=_weights(kind),
        regularizer=_psi(kind),
        step_sizes=_step_sizes(kind),
        clipping=_clipping(kind, fields),
    )
    if known := _defaults(kind):
        card = replace(card, symbols=f"{card.symbols} Defaults: {known}.".strip())
    if kind.needs_mean:  # said once, where it is refused
        card = replace(card, aggregation=f"only the mean: {kind.needs_mean}")
    if kind.needs_exact:
        card = replace(card, compression=f"none: {kind.needs_exact}")
    return card
