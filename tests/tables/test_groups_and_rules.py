"""One of three sites whose groups have one mean, or whose columns follow from each other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flower_fedcon.tables import Schema
from flower_fedcon.tables.checks.beside_others import rows_beside_others
from flower_fedcon.tables.site_rows import SiteRows

SCHOOLS, YEARS = 15, 8
NUMBERS, LEVELS = ["year", "score", "rate", "ill"], ["sex", "married"]


def rows(site: int) -> pd.DataFrame:
    """Pupils of schools, a row each year; schools differ, and girls score more."""
    rng = np.random.default_rng(site)
    school, year = np.divmod(np.arange(SCHOOLS * YEARS), YEARS)
    sex, married = (rng.choice(list(marks), len(school)) for marks in ("FM", "NY"))
    of_school = rng.normal(0, 9, SCHOOLS)[school]
    return pd.DataFrame({
        "school": school, "year": year, "sex": sex, "married": married,
        "score": (50 + 15 * (sex == "F") + of_school + rng.normal(0, 9, len(school))).round(4),
        "rate": (of_school / 45 + rng.normal(1.2, 0.2, len(school))).round(4),
        "ill": rng.poisson(1.0, len(school)), "y": rng.normal(0, 1, len(school)),
    })  # fmt: skip


def table(d: pd.DataFrame) -> SiteRows:
    features = dict.fromkeys(NUMBERS, "numeric") | dict.fromkeys(LEVELS, "categorical")
    schema = Schema.load({"target": "y", "cluster": "school", "features": features})
    return SiteRows("", schema, d["y"].to_numpy(), None, d[NUMBERS].to_numpy(float),
                    d[LEVELS].to_numpy(str), clusters=d["school"].to_numpy(),
                    cluster_names=[f"s{k}" for k in range(SCHOOLS)])  # fmt: skip


def less_means(d: pd.DataFrame, column: str, of: str) -> pd.DataFrame:
    means = d.groupby(of)[column].transform("mean")
    return d.assign(**{column: (d[column] - means + 40).round(4)})


def year_means(d: pd.DataFrame) -> pd.DataFrame:
    return d.assign(rate=d.groupby("year")["rate"].transform("mean").round(2))


def index(d: pd.DataFrame) -> pd.DataFrame:
    return d.assign(rate=(d["rate"] / d.groupby("school")["rate"].transform("first")).round(4))


MESSES = {  # what site b does to its rows, and what is said
    "as it is": (lambda d: d, ""),
    "centred": (lambda d: less_means(d, "score", "school"),
                "column 'score': its means in the 15 clusters of b with several rows are all 40, "),
    "rounded": (lambda d: less_means(d, "score", "school").round({"score": 0}), ""),
    "by sex": (lambda d: less_means(d, "score", "sex"),
               "column 'score': its mean at b is 40 with each value of 'sex', up to rounding, and"),
    "by marriage": (lambda d: less_means(d, "score", "married"), ""),  # elsewhere alike, too
    "of the year": (year_means, "column 'rate': at b it has one value for each of the 8 of 'year"),
    "a default": (lambda d: d.assign(married=np.where(d["sex"] == "M", "Y", "N")),
                  "column 'married': at b it has one value for each of the 2 of 'sex', and elsew"),
    "any": (lambda d: d.assign(married=np.where(d["ill"] > 1, "Y", "N")),
            "column 'married': at b it has one value for each of the 6 of 'ill', and elsewhere n"),
    "nearly": (lambda d: d.assign(married=np.where((d["sex"] == "M") ^ (d.index < 2), "Y", "N")),
               ""),
    "index": (index, "column 'rate': the first row of each of 15 clusters of b has 1, and elsewh"),
}  # fmt: skip


@pytest.mark.parametrize("mess", MESSES)
def test_a_mess_of_one_site_is_said(mess):
    spoil, words = MESSES[mess]
    sites = [table(spoil(rows(site)) if site == 1 else rows(site)) for site in range(3)]
    found = list(rows_beside_others("abc", sites))
    assert any(words in line for line in found) == bool(words), found


@pytest.mark.parametrize("mess", MESSES)
def test_what_all_sites_do_is_no_mess(mess):
    spoil, _ = MESSES[mess]
    assert not list(rows_beside_others("abc", [table(spoil(rows(site))) for site in range(3)]))


@pytest.mark.parametrize(
    ("turned", "said"),
    [
        (SCHOOLS, "columns 'year' and 'score': within 'school' one falls with the other at b"),
        (2, ""),  # of a few schools alone, with large values
    ],
)
def test_years_that_are_counted_backwards_within_schools(turned, said):
    """Between schools year and score go together in no way."""
    sites = []
    for site in range(3):
        d = rows(site)
        d["year"] = d["year"].astype(float)
        d["score"] = (d["year"] + 20.0 * (d["school"] % 4)).round(2) + d["rate"]
        if site == 1:
            odd = d["school"] < turned
            far = 9 if turned < SCHOOLS else 1
            d.loc[odd, ["year", "score"]] = far * np.c_[YEARS - d["year"], d["score"]][odd]
        sites.append(table(d))
    found = [line for line in rows_beside_others("abc", sites) if "counted backwards" in line]
    assert [said in line for line in found] == [True] * bool(said), found


CLINICS = ["insured", "aided"]
RULES = {  # what site b does to its visits, by insurance, aid and stays, and what is said
    "as it is": (lambda y, one, two, stays: y, ""),
    "unpaid": (lambda y, one, two, stays: np.where((one == "N") & (two == "N"), 0, y),
               "columns 'insured' and 'aided': none of the 96 rows of b with "),
    "few": (lambda y, one, two, stays: np.where((one == "N") & (two == "N") & (stays > 0), 0, y),
            ""),
    "counted twice": (lambda y, one, two, stays: y + 10 * stays,
                      "column 'y': the 111 rows of b with 'stays' 1 have 10 or more, and "),
    "more of them": (lambda y, one, two, stays: y * (1 + 10 * stays), ""),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_one_site_is_said(rule):
    spoil, words = RULES[rule]
    schema = Schema.load({"target": "y", "loss": "poisson", "features": {
        "stays": "numeric", **dict.fromkeys(CLINICS, "categorical")}})  # fmt: skip
    sites = []
    for site in range(3):
        rng = np.random.default_rng(site)
        stays, marks = rng.poisson(0.4, 400), rng.choice(["N", "Y"], (400, 2))
        y = rng.poisson((2 + 2 * stays) * rng.gamma(1.5, 1 / 1.5, 400))
        y = spoil(y, *marks.T, stays) if site == 1 else y
        sites.append(SiteRows("", schema, y.astype(float), None, stays[:, None] * 1.0, marks))
    found = list(rows_beside_others("abc", sites))
    assert any(words in line for line in found) == bool(words), found


def test_numbers_whose_squares_are_no_numbers_end_no_check():
    """In their own units they are 1e-200; dates and doses may be so by mistake."""
    sites = []
    for site, size in enumerate((1.0, 1.0, 1e-200)):
        d = rows(site)
        sites.append(table(d.assign(score=d["score"] * size, rate=d["rate"] * size)))
    assert all(isinstance(line, str) for line in rows_beside_others("abc", sites))
