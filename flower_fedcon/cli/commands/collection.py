"""`fedcon list` and `info`: the collection, and what algorithms and problems take and cost."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import console, table


def list_(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(help="Renew the table between the markers of this file, such as README.md."),
    ] = None,
) -> None:
    """Show the collection."""
    from flower_fedcon.card import first_sentence, one_line
    from flower_fedcon.problems import BUILDERS
    from flower_fedcon.registry import algorithms, markdown_table, own_algorithms

    if into is not None:
        _renew(into, markdown_table())
        return
    if markdown:
        print(markdown_table())
        return

    titles = ("Problem", "Participation", "State", "Wire, each round", "Needs", "Paper", "Stated")
    screen = console()
    narrow = screen.width < 120  # one cell for all, with a line for each
    rows = table("Name", "Card") if narrow else table("Name", *titles)
    for kind in algorithms().values():
        card = kind.card()
        texts = (card.participation, card.state, card.wire, card.release)
        cells = [one_line(card.problem), *map(first_sentence, texts), card.paper, card.stated]
        if narrow:
            lines = [f"{title}: {cell}" for title, cell in zip(titles, cells, strict=True)]
            cells = ["\n".join(lines) + "\n"]
        rows.add_row(kind.__name__, *cells)
    for kind in own_algorithms().values():
        rows.add_row(kind.__name__, _own_summary(kind))
    screen.print(rows)
    screen.print(f"Problems (`fedcon info NAME`): {', '.join(BUILDERS)}")


def _own_summary(kind: type[Any]) -> str:
    """Return the summary and the origin of an algorithm outside the collection."""
    said = (inspect.getdoc(kind) or "").partition("\n")[0]
    return f"{said} ({kind.__module__})".lstrip()


_MARKERS = "<!-- made by `fedcon list --markdown` -->\n", "<!-- end -->"


def _renew(path: Path, text: str) -> None:
    """Replace the text between the markers of a file."""
    from flower_fedcon.errors import ConfigError
    from flower_fedcon.wire.whole_files import write_text

    first, last = _MARKERS
    try:
        before, marker, rest = path.read_text(encoding="utf-8").partition(first)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    _, end, after = rest.partition(last)
    if not marker or not end:
        raise ConfigError(
            f"{path} lacks the lines {first.strip()} and {last}: add them, and the table goes "
            f"between them"
        )
    write_text(path, f"{before}{first}{text}\n{last}{after}")


def _names(begun: str) -> list[str]:
    """Return the algorithms whose names begin with a text."""
    from flower_fedcon.registry import accepted

    return [name for name in accepted() if name.startswith(begun.lower())]


def info(
    name: Annotated[
        str,
        typer.Argument(
            help="The name of an algorithm, a problem, a server optimizer, a schedule, a "
            "compressor, a regularizer or a set.",
            autocompletion=_names,
        ),
    ],
    size: Annotated[
        str | None,
        typer.Option(
            help="A model's size, such as 7850 or 943x1682, to count the bytes of a round."
        ),
    ] = None,
) -> None:
    """Show one algorithm's card, a problem's arguments, or which algorithms take a part."""
    from flower_fedcon.cli.parts_by_name import parts
    from flower_fedcon.errors import ConfigError, nearest
    from flower_fedcon.problems import BUILDERS
    from flower_fedcon.registry import accepted, algorithms

    kinds = parts()
    if ":" in name and _is_algorithm(name):
        _algorithm_info(name, size)
        return
    if name in BUILDERS or ":" in name:
        if size is not None:
            raise ConfigError(
                f"--size counts the bytes of an algorithm's messages, and {name} is "
                f"a problem: leave --size out"
            )
        _problem_info(name)
        return
    if name.lower() not in accepted() and name in kinds:
        if size is not None:
            raise ConfigError(
                f"--size counts the bytes of an algorithm's messages, and {name} is "
                f"not an algorithm: leave --size out"
            )
        _part_info(kinds[name])
        return
    if name.lower() not in accepted():
        names = {*(kind.__name__ for kind in algorithms().values()), *accepted(), *BUILDERS, *kinds}
        names -= set(algorithms())
        raise ConfigError(f"unknown algorithm or problem {name!r}: {nearest(name, names)}")
    _algorithm_info(name, size)


def cite(
    of: Annotated[
        list[str] | None,
        typer.Argument(
            help="Methods, experiment files, and folders of runs, comparisons or studies. Default: "
            "this package alone.",
            show_default=False,
            autocompletion=_names,
        ),
    ] = None,
) -> None:
    """Print BibTeX: the papers of methods, and this package."""
    from flower_fedcon.runs.citing import cite as entries

    print(entries(*(of or ())), end="")


def _part_info(kind: type[Any]) -> None:
    """Show a part's description and arguments, and which algorithms take it."""
    from flower_fedcon.cli.parts_by_name import takers
    from flower_fedcon.validation import parameters

    screen, docstring = console(), inspect.getdoc(kind) or ""
    screen.print(kind.__name__, style="bold")
    said = docstring.partition(_PARAMETERS)[0]
    screen.print(said.partition("Examples\n--------")[0].strip(), markup=False)
    if parameters(kind):
        screen.print("\nArguments", style="bold")
        _show_parameters(kind, [docstring])
    if not (taken := takers(kind)):
        screen.print("`fedcon info METHOD` says whether a method takes it.")
        return
    screen.print("\nTaken by", style="bold")
    grid = table("", "", plain=True)
    for argument, names in taken.items():
        grid.add_row(f"{argument}=", ", ".join(names))
    screen.print(grid)
    if "compression" in taken:
        screen.print(
            "Some of these take only unbiased compressors, or others in EF21: see `fedcon "
            "info METHOD`."
        )


