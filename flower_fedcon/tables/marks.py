"""Marks: categories, outcomes and clients as text, and marks that are easily confused."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal

_WHOLE = re.compile(r"(0|-?[1-9][0-9]*)\.0")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
DATE = re.compile(r"(\d{4}([-/.])\d\d?\2\d\d?|\d\d?([-/.])\d\d?\3(\d{4}|\d\d))($|[ T])")
EXACT = 2.0**53  # from here on a float cannot hold every whole number
_COMMA = re.compile(r"([+-]?[0-9]+),([0-9]+)")
_BLANK = re.compile(r"[\s_]+")
_ROMAN = re.compile(r"x*(ix|iv|v?i*)")
_BETWEEN = re.compile(r"(?<=[^\W\d])[.,;:'\"/-]+(?=[^\W\d])")
_NINES = re.compile(r"-9+|-8+|9{3,}")
_MISSING = {
    "n/a", "na", "n.a.", "#n/a", "nan", "null", "none", "nil", "missing", "<na>", "unknown", "unk",
    "nd", "n.d.", ".", "..", "-", "--", "*", "?", "not available", "not known",
}  # fmt: skip
_ID = re.compile(
    r"(^|[^a-z])((|[cpsu]|[bcdfghj-np-tv-z]{2})id|ids|key|[gu]uid|mrn"
    r"|(u?subj(ect)?|pat(ient)?|pers(on)?|participant|case|record)[ _.-]*"
    r"(id|key|code|nr|no|num(ber)?)"
    r"|subject|patient|person|participant)$"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SPELLINGS = {"true": True, "t": True, "yes": True, "y": True, "1": True,
              "false": False, "f": False, "no": False, "n": False, "0": False}  # fmt: skip
_PAIRS = {"true": "false", "t": "f", "yes": "no", "y": "n", "1": "0"}
_OPPOSITES = _PAIRS | {no: yes for yes, no in _PAIRS.items()}


def canonical(value: object) -> str:
    """Return a category, or another mark, as text without surrounding blanks.

    "1" and "1.0" are equal, since files often have "1.0" in a column of whole numbers with a
    missing value. All other texts stay distinct, such as "01", "1.00" and "1e0".

    >>> [canonical(value) for value in (1, 1.0, "1.0", " b ", "01067", "1E2", True)]
    ['1', '1', '1', 'b', '01067', '1E2', 'True']
    """
    text = str(value).strip()
    return text[:-2] if _WHOLE.fullmatch(text) else text


def number_in(text: str) -> float | None:
    """Return the number in a text, written in ASCII digits with a decimal point; else None.

    >>> number_in("-1.5e3"), number_in("1,5"), number_in("nan"), number_in("1_000")
    (-1500.0, None, None, None)
    """
    return float(text) if _NUMBER.fullmatch(text) else None


def boolean_in(mark: str) -> bool | None:
    """Return True or False for a mark that is a usual spelling of it; else None.

    >>> boolean_in("TRUE"), boolean_in("No"), boolean_in("0"), boolean_in("2")
    (True, False, False, None)
    """
    return _SPELLINGS.get(mark.lower())


def opposite(mark: str) -> str:
    """Return the other word of a pair, in the same spelling; "" for a mark without a pair.

    >>> opposite("yes"), opposite("FALSE"), opposite("True"), opposite("1"), opposite("ill")
    ('no', 'TRUE', 'False', '0', '')
    """
    other = _OPPOSITES.get(mark.lower(), "")
    return other.upper() if mark.isupper() else other.title() if mark.istitle() else other


def text_of(cell: object) -> str | None:
    """Return a cell as text; None for a null, as opposed to a mark of a missing value.

    >>> text_of(" 01 "), text_of(7), text_of(True), text_of(None), text_of(float("nan"))
    (' 01 ', '7', 'True', None, None)
    """
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    return cell.decode() if isinstance(cell, bytes) else str(cell)


def unfit_mark(cell: object) -> str:
    """Return what is expected instead of a cell that cannot be a mark; "" if it can be one.

    >>> unfit_mark(12345678901234567.0), unfit_mark(12345678901234567)
    ('text, or a number below 2^53: a float has lost digits', '')
    """
    if isinstance(cell, float) and abs(cell) >= EXACT:
        return "text, or a number below 2^53: a float has lost digits"
    return "text without a NUL character" if isinstance(cell, str) and "\0" in cell else ""


def folded(mark: str) -> str:
    r"""Return a mark without easily overlooked parts: case, accents, blanks, signs in words.

    Invisible signs are dropped, and so is the quote with which spreadsheets mark text. A decimal
    comma becomes a point. Meaningful signs stay: "A+" is not "A-", and "<5" not ">5".

    >>> folded("North-East "), folded("Zürich"), folded("A+"), folded("A-"), folded("01")
    ('northeast', 'zurich', 'a+', 'a-', '1.0')
    >>> folded("dead\u200b"), folded("'7"), folded("1,5"), folded("1,5,2")
    ('dead', '7.0', '1.5', '1,5,2')
    >>> folded("12345678901234567") == folded("12345678901234568")
    False
    """
    seen = "".join(sign for sign in mark if unicodedata.category(sign) != "Cf").strip()
    mark = _COMMA.sub(r"\1.\2", seen) if _COMMA.fullmatch(seen) else seen
    if mark[:1] == "'" and number_in(mark[1:]) is not None:
        mark = mark[1:]
    number = number_in(mark)
    if number is not None and math.isfinite(number):
        if abs(number) < EXACT:
            return repr(number)
        whole, _, rest = f"{Decimal(mark):f}".partition(".")
        return f"{whole}.{rest.rstrip('0') or '0'}"
    plain = unicodedata.normalize("NFKD", mark.casefold())
    plain = "".join(sign for sign in plain if not unicodedata.combining(sign))
    return _BETWEEN.sub("", _BLANK.sub("", plain)).rstrip(".") or mark


def near_duplicates(marks: Iterable[str]) -> list[list[str]]:
    """Return the groups of marks that probably mean the same.

    They differ only in parts that `folded` drops; or one is the first letter of the only word that
    begins with it (Roman numerals are not words); or all marks are spellings of true and false.

    >>> near_duplicates(["M", "m", "male", "f", "female", "01", "1.00"])
    [['M', 'm', 'male'], ['f', 'female'], ['01', '1.00']]
    >>> near_duplicates(["yes", "N", "0"]), near_duplicates(["A+", "A-", "AB"])
    ([['N', '0']], [])
    >>> near_duplicates(["I", "II", "III"]), near_duplicates(["1.5", "1,5", "2"])
    ([], [['1.5', '1,5']])
    """
    groups: dict[str, list[str]] = {}
    for mark in marks:
        groups.setdefault(folded(mark), []).append(mark)
    truths = {key: boolean_in(key.removesuffix(".0")) for key in groups}
    if None not in truths.values():
        joined: dict[bool | None, list[str]] = {}
        for key, group in groups.items():
            joined.setdefault(truths[key], []).extend(group)
        return [group for group in joined.values() if len(group) > 1]
    words: dict[str, list[str]] = {}
    for key in groups:
        if len(key) > 2 and key.isalpha() and not _ROMAN.fullmatch(key):
            words.setdefault(key[0], []).append(key)
    for letter, keys in words.items():
        if letter in groups and len(keys) == 1:
            groups[letter] += groups.pop(keys[0])
    return [group for group in groups.values() if len(group) > 1]


def looks_missing(mark: str, *, outcome: bool = False) -> bool:
    """Return whether a mark looks like a code for a missing value.

    In an `outcome`, which has few codes, 9 and 99 do, too.

    >>> [looks_missing(mark) for mark in ("N/A", "null", "-999", "9", "none of these")]
    [True, True, True, False, False]
    >>> looks_missing("9", outcome=True)
    True
    """
    if outcome and mark in ("9", "99"):
        return True
    return mark.casefold() in _MISSING or bool(_NINES.fullmatch(mark))


def fills_in(value: float) -> bool:
    """Return whether a number looks like a code for a missing value: nines, or eights.

    >>> [fills_in(value) for value in (-999.0, 99.0, -99.9, 9999.0, -8.0, 9.0, 989.0)]
    [True, True, True, True, True, False, False]
    """
    digits = f"{abs(value):.10g}".replace(".", "")
    return set(digits) in ({"9"}, {"8"}, {"7"}) and (len(digits) > 1 or value < 0)


def is_id(name: str) -> bool:
    """Return whether a column has the name of an identifier.

    >>> [is_id(name) for name in ("id", "patient_id", "PatientID", "Subject No", "subjid", "mrn")]
    [True, True, True, True, True, True]
    >>> [is_id(name) for name in ("uric_acid", "cases", "covid", "paid", "monkey")]
    [False, False, False, False, False]
    """
    return bool(_ID.search(_CAMEL.sub("_", name.strip()).casefold()))
