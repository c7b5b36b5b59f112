"""An algorithm's card: what `fedcon list`, `fedcon info` and the README's table show.

It is read from the module docstring of the strategy, which has a first line, the problem in the
first indented block, the steps in the block after "Round", and the paragraphs that begin with
"Symbols:", "State:", "Wire:", "Participation:", "First contact:", "Aggregation:", "Compression:",
"Lost state:", "Not for:" and "Source:", each on a line of its own. All others are its remarks. The
last one names each paper as

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
    "Symbols", "State", "Wire", "Participation", "First contact", "Aggregation", "Compression",
    "Lost state", "Not for", "Source",
)  # fmt: skip
_OPTIONAL = ("Symbols", "First contact", "Aggregation", "Compression", "Not for")


@dataclass(frozen=True)
class Paper:
    """A paper that a card's source names: its authors, "its title", where and when.

    Attributes
    ----------
    authors : tuple of str
        Full names, such as "Ali Dadras".
    title : str
    venue : str
        Such as "ICML"; "" for a paper that is only on arXiv.
    year : int
    arxiv : str
        Its number on arXiv, or "".
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
        The name in the paper's spelling.
    summary : str
        A description in one line.
    problem : str
        The problem that it solves.
    update : str
        The steps of a round, a line for each.
    remarks : str
        What else is said of the steps, such as why they work, their variants, and a theorem.
    symbols : str
        The arguments for the paper's symbols, and the defaults.
    state : str
        The state of client and server.
    wire : str
        What each client receives and sends in a round.
    participation : str
        The cohorts that the method allows, and the effect of sampling.
    first_contact : str
        What a client starts from that takes part first in a late round, and what counts for it
        until then.
    weights : str
        Whether means weight uploads by 1/p if clients take part unequally often, or why not.
    asynchronous : str
        Whether replies to earlier models may be used (`Buffered`), and their effect; or why not.
    aggregation : str
        Whether a robust rule may replace the mean, and its effect; or why not.
    regularizer : str
        Whether psi must be convex, and why; "" for a method without one.
    step_sizes : str
        Whether a server optimizer and a schedule are allowed, or why not; "" without these
        arguments.
    clipping : str
        Whether the gradients of local steps may be clipped, and what is then proved; or why not.
    compression : str
        The compression of uploads that is allowed, and its effect; or why none is.
    release : str
        What the server needs of the uploads: their sum, or each one.
    lost_state : str
        What happens if a client's state is lost.
    not_for : str
        Cases in which another method is better, and which one.
    source : str
        The papers, and the parts of the method that are not from them.
    """

    title: str
    summary: str
    problem: str
    update: str
    remarks: str
    symbols: str
    state: str
    wire: str
    participation: str
    first_contact: str
    weights: str
    asynchronous: str
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
        """The relation to the paper: "as in its paper", or the words of `source` on differences.

        >>> card = dict.fromkeys(Card.__dataclass_fields__, "")
        >>> Card(**card | {"source": "A paper, ICML; the steps are reconstructed. More."}).stated
        'the steps are reconstructed'
        """
        clauses = re.split(r"[.;:](?:\s|$)", self.source)
        remarks = [clause for clause in clauses if re.search("reconstructed|second-hand", clause)]
        return "; ".join(remarks) or "as in its paper"

    @property
    def papers(self) -> list[Paper]:
        """The papers that `source` names, the method's own first."""
        return papers_in(self.source)

    @property
    def paper(self) -> str:
        """The first paper in the form for tables: surnames, title, venue and year.

        >>> card = dict.fromkeys(Card.__dataclass_fields__, "")
        >>> Card(**card | {"source": 'refuted in Kurt Gödel, "On it", ICML 2022. More.'}).paper
        'refuted in Gödel, "On it", ICML 2022'
        """
        if not self.papers:
            return first_sentence(self.source)
        first = self.papers[0]
        before = self.source.partition(first.authors[0])[0]
        few = len(first.surnames) < 5
        names = ", ".join(first.surnames) if few else f"{first.surnames[0]} et al."
        return f'{before}{names}, "{first.title}", {first.venue} {first.year}'.replace("  ", " ")


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
        If a part is missing; the error names it.
    """
    text = inspect.cleandoc(docstring)
    paragraphs = {
        name: _paragraph(text, name) for name in PARAGRAPHS
    } | {"Round": _round(text), "Problem": _block(text)}  # fmt: skip
    missing = [name for name, value in paragraphs.items() if not value and name not in _OPTIONAL]
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
        problem=paragraphs["Problem"],
        update=paragraphs["Round"],
        remarks=_remarks(text),
        symbols=paragraphs["Symbols"],
        state=paragraphs["State"],
        wire=paragraphs["Wire"],
        participation=paragraphs["Participation"],
        first_contact=paragraphs["First contact"],
        weights="",
        asynchronous="",
        aggregation=paragraphs["Aggregation"],
        regularizer="",
        step_sizes="",
        clipping="",
        compression=paragraphs["Compression"],
        release="",
        lost_state=paragraphs["Lost state"],
        not_for=paragraphs["Not for"],
        source=paragraphs["Source"],
    )


def _named(name: str) -> str:
    """Return the pattern of a paragraph up to an empty line, or to the next one with a name."""
    others = "|".join(PARAGRAPHS)
    return rf"(?ms)^{name}: (.+?)(?=\n\n|\n(?:{others}): |\Z)"


_BLOCK = r"(?m)^((?: {4}.*\n?)+)"
_ROUND = r"(?m)^Round[^\n]*:\n((?: {4}.*\n?)+)"


def _paragraph(text: str, name: str) -> str:
    """Return the paragraph that begins with `name`, as one line."""
    match = re.search(_named(name), text)
    return one_line(match.group(1)) if match else ""


def _block(text: str) -> str:
    """Return the first indented block, line by line."""
    match = re.search(_BLOCK, text)
    if match is None:
        return ""
    lines = [one_line(line) for line in match.group(1).strip().splitlines()]
    return "\n".join(lines)


def _round(text: str) -> str:
    """Return the steps after the line that begins with "Round"."""
    match = re.search(_ROUND, text)
    return textwrap.dedent(match.group(1)).rstrip() if match else ""


def _remarks(text: str) -> str:
    r"""Return the paragraphs without a name: each as one line, but for indented lines.

    >>> print(_remarks("A: b.\n\n    min f\n\nBy h,\nwith\n    h = 1\nit ends.\n\nState: x."))
    By h, with
        h = 1
    it ends.
    """
    rest = text.partition("\n")[2]
    for pattern in (_BLOCK, _ROUND, *map(_named, PARAGRAPHS)):
        rest = re.sub(pattern, "", rest, count=1)
    lines: list[str] = []
    for line in rest.strip().splitlines():
        prose = line[:1].strip() and lines and lines[-1][:1].strip()
        lines[len(lines) - bool(prose) :] = [f"{lines[-1]} {line}" if prose else line]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


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
    """Return the defaults of a method's arguments, from its docstring.

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
    defaults = []
    text = inspect.getdoc(kind) or ""
    for name, described in re.findall(r'^(\w+) : .*"auto".*\n((?: {4}.*\n?)+)', text, re.M):
        rule = re.search(r"by default (.+?)(?:[.:;](?:\s|$)|$)", one_line(described))
        if rule:
            defaults.append(f"{name} is {rule.group(1)}")
    return "; ".join(defaults)


