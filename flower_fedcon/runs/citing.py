"""BibTeX of the papers of methods, and of this package: `cite`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flower_fedcon.card import Paper, papers_in, source_of
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.registry import accepted, algorithms, strategy_class
from flower_fedcon.runs.directory import CONFIG
from flower_fedcon.runs.toml import read_toml
from flower_fedcon.validation import AUTO
from flower_fedcon.wire.whole_files import storage

_PACKAGE = Path(__file__).parents[1]
_CITATION = "CITATION.cff"  # in a wheel it is inside the package, in a clone next to it

VENUES = {
    "AISTATS": "International Conference on Artificial Intelligence and Statistics",
    "ECML PKDD": "European Conference on Machine Learning and Principles and Practice of "
    "Knowledge Discovery in Databases",
    "FL-NeurIPS workshop": "International Workshop on Federated Learning: Recent Advances and New "
    "Challenges, in Conjunction with NeurIPS",
    "ICASSP": "IEEE International Conference on Acoustics, Speech and Signal Processing",
    "ICLR": "International Conference on Learning Representations",
    "ICML": "International Conference on Machine Learning",
    "Interspeech": "Annual Conference of the International Speech Communication Association",
    "MLSP": "IEEE International Workshop on Machine Learning for Signal Processing",
    "MLSys": "Proceedings of Machine Learning and Systems",
    "NeurIPS": "Advances in Neural Information Processing Systems",
    "OPT workshop": "OPT: Workshop on Optimization for Machine Learning",
    "UAI": "Conference on Uncertainty in Artificial Intelligence",
}
"""The proceedings to which cards refer by short names."""
JOURNALS = {
    "Mathematical Programming": "Mathematical Programming",
    "SIAM Journal on Optimization": "SIAM Journal on Optimization",
    "TMLR": "Transactions on Machine Learning Research",
}
"""The journals that cards name."""


def cite(*of: str | Path) -> str:
    r"""Return BibTeX: the papers of methods, and this package.

    Parameters
    ----------
    *of : str or path
        Names of methods, in any case or as "module:Class"; experiment files or folders of runs,
        comparisons and studies, for the methods in them. Without any: this package alone.

    Returns
    -------
    str
        One entry for each paper that the methods' cards name as their source, in the order of `of`,
        and last the entry of the package, from CITATION.cff. Keys have the form of Google
        Scholar's, "dadras2022federated". Of your own method the paragraph "Source:" in its module's
        docstring is enough. Without it, and for a race of methods, a line that BibTeX skips says
        so.

    Raises
    ------
    ConfigError
        If a name is not that of a method, a folder holds no run, or a file cannot be read.

    Examples
    --------
    >>> from flower_fedcon import cite
    >>> print(cite("FedMiD").partition("\n\n")[0])
    @inproceedings{yuan2021federated,
      author = {Yuan, Honglin and Zaheer, Manzil and Reddi, Sashank},
      title = {{Federated Composite Optimization}},
      booktitle = {International Conference on Machine Learning},
      year = {2021},
      eprint = {2011.08474},
      archiveprefix = {arXiv},
    }
    """
    entries: dict[str, None] = {}
    for name in dict.fromkeys(name for each in of for name in _methods(each)):
        if name == AUTO:
            entries["% auto: the method that a race has chosen is to be named"] = None
            continue
        kind = strategy_class(name)
        papers = papers_in(source_of(kind))  # your own algorithm need not have a whole card
        said = (
            f"% {kind.__name__}: its module names no paper in the form that is read, a paragraph "
            f'Source: First Last, Other Name, "Title", ICML 2022 (arXiv:2201.00001)'
        )
        entries |= dict.fromkeys(map(_entry, papers) if papers else [said])
    return "\n\n".join([*entries, _own_entry()]) + "\n"


def _methods(of: str | Path) -> Iterator[str]:
    """Yield the methods of a name, a file or a folder."""
    text = str(of)
    if isinstance(of, str) and (":" in text or text.lower() in accepted()):
        yield text if ":" in text else text.lower()
        return
    path = Path(of)
    with storage(f"look into {path}"):
        files = [path] if path.is_file() else sorted(path.rglob(CONFIG), key=_outer_first)
        there = path.exists()
    if not files and there:
        raise ConfigError(f"{path} holds no run: it has no {CONFIG} in it, nor below")
    if not files:
        names = [*accepted(), *(kind.__name__ for kind in algorithms().values())]
        raise ConfigError(
            f"{text!r} is no method, and there is no such experiment file or folder of runs: "
            f"{nearest(text, names)}"
        )
    for file in files:
        tables = read_toml(file)
        for table in (tables.get("algorithm", {}), *tables.get("compare", [])):
            name = str(table.get("name", AUTO))
            yield name if ":" in name else name.lower()


def _outer_first(path: Path) -> tuple[int, Path]:
    """Sort the file of a comparison, which has the order, before the files of its runs."""
    return len(path.parts), path


def _entry(paper: Paper) -> str:
    """Return a paper's entry."""
    kind, where = "misc", dict[str, str]()
    if paper.venue in JOURNALS:
        kind, where = "article", {"journal": JOURNALS[paper.venue]}
    elif paper.venue:
        kind, where = "inproceedings", {"booktitle": VENUES.get(paper.venue, paper.venue)}
    authors = [
        f"{surname}, {name.removesuffix(surname).strip()}".removesuffix(", ")
        for name, surname in zip(paper.authors, paper.surnames, strict=True)
    ]
    word = next(w for w in re.findall(r"\w+", paper.title) if w.lower() not in _SMALL)
    first = plain(paper.surnames[0].split()[0].replace("-", ""))
    eprint = {"eprint": paper.arxiv, "archiveprefix": "arXiv"} if paper.arxiv else {}
    return _written(kind, f"{first}{paper.year}{plain(word)}", {
        "author": " and ".join(map(_tex, authors)), "title": f"{{{_tex(paper.title)}}}",
        **where, "year": str(paper.year), **eprint,
    })  # fmt: skip


