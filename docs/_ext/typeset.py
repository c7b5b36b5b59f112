r"""Formulas of docstrings, typeset: `(1/N) sum_i f_i(x_bar)` becomes LaTeX, the words stay.

A docstring says its method once, in characters that a terminal shows. Here a line is cut at its
words, and what stands between them is written as LaTeX.
"""

import re
import textwrap
from itertools import chain, zip_longest

from docstrings import literal

GREEK = (  # noqa: SIM905
    "alpha beta gamma delta zeta eta theta kappa lambda mu nu rho sigma tau chi psi phi omega xi "
    "Gamma Delta Theta Lambda Sigma Phi Psi Omega"
).split()
SYMBOLS = {
    **{name: rf"\{name}" for name in [*GREEK, "sum", "min", "max", "inf", "log"]},
    "eps": r"\varepsilon", "grad": r"\nabla", "hess": r"\nabla^2", "zh": r"\hat{z}",
    "argmin": r"\operatorname*{arg\,min}", "prox": r"\operatorname{prox}", "fi": "f_i",
    "lmo": r"\operatorname{lmo}", "mean": r"\operatorname{mean}", "dc": r"\delta",
    "diam": r"\operatorname{diam}", "diameter": r"\operatorname{diam}", "in": r"\in",
    "Geometric": r"\operatorname{Geometric}", "sqrt": r"\sqrt",
    "al": r"\alpha", "Lt": r"\tilde{L}", "sg": r"\varsigma", "pq": "p q", "bN": "b N", "cN": "c N",
}  # fmt: skip
ACCENTS = "bar", "hat", "tilde"
SIGNS = {
    "<=": r"\le ", ">=": r"\ge ", "->": r"\to ", "||": r"\|", "...": r"\dots ", "..": r",\dots,",
    "{": r"\{", "}": r"\}", "~": r"\approx ", "*": r"\cdot ",
}  # fmt: skip
PLAIN = "that", "what"
"""Words that look like a letter with an accent."""
OPEN, CLOSE = "\x01", "\x02"
"""TeX's own braces, until all others are signs."""

TOKEN = re.compile(
    r"(?P<power>\d[\d.]*e-?\d+)|"
    r"(?P<base>[A-Za-z]+)(?P<digits>\d*)(?:_(?P<below>\w+|\{[^}]*\}))?"
    r"(?P<mark>[~*]?)(?P<plus>\+(?=[\s);]|$))?"
    r"|(?P<sign><=|>=|->|\|\||\.\.\.|\.\.|[{}~*<>])"
)
STEP = re.compile(r"(\s*)((?:\d+[a-z]?\.\s+)?)(.*)")
CUT = re.compile(r"[,;:]$|(?<![.t])\.$")
MODULUS = re.compile(r"\b(mu|L)-(?=[a-z]{3})")


def symbol(base, below=""):
    """Return a name, and what stands below it, as LaTeX; nothing for a word."""
    below = below.strip("{}").replace(" in ", r"\in ")
    accent, _, rest = below.partition("_")
    if accent in ACCENTS:
        below = rest
    elif base[1:] in ACCENTS and base.lower() not in PLAIN:
        base, accent = base[0], base[1:]
    else:
        accent = ""
    said = base if len(base) == 1 else SYMBOLS.get(base, "")
    if accent and said:
        said = rf"\{accent}{{{said}}}"
    if said and below:
        inner = latex(below) if re.search("[/,]", below) else symbol(below)
        said += f"_{{{inner or below.replace('inf', chr(92) + 'infty ')}}}"
    return said


def _token(match):
    power, base, digits, below, mark, plus, sign = match.groups(default="")
    text, start, end = match.string, match.start(), match.end()
    if power:
        factor, _, exponent = power.partition("e")
        return ("" if factor == "1" else rf"{factor}\cdot ") + f"10^{{{exponent}}} "
    if base:
        said = symbol(base, digits + below)
        if mark:
            said = rf"\tilde{{{said}}}" if mark == "~" else rf"{said}^\star"
        return f"{said}^+" if plus else f"{said} "
    if sign == "<" and not text[end : end + 1].isspace():
        return r"\langle "
    if sign == ">" and not text[start - 1 : start].isspace():
        return r"\rangle "
    return SIGNS.get(sign, sign)


def _grouped(text, before, made):
    """Return a text in which parentheses after a mark are TeX's group."""
    while before + "(" in text:
        start = text.index(before + "(") + len(before)
        depth = 0
        for end in range(start, len(text)):
            depth += (text[end] == "(") - (text[end] == ")")
            if depth == 0:
                break
        inside = text[start + 1 : end] if depth == 0 else text[start + 1 :]
        text = text[: start - len(before)] + made + OPEN + inside + CLOSE + text[end + 1 :]
    return text


def latex(text):
    """Return a formula as LaTeX."""
    text = re.sub(r"~(?= Geometric)", r"\\sim", text).replace("||_inf", r"||_\infty ")
    text = _grouped(_grouped(text, "sqrt", r"\sqrt"), "^", "^")
    text = re.sub(r"\^(-[\d.]*\d)", rf"^{OPEN}\1{CLOSE}", text)
    text = re.sub(r"\(([\w~]+)/(\w+)\)", rf"\\tfrac{OPEN}\1{CLOSE}{OPEN}\2{CLOSE}", text)
    text = text.replace("]_+", f"]_{OPEN}+{CLOSE}")
    parts = re.split(r"(\\[a-z]+)", text)  # what is LaTeX already
    text = "".join(part if i % 2 else TOKEN.sub(_token, part) for i, part in enumerate(parts))
    text = text.replace("s .t .", r"\quad\text{s.t.}\quad")
    return text.replace(OPEN, "{").replace(CLOSE, "}").strip()