def _step_sizes(kind: type[Any]) -> str:
    """Return which server optimizers and schedules a method takes."""
    arguments, said = parameters(kind), []
    if "server_optimizer" in arguments:
        rule = f"none: {kind.needs_server_lr}" if kind.needs_server_lr else "any"
        if not kind.needs_server_lr and kind.needs_one_length:
            rule = f"only Momentum: {kind.needs_one_length}"
        said = [f"server_optimizer: {rule}"]
    if "client_lr" in arguments:
        why = kind.needs_constant_lr
        rule = f"only a number: {why}" if why else "a number or a schedule"
        adaptive = "" if kind.needs_common_lr else ", or each client's own (DeltaSGD, AdaPGM)"
        said.append(f"client_lr: {rule}{adaptive}")
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
    """Return how uploads are weighted if clients take part unequally often."""
    if kind.needs_everyone:
        return ""
    if kind.needs_uniform:
        return f"none: {kind.needs_uniform}"
    return (
        "1/(N p_i), if the participation states p_i (Weighted): on average the server moves as if "
        "everyone took part"
    )


def _first_contact(kind: type[Any], client: type[Any]) -> str:
    """Return what a late client starts from, where no paragraph says it; "" if it is not known."""
    if kind.needs_everyone:
        return "in round 1: every client takes part in every round"
    if client.state_type is None:
        return "in any round alike, since clients keep nothing between rounds"
    return ""


def _asynchronous(kind: type[Any]) -> str:
    """Return whether replies to earlier models may be used, and their effect."""
    if kind.needs_fresh:
        return f"none: {kind.needs_everyone or kind.needs_fresh}"
    if kind.async_bias:
        return f"Buffered, with a bias: {kind.async_bias}"
    return "Buffered: however often each client answers, the limit is the same"


def _home(kind: type[Any]) -> tuple[type[Any], str]:
    """Return the class that gives a strategy its name, and the docstring of its module."""
    home = next((base for base in kind.__mro__ if "name" in vars(base)), kind)
    module = inspect.getmodule(home)
    return home, (module and module.__doc__) or ""


def source_of(kind: type[Any]) -> str:
    """Return the paragraph "Source:" of a strategy class's module; "" without one."""
    return _paragraph(inspect.cleandoc(_home(kind)[1]), "Source")


def card_of(kind: type[Any], client: type[Any]) -> Card:
    """Return a strategy class's card; a subclass without its own `name` has its parent's.

    `client` is the class of its clients.
    """
    home, docstring = _home(kind)
    card = read_card(kind.title, docstring, home.__module__)
    card = replace(
        card,
        first_contact=card.first_contact or _first_contact(kind, client),
        release=str(kind.release) + _noise(kind),
        weights=_weights(kind),
        asynchronous=_asynchronous(kind),
        regularizer=_psi(kind),
        step_sizes=_step_sizes(kind),
        clipping=_clipping(kind, client.fields),
    )
    if defaults := _defaults(kind):
        card = replace(card, symbols=f"{card.symbols} Defaults: {defaults}.".strip())
    if kind.needs_mean:  # the refusal says it
        card = replace(card, aggregation=f"only the mean: {kind.needs_mean}")
    if kind.needs_uncompressed:
        card = replace(card, compression=f"none: {kind.needs_uncompressed}")
    return card
