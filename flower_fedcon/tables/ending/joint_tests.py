"""Wald tests of a term with the higher-order terms that contain it, as `anova` of rms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flower_fedcon.errors import first_few
from flower_fedcon.tables.design import term_columns
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.statistics import Estimates
from flower_fedcon.tables.statistics.estimates import DEBIASED
from flower_fedcon.tables.terms import MISSING, POLYNOMIAL, SPLINE, Term

_SHOWN = 10  # terms of higher order, by name


def joint_tests(found: Estimates, preparation: Preparation) -> Iterator[str]:
    """Yield the test of each term or feature with several columns; for a basis also nonlinearity.

    A term's columns are tested together with those of all products that contain the term. Without
    these, the test would concern its effect where the other factors are 0. A single column
    therefore has a test, too, if a product contains it.

    Parameters
    ----------
    found : Estimates
        Estimates of a model with one linear predictor.
    preparation : Preparation
        The preparation of its columns.
    """
    schema = preparation.stated
    if schema is None or found.method == DEBIASED:
        return
    groups, names = preparation.groups, [*map(schema.in_words, schema.groups)]
    terms = schema.design
    bends = {} if preparation.design is None else _bends(preparation)
    for group in sorted(set(groups)):
        over = [] if not terms else _over(terms, group, groups)
        places = [j for j, other in enumerate(groups) if other == group or other in over]
        if len(places) < 2:
            continue
        beside = first_few([names[other] for other in over], _SHOWN)
        what = names[group] + (f" with those of {beside}" if over else "")
        yield f"all columns of {what}: {found.joint_in_words(places)}"
        features = _parts(terms[group]) if terms else frozenset()
        bent = [j for j in places if bends.get(j, frozenset()) & features]
        if 0 < len(bent) < len(places):
            yield f"nonlinear columns of {what}: {found.joint_in_words(bent)}"


def _parts(term: Term) -> frozenset[tuple[str, bool]]:
    """Return the factors of a term: features, with any basis, or their gaps."""
    return frozenset((factor.feature, factor.basis == MISSING) for factor in term.factors)


def _over(terms: Sequence[Term], group: int, groups: Sequence[int]) -> list[int]:
    """Return the terms whose columns are products of this one with others."""
    parts = _parts(terms[group])
    return [other for other in sorted(set(groups)) if parts < _parts(terms[other])]


def _bends(preparation: Preparation) -> dict[int, frozenset[tuple[str, bool]]]:
    """Return, for each column, the features in which it is not linear."""
    assert preparation.stated is not None  # noqa: S101  (the caller's case)
    columns = term_columns(preparation.stated, preparation.categories)
    return {
        place: frozenset(
            (part.factor.feature, False)
            for part in columns[kept][1]
            if part.factor.basis in (SPLINE, POLYNOMIAL) and part.place
        )
        for place, kept in enumerate(preparation.kept.tolist())
    }