def _is_word(atom):
    bases = [match["base"] for match in TOKEN.finditer(atom.replace("s.t.", "")) if match["base"]]
    return bool(re.search(r"[\"`]|'s\b", atom)) or not all(map(symbol, bases))


def _words(atoms):
    """Return for each of a line's atoms whether it is a word: some are by their neighbours."""
    words = [_is_word(atom) for atom in atoms]
    for i, atom in enumerate(atoms):
        before = atoms[i - 1] if i else ""
        after = atoms[i + 1] if i + 1 < len(atoms) else ""
        single = atom in ("a", "A", "I", "in") and (not after or words[i + 1])
        if single and not (atom == "a" and before in ("=", ":=")):
            words[i] = True
        if atom == "a" and i and words[i - 1] and re.match("[A-Za-z]{3}", after):  # "such a psi"
            words[i] = True
        if atom == "(a" and after and words[i + 1]:  # "c = 0 (a collective reset)"
            words[i] = True
        if atom == "in" and not (i and not words[i - 1]):
            words[i] = True
        if atom == "al." and before == "et":
            words[i] = True
        if re.sub(r"\W", "", atom) in ("mean", "sum", "prox") and (
            before.lower() in ("a", "of", "the") or after == "of"
        ):
            words[i] = True
    return words


def runs(text):
    """Return a line's parts: formulas at the odd places, words between them."""
    parts = re.split(r"(\s+)", text.lstrip())
    atoms, gaps = parts[::2], [*parts[1::2], ""]
    found, formula = [text[: len(text) - len(text.lstrip())]], ""
    for atom, word, gap in zip(atoms, _words(atoms), gaps, strict=True):
        if not word:
            formula += atom
            inside = sum(map(formula.count, "([<{")) > sum(map(formula.count, ")]>}"))
            if gap == " " and (inside or not CUT.search(atom)):
                formula += gap
                continue
        bare = formula.rstrip(" .,;:")
        if re.search("[A-Za-z]", bare):
            found += [bare, formula[len(bare) :]]
        else:
            found[-1] += formula
        found[-1] += (atom if word else "") + gap
        formula = ""
    return found


def mixed(text, style=""):
    """Return a line as reStructuredText, its formulas typeset."""
    parts = runs(" ".join(text.split("\n")))
    for i in range(1, len(parts), 2):
        before = r"\ " if parts[i - 1].strip() and not parts[i - 1][-1].isspace() else ""
        after = r"\ " if parts[i + 1] and not parts[i + 1][0].isspace() else ""
        parts[i] = f"{before}:math:`{style}{latex(parts[i])}`{after}"
    words = [MODULUS.sub(_modulus, literal(part)) for part in parts[::2]]
    return "".join(chain.from_iterable(zip_longest(words, parts[1::2], fillvalue="")))


def _modulus(match):
    return rf":math:`{latex(match[1])}`\ -"


PAGES = "dualfl_sampling", "sdane"
"""The pages whose formulas are typeset; a forge shows them as they stand."""
_AS_IT_IS = re.compile(r"(`[^`]*`|\[[^\]]*\]\([^)]*\)|\*\*[^*]*\*\*|(?<!\S)\*(?=\w)[^*]*\*(?!\w))")


def page(text):
    """Return a page of Markdown, its formulas typeset."""
    found, fenced = [], False
    for part in text.split("\n\n"):
        fences = part.count("```")
        if fenced or fences or part.startswith("#"):
            found.append(part)
        elif all(line.startswith("    ") for line in part.splitlines()):
            found.append(f"```{{eval-rst}}\n.. container:: algorithm\n\n{_indented(part)}\n```")
        elif part.startswith("|"):
            found.append("\n".join(map(_row, part.splitlines())))
        else:
            found += map(_marked, re.split(r"\n(?=\d+\. |- )", part))
        fenced ^= fences % 2 == 1
    return "\n\n".join(found)


def _indented(part):
    return "\n".join("   " + line for line in steps(textwrap.dedent(part)).splitlines())


def _row(line):
    if set(line) <= set("|-: "):
        return line
    return f"| {' | '.join(map(_marked, line.removeprefix('|').removesuffix('|').split(' | ')))} |"


def _marked(text):
    """Return a paragraph of Markdown, its formulas between dollars."""
    parts = _AS_IT_IS.split(text)
    for i in range(0, len(parts), 2):
        cut = runs(" ".join(parts[i].split("\n")))
        cut[::2] = [
            MODULUS.sub(lambda found: f"${latex(found[1])}$-", words)
            .replace(">=", "≥").replace("<=", "≤") for words in cut[::2]
        ]  # fmt: skip
        cut[1::2] = [f"${latex(formula)}$" for formula in cut[1::2]]
        parts[i] = "".join(cut)
    return "".join(parts)


def steps(text):
    """Return a method's steps as a block of lines, indented as they are."""
    found = [STEP.match(line).groups() for line in text.splitlines()]
    return "\n".join(f"| {indent}{number}{mixed(rest)}" for indent, number, rest in found)
