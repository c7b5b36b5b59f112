"""A model's terms, built from a table's columns: a list, or a formula.

A term is a feature, a basis of a numeric feature, or a product of these:

    age              the column itself; of a category a column for each level but the reference
    rcs(bmi, 4)      a restricted cubic spline with this number of knots (3 to 7), as `rms::rcs`
    rcs(bmi, [20, 25, 30])   with these knots
    poly(dose, 2)    orthogonal polynomials over all rows, as R's `poly`; raw=True for powers
    missing(bmi)     1 where the value is missing, else 0
    age:sex          the products of the columns of both

Names that are not single words are written in backticks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flower_fedcon.errors import ConfigError, nearest, needing

PLAIN, SPLINE, POLYNOMIAL, MISSING = BASES = "", "rcs", "poly", "missing"
MOST_DEGREE = 6
QUANTILES = {
    3: (0.1, 0.5, 0.9),
    4: (0.05, 0.35, 0.65, 0.95),
    5: (0.05, 0.275, 0.5, 0.725, 0.95),
    6: (0.05, 0.23, 0.41, 0.59, 0.77, 0.95),
    7: (0.025, 0.1833, 0.3417, 0.5, 0.6583, 0.8167, 0.975),
}
"""Harrell's quantiles for the knots, by their number."""
_WORD = re.compile(r"[^\W\d][\w.]*")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\((.*)\)", re.DOTALL)
_INSTEAD = {
    "I": "poly(x, 2, raw=True), or transform of a feature in the schema",
    "log": 'transform = "log" of the feature in the schema',
    "np.log": 'transform = "log" of the feature in the schema',
    "sqrt": 'transform = "sqrt" of the feature in the schema',
    "exp": "a column of the file that holds it",
    "offset": 'offset = "column" in the schema',
    "C": "the name alone; categories and reference stand in [features]",
    "factor": "the name alone; categories and reference stand in [features]",
    **dict.fromkeys(("ns", "bs", "cr", "cc", "s", "pspline"), "rcs(x, 4)"),
    "strata": 'strata = "column" in the schema',
}


@dataclass(frozen=True)
class Factor:
    """A feature in a term, with its basis.

    Attributes
    ----------
    feature : str
    basis : {"", "rcs", "poly", "missing"}
    number : int
        The number of knots, or the degree.
    knots : tuple of float
        The given knots.
    raw : bool
        Whether polynomials are powers.
    """

    feature: str
    basis: str = PLAIN
    number: int = 0
    knots: tuple[float, ...] = ()
    raw: bool = False

    @property
    def text(self) -> str:
        """As it is written.

        >>> Factor("body mass", SPLINE, 3, (20.0, 25.5, 30.0)).text
        'rcs(`body mass`, [20, 25.5, 30])'
        """
        name = self.feature if _WORD.fullmatch(self.feature) else f"`{self.feature}`"
        if self.basis == PLAIN:
            return name
        if self.basis == MISSING:
            return f"missing({name})"
        knots = f"[{', '.join(f'{knot:.12g}' for knot in self.knots)}]"
        argument = knots if self.knots else str(self.number)
        return f"{self.basis}({name}, {argument}{', raw=True' if self.raw else ''})"


@dataclass(frozen=True)
class Term:
    """A product of factors, in the order in which it was written."""

    factors: tuple[Factor, ...]

    @property
    def text(self) -> str:
        """As it is written."""
        return ":".join(factor.text for factor in self.factors)

    @property
    def key(self) -> frozenset[Factor]:
        """A key that does not depend on the order of factors."""
        return frozenset(self.factors)


def terms_of(texts: Iterable[str]) -> tuple[Term, ...]:
    """Return the terms of a list, each once.

    Raises
    ------
    ConfigError
        If one cannot be read.

    Examples
    --------
    >>> [term.text for term in terms_of(["age", "age:sex", "sex : age", "rcs(bmi,4)"])]
    ['age', 'age:sex', 'rcs(bmi, 4)']
    """
    terms: dict[frozenset[Factor], Term] = {}
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f'a term must be text such as "age:sex", got {text!r}')
        factors = tuple(dict.fromkeys(_factor(part, text) for part in _split(text)))
        term = Term(factors)
        terms.setdefault(term.key, term)
    return tuple(terms.values())