def _is_algorithm(name: str) -> bool:
    """Return whether "module:name" is a strategy class, and not a function that makes a problem."""
    from flower_fedcon.runs.toml import own_object
    from flower_fedcon.strategies import FedConStrategy

    kind = own_object(name, "what is to be shown,")
    return isinstance(kind, type) and issubclass(kind, FedConStrategy)


def _algorithm_info(name: str, size: str | None) -> None:
    from flower_fedcon.errors import ConfigError
    from flower_fedcon.registry import client_class, strategy_class

    kind, screen = strategy_class(name), console()
    try:
        card = asdict(kind.card())
    except ConfigError:  # your own algorithm need not have a card
        card = {"title": kind.title, "summary": _own_summary(kind), "wire": ""}
    screen.print(card.pop("title"), style="bold")
    grid = table("", "", plain=True)
    down, _, up = card.pop("wire").partition("; ")
    for key, text in {**card, "downlink": down, "uplink": up}.items():
        if text:
            grid.add_row(key.replace("_", " "), text)
    screen.print(grid)
    screen.print("\nHyperparameters", style="bold")
    docstrings = [base.__doc__ or "" for base in kind.__mro__]
    fields = client_class(kind.name).fields
    refused = [name for name in ("batch_size", "clip") if name not in fields]
    if "batch_size" in refused:
        refused.append("batch_order")
    _show_parameters(kind, docstrings, without=refused)
    if size is not None:
        screen.print(f"\nOn the wire, model {size}", style="bold")
        costs = table("What", "Bytes", right_from=1)
        for what, number in _wire_sizes(size).items():
            costs.add_row(what, f"{number:,}")
        screen.print(costs)


def _problem_info(name: str) -> None:
    from flower_fedcon.problems import builder
    from flower_fedcon.validation import parameters

    build, screen = builder(name), console()
    docstring = inspect.getdoc(build) or ""
    screen.print(name, style="bold")
    seen = re.findall(r" : see `flower_fedcon\.problems\.(\w+)`", docstring)
    docstrings = [docstring, *(inspect.getdoc(builder(other)) or "" for other in seen)]
    said, _, rest = docstring.partition(_PARAMETERS)
    screen.print(said.strip(), markup=False)
    screen.print("\nArguments: the keys of [problem]", style="bold")
    _show_parameters(build, docstrings)
    if notes := _after_parameters(rest):
        screen.print(notes, markup=False)
    screen.print("\nIn an experiment file", style="bold")
    screen.print(f'[problem]\nname = "{name}"')
    texts = _parameter_texts(docstrings)
    for key, parameter in parameters(build).items():
        if parameter.default is parameter.empty:  # with the example of a value in the docstring
            quoted = re.search(r'"[^"]+"', texts.get(key, ""))
            screen.print(f"{key} = {quoted[0] if quoted else '...'}")


