"""What the weights of rows mean.

A *frequency* is a number of equal rows: a fit has as many rows as the weights sum to. A *sampling*
weight says how many rows of a population one row stands for (a survey's weight, or the inverse of a
probability). Coefficients are the same; errors are not. With sampling weights they are those of
R's `survey` and `sandwich`: a row's score counts by its square, sum w_i^2 s_i s_i', a fit has as
many rows as have a weight, and there is no likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, number_of
from flower_fedcon.validation import Array, choice

FREQUENCY, SAMPLING = KINDS = ("frequency", "sampling")
_ASKED = (
    f'give weight_kind="{SAMPLING}" if a row stands for so many of a population (weights of a '
    f'survey, or inverse probabilities), or weight_kind="{FREQUENCY}" if it stands for so many '
    "equal rows"
)


def kind_of_weights(stated: Any, inference: str, doubt: str) -> str:
    """Return the kind of weights, by which errors are computed.

    Parameters
    ----------
    stated : {"frequency", "sampling"} or None
    inference : str
        What depends on it, for the message.
    doubt : str
        Why the weights may not count rows; "" if they do.

    Raises
    ------
    ConfigError
        If the kind is not stated, and the weights do not count rows.

    Examples
    --------
    >>> kind_of_weights(None, "errors", ""), kind_of_weights("sampling", "errors", "0.5 of a row")
    ('frequency', 'sampling')
    """
    if stated:
        return choice("weight_kind", stated, KINDS)
    if doubt:
        raise ConfigError(f"{doubt}, and {inference} depend on what they mean: {_ASKED}")
    return FREQUENCY


def kind_in_words(stated: Any, doubt: str = "") -> str:
    """Return the kind of weights as every report says it, and whether it is a default.

    >>> kind_in_words("sampling"), kind_in_words(None), kind_in_words(None, "0.5 of a row")
    ('sampling', 'frequency, as no weight_kind is stated', 'of no stated weight_kind')
    """
    if stated:
        return str(stated)
    return "of no stated weight_kind" if doubt else f"{FREQUENCY}, as no weight_kind is stated"


def asks_for_kind(column: str, stated: Any, weights: Array) -> list[str]:
    """Return the question what a table's weights mean; [] if it is stated, or all are 1.

    >>> asks_for_kind("w", None, np.array([1.0, 3.0]))[0][:57]
    "column 'w': weights of no stated kind, on which errors de"
    >>> asks_for_kind("w", None, np.ones(2)), asks_for_kind("w", "sampling", np.ones(1) / 3)
    ([], [])
    """
    if stated or (weights == 1).all():
        return []
    return [f"column {column!r}: weights of no stated kind, on which errors depend: {_ASKED}"]


def of_sites(names: Sequence[str], sums: Sequence[float], rows: Sequence[int]) -> str:
    """Return why the weights of sites may not count rows, by their sums; "" if they do.

    >>> of_sites(["a", "b"], [40.0, 37.5], [12, 20])
    'the weights of b sum to 37.5 over 20 rows'
    """
    for name, total, count in zip(names, sums, rows, strict=True):
        if total != round(total) or total <= count:  # in the last case their mean may have become 1
            return f"the weights of {name} sum to {total:.10g} over {number_of(count, 'row')}"
    return ""


def effective_number(sums: Sequence[float], effective: Sequence[float]) -> float:
    """Return Kish's effective number of the rows of all sites, (sum w)^2 / sum w^2.

    Parameters
    ----------
    sums, effective : sequence of float
        Of each site the sum of its weights, and its own effective number.

    Examples
    --------
    >>> effective_number([4.0, 2.0], [2.0, 1.0])  # the weights are 2, 2 and 2
    3.0
    """
    top = max(sums)
    shares = [one / top for one in sums]
    squares = [one * one / n for one, n in zip(shares, effective, strict=True) if n]
    return math.fsum(shares) ** 2 / math.fsum(squares)


def as_rows(weights: Array, kind: str) -> Array:
    """Return weights as numbers of rows: of sampling, or not whole, with their effective sum.

    >>> as_rows(np.array([2.0, 2.0, 4.0]), "sampling").sum().round(3), as_rows(np.ones(2), "")
    (np.float64(2.667), array([1., 1.]))
    """
    if kind == FREQUENCY or (kind != SAMPLING and (weights == np.rint(weights)).all()):
        return weights
    counted: Array = weights * (weights.sum() / np.square(weights).sum())
    return counted


def in_words(kind: str, rows: float, total: float, effective: float = math.nan) -> str:
    """Return what a fit's weights are, and what they add up to.

    >>> in_words("frequency", 72, 1681.0)
    'frequency (sum 1681 over 72 rows)'
    >>> in_words("sampling", 200, 6194.0, 187.26)
    'sampling (sum 6194 over 200 rows; effective number of rows 187.3)'
    """
    more = "" if math.isnan(effective) else f"; effective number of rows {effective:.4g}"
    return f"{kind} (sum {total:.10g} over {number_of(rows, 'row')}{more})"


def counted_once(column: str) -> str:
    """Return what a table of counts says of weights.

    >>> counted_once("Freq")
    "each row counts once here, without its weight in 'Freq'"
    """
    return f"each row counts once here, without its weight in {column!r}"


def said_of(stated: Any, rows: float, total: float) -> tuple[str, ...]:
    """Return the note of a fit whose weights count rows, without that anybody has said so.

    >>> said_of(None, 200, 6150.0)[0][:34]
    'the weights count 200 rows as 6150'
    >>> said_of("frequency", 200, 6150.0)
    ()
    """
    if stated or total == rows:
        return ()
    return (
        f"the weights count {number_of(rows, 'row')} as {total:.10g}: if a row stands for so many "
        f'of a population, give weight_kind="{SAMPLING}"',
    )


NO_OWN_FITS = (
    "heterogeneity compares sites' own fits by the errors of the model, which take a weight for so "
    f'many rows (weight_kind="{SAMPLING}"): leave it out'
)
NO_RANDOM = (
    'site_effects="random" needs the likelihood of all rows, and sampling weights of rows give '
    f'none without weights of the groups, too (weight_kind="{SAMPLING}"): use site_effects="own" '
    'or "common" with inference="cluster"'
)
NO_LIKELIHOOD = (
    f'weights of the kind "{SAMPLING}" give no likelihood, so there is no likelihood-ratio test: '
    "use joint_test"
)
NO_SCORE_TESTS = (
    "score tests take a weight for so many rows, and sampling weights count no rows "
    f'(weight_kind="{SAMPLING}")'
)


def check_sampling(inference: str | None) -> None:
    """Refuse, beside sampling weights, errors that take a weight for so many rows.

    Raises
    ------
    ConfigError
    """
    if inference not in (None, "robust", "cluster"):
        raise ConfigError(
            f"inference={inference!r} takes a weight for so many rows, and sampling weights count "
            f'no rows (weight_kind="{SAMPLING}"): use inference="robust" or "cluster"'
        )