def formula_terms(formula: str, target: str) -> tuple[Term, ...]:
    """Return the terms of a formula, by formulaic's grammar: +, :, *, ^, /, - and brackets.

    Parameters
    ----------
    formula : str
        With the target on its left, or only the right-hand side.
    target : str

    Raises
    ------
    ConfigError
        If the formula cannot be read or leaves out the intercept, or formulaic is not installed.

    Examples
    --------
    >>> [term.text for term in formula_terms("y ~ (age + sex)^2 + rcs(bmi, 4)", "y")]
    ['age', 'sex', 'rcs(bmi, 4)', 'age:sex']
    """
    listed = 'write the terms as a list, such as terms = ["age", "sex", "age:sex"]'
    with needing(f"reading formula = {formula!r} needs formulaic", "formula", listed):
        from formulaic.parser import DefaultFormulaParser  # type: ignore[import-untyped]
    if not isinstance(formula, str):
        raise ConfigError(f"formula must be text, got {formula!r}")
    if bars := re.search(r"\(([^()|]*)\|([^()|]*)\)", formula):
        raise ConfigError(
            f"{bars[0]!r} in formula = {formula!r} is not a term of a schema: for random "
            f"intercepts write"
            f' site_effects = "random" in [problem] and cluster = '
            f'"{bars[2].strip()}" in the '
            "schema"
        )
    try:
        parsed = DefaultFormulaParser().get_terms(formula)
        sides = parsed._to_dict() if hasattr(parsed, "_to_dict") else {}
        right = list(sides.get("rhs", sides.get("root", parsed)))
        left = [str(term) for term in sides.get("lhs", ())]
    except Exception as error:  # the library may raise anything for a formula that it cannot read
        said = " ".join(str(error).split())
        raise ConfigError(f"formula = {formula!r} cannot be read: {said}") from None
    if left and left != [target]:
        raise ConfigError(
            f"formula = {formula!r} has the target {', '.join(left)}, and the schema's is "
            f"{target!r}: write that, or only the right-hand side"
        )
    if "1" not in map(str, right):
        raise ConfigError(
            f"formula = {formula!r} leaves out the intercept, which models of tables always have: "
            f"remove - 1, or 0 +"
        )
    terms: dict[frozenset[Factor], Term] = {}
    for term in right:
        if str(term) == "1":
            continue
        factors = []
        for factor in term.factors:
            looked_up = factor.eval_method.value == "lookup"
            factors.append(Factor(factor.expr) if looked_up else _factor(factor.expr, formula))
        made = Term(tuple(dict.fromkeys(factors)))
        terms.setdefault(made.key, made)
    return tuple(sorted(terms.values(), key=lambda term: len(term.factors)))


def check_terms(
    terms: Sequence[Term], numeric: Sequence[str], categorical: Sequence[str], what: str
) -> None:
    """Raise unless terms consist of features, with bases only for numeric ones.

    Raises
    ------
    ConfigError
    """
    for term in terms:
        for factor in term.factors:
            if factor.feature not in (*numeric, *categorical):
                hint = nearest(factor.feature, [*numeric, *categorical])
                raise ConfigError(
                    f"{what}: {factor.feature!r} (in {term.text}) is not a feature: {hint}"
                )
            if factor.basis in (SPLINE, POLYNOMIAL) and factor.feature in categorical:
                raise ConfigError(
                    f"{what}: {factor.text} has a categorical feature, and {factor.basis} is for "
                    f"numeric ones: write {factor.feature}"
                )
        names = [factor.feature for factor in term.factors]
        if len(set(names)) != len(names):
            raise ConfigError(
                f"{what}: {term.text} multiplies {max(names, key=names.count)!r} by itself: write "
                "poly(x, 2) for a power"
            )