def _show_parameters(target: Any, docstrings: list[str], without: Sequence[str] = ()) -> None:
    """Print a table of the arguments, each with its text in the first docstring that has one."""
    from flower_fedcon.validation import parameters

    rows = table("Name", "Default", "Meaning")
    texts = _parameter_texts(docstrings)
    for key, parameter in parameters(target).items():
        required = parameter.default is parameter.empty
        default = "required" if required else repr(parameter.default)
        if key not in without:
            rows.add_row(key, default, texts.get(key, ""))
    console().print(rows)


_PARAMETERS = "Parameters\n----------\n"


def _after_parameters(text: str) -> str:
    r"""Return the part of a docstring after its parameters, without the errors.

    >>> print(_after_parameters("n : int\n    Rows.\n\nRaises\n------\nE\n    If.\n\nUnits."))
    Units.
    """
    entries = r"(?:\S.* : see .*\n|(?:\S.* : .*|\S+)\n(?: +.*\n?|\n(?= ))+)\n?"
    text = re.sub(rf"\A(?:{entries})+", "", text)
    return re.sub(rf"^Raises\n-+\n(?:{entries})+", "", text, flags=re.MULTILINE).strip()


def _parameter_texts(docstrings: list[str]) -> dict[str, str]:
    """Return the text of each parameter in the docstrings of a class and its bases."""
    texts: dict[str, str] = {}
    for docstring in docstrings:
        _, _, rest = inspect.cleandoc(docstring).partition(_PARAMETERS)
        names: list[str] = []
        for line, following in itertools.pairwise([*rest.splitlines(), ""]):
            if following.startswith("---"):  # the next section's title
                break
            text = line.strip()
            if line and not line.startswith(" "):
                names = [n.strip() for n in line.partition(" : ")[0].split(",")]
                names = [n for n in names if n not in texts]
            elif text:
                texts |= {name: f"{texts.get(name, '')} {text}".lstrip() for name in names}
    return texts


def _wire_sizes(size: str) -> dict[str, int]:
    """Return the bytes of a card's uploads and broadcasts, for a size such as 7850 or 943x1682.

    >>> _wire_sizes("100000")["1 atom of an l1 ball"]
    136
    """
    import numpy as np

    from flower_fedcon import sets
    from flower_fedcon.errors import ConfigError
    from flower_fedcon.layout import array_bytes
    from flower_fedcon.wire import payloads

    parts = size.lower().split("x")
    if len(parts) > 8 or not all(re.fullmatch(r"0*[1-9][0-9]{0,8}", part) for part in parts):
        raise ConfigError(
            f"--size must be whole numbers of at most 9 digits, such as 7850 or 943x1682, got "
            f"{size!r:.99}"
        )
    shape = tuple(int(part) for part in parts)
    g = np.random.default_rng(0).standard_normal(shape)
    vector = array_bytes(shape, g.dtype)
    sizes = {"1 number": payloads.SCALAR_BYTES, "1 vector": vector}
    sizes["1 atom of an l1 ball"] = sets.L1Ball(1.0).lmo(g).nbytes
    sizes["1 atom of a box"] = sets.Box(-1.0, 1.0).lmo(g).nbytes
    if len(shape) == 2:
        sizes["1 atom of a nuclear-norm ball"] = sets.NuclearNormBall(1.0).lmo(g).nbytes
    sizes["1 atom of a set without a smaller form"] = vector
    return sizes


COMMANDS = {
    "list": Command(list_, 10, "fedcon list", "fedcon list --markdown"),
    "info": Command(
        info,
        20,
        "fedcon info FedFW",
        "fedcon info FedFW --size 943x1682",
        "fedcon info digits",
    ),
    "cite": Command(
        cite,
        30,
        "fedcon cite FedFW FedDualAvg",
        "fedcon cite runs/digits_l1 > papers.bib",
    ),
}