_SMALL = {"a", "an", "the", "on", "of", "and", "in", "for"}


def _own_entry() -> str:
    """Return the entry of this package."""
    import yaml

    inside = _PACKAGE / _CITATION
    file = inside if inside.is_file() else _PACKAGE.parent / _CITATION
    stated: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
    people = [
        f"{{{_tex(who['name'])}}}" if "name" in who
        else _tex(f"{who['family-names']}, {who['given-names']}")
        for who in stated["authors"]
    ]  # fmt: skip
    fields = {"title": stated["title"], "author": " and ".join(people)}
    fields |= {
        key: str(stated[key]) for key in ("version", "license", "doi", "url") if key in stated
    }
    if "date-released" in stated:
        fields["year"] = str(stated["date-released"])[:4]
    return _written("software", stated["title"].replace("-", "_"), fields)


def _written(kind: str, key: str, fields: dict[str, str]) -> str:
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])


_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r ",
    "\u030c": "v ", "\u0327": "c ", "\u0328": "k ",
}  # fmt: skip
_LETTERS = {"ł": "\\l", "Ł": "\\L", "ø": "\\o", "Ø": "\\O", "ß": "\\ss", "ı": "\\i"}


def _tex(text: str) -> str:
    r"""Return a text for BibTeX of any age: accents as commands, special characters escaped.

    >>> print(_tex("Michał Grudzień & Richtárik"))
    Micha{\l} Grudzie{\'n} \& Richt{\'a}rik
    """
    written = ""
    for letter in unicodedata.normalize("NFC", text):
        base, *marks = list(unicodedata.normalize("NFD", letter))
        if letter in _LETTERS:
            written += f"{{{_LETTERS[letter]}}}"
        elif len(marks) == 1 and marks[0] in _ACCENTS:
            written += f"{{\\{_ACCENTS[marks[0]]}{base}}}"
        else:
            written += f"\\{letter}" if letter in "&%$#_" else letter
    return written


def plain(text: str) -> str:
    """Return a text's letters and digits, in lower case without accents, to compare names.

    >>> plain("Tran-Dinh"), plain("Grudzień")
    ('trandinh', 'grudzien')
    """
    letters = unicodedata.normalize("NFD", text.lower().replace("ł", "l").replace("ø", "o"))
    return re.sub(r"[^a-z0-9]", "", letters)