def _split(text: str, by: str = ":") -> list[str]:
    """Return the parts between colons (or `by`) that are outside brackets and backticks."""
    parts, depth, quoted = [""], 0, False
    for sign in text:
        quoted ^= sign == "`"
        depth += 0 if quoted else (sign in "([") - (sign in ")]")
        if sign == by and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _factor(text: str, whole: str) -> Factor:
    term = text.strip()
    if (name := _name(term)) is not None:
        return Factor(name)
    call = _CALL.fullmatch(term)
    if call is None:
        raise ConfigError(
            f"{term!r} in {whole!r} is not a term: write a feature, rcs(x, 4), poly(x, 2), "
            f"missing(x), or products such as age:sex; put names that are not single words in "
            f"backticks"
        )
    kind, inner = call.groups()
    if kind not in BASES:
        remedy = _INSTEAD.get(kind, "rcs(x, 4), poly(x, 2) or missing(x)")
        raise ConfigError(f"{kind}() in {whole!r} is not available: write {remedy}")
    first, *rest = _split(inner, ",")
    name = _name(first)
    if name is None:
        raise ConfigError(f"{term!r} in {whole!r}: {first!r} is not a name of a feature")
    if kind == MISSING:
        if rest:
            raise ConfigError(f"{term!r} in {whole!r}: missing takes only a feature")
        return Factor(name, MISSING)
    values = [_value(part, term) for part in rest]
    return _spline(name, values, term) if kind == SPLINE else _polynomial(name, values, term)


def _spline(name: str, values: list[tuple[str, object]], own: str) -> Factor:
    arguments = dict(values) if all(key for key, _ in values) else {"knots": values[0][1]}
    if len(values) > 1 or not arguments.keys() <= {"knots"}:
        raise ConfigError(f"{own!r}: write rcs(x, 4), or rcs(x, [20, 25, 30]) for these knots")
    given = arguments.get("knots", 5)
    if isinstance(given, list):
        knots = tuple(float(knot) for knot in given)
        if len(knots) < 3 or any(a >= b for a, b in pairwise(knots)):
            raise ConfigError(f"{own!r}: give at least three knots, in ascending order")
        return Factor(name, SPLINE, len(knots), knots)
    if given not in QUANTILES:
        raise ConfigError(f"{own!r}: the number of knots must be from 3 to 7, got {given!r}")
    return Factor(name, SPLINE, int(given))


def _polynomial(name: str, values: list[tuple[str, object]], own: str) -> Factor:
    arguments = {key or "degree": value for key, value in values}
    degree, raw = arguments.get("degree"), arguments.get("raw", False)
    whole = isinstance(degree, int) and not isinstance(degree, bool)
    if len(arguments) != len(values) or not arguments.keys() <= {"degree", "raw"} or not whole:
        raise ConfigError(f"{own!r}: write poly(x, 2), or poly(x, 2, raw=True)")
    if not 1 <= int(degree) <= MOST_DEGREE or not isinstance(raw, bool):  # type: ignore[call-overload]
        raise ConfigError(
            f"{own!r}: the degree must be from 1 to {MOST_DEGREE}, got {degree!r}: use rcs(x, 5) "
            f"for more flexible curves"
        )
    return Factor(name, POLYNOMIAL, int(degree), raw=raw)  # type: ignore[call-overload]


def _name(text: str) -> str | None:
    name = text.strip()
    if len(name) > 2 and name[0] == name[-1] == "`" and "`" not in name[1:-1]:
        return name[1:-1]
    return name if _WORD.fullmatch(name) else None


def _value(text: str, own: str) -> tuple[str, object]:
    """Return an argument's name (or "") and its value; c(1, 2) is a list in R's form."""
    key, _, rest = text.rpartition("=")
    plain = re.sub(r"^\s*c\((.*)\)\s*$", r"[\1]", rest, flags=re.DOTALL).strip()
    plain = {"TRUE": "True", "FALSE": "False"}.get(plain, plain)
    try:
        value = ast.literal_eval(plain)
    except (ValueError, SyntaxError):
        raise ConfigError(
            f"{own!r}: {text.strip()!r} is neither a number nor a list of numbers"
        ) from None
    listed = list(value) if isinstance(value, tuple | list) else value
    numbers = listed if isinstance(listed, list) else [listed]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ConfigError(f"{own!r}: {text.strip()!r} is neither a number nor a list of numbers")
    return key.strip(), listed
