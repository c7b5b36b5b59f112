"""A claim's verdict: the claim and the measurement; see `claims`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.measures import MEASURES, Runs, column_of
from flower_fedcon.lab.experiments.sweeps import Places, Reader, Scaling, Sweep, as_list, quantities
from flower_fedcon.runs.toml_schema import Table
from flower_fedcon.validation import Array

WHOSE = {"paper": "the paper's", "ours": "ours", "data": "the data's"}
"""Whose fault it is that a claim does not hold; see `claims.FAULTS`."""


@dataclass(frozen=True)
class Verdict:
    """A claim with its measurement.

    Attributes
    ----------
    experiment, what, where : str
        The claims file; what was run and measured; the part of the paper.
    source : str
        The source of the claim: one of `claims.SOURCES`.
    claimed, bound : str
        The claim in the table's form, and the origin of its number: one of `claims.BOUNDS`.
    measured : str
        The measurement in the table's form.
    verdict : {"pass", "explained", "not explained", "fail"}
    note : str
        For an explained claim: whose fault it is, and why. If the measurement differs from the
        explanation's expectation, it says so. For one that holds: on what that depends.
    values : tuple of float
        All measured values: for each seed, each algorithm and each round.
    fault : str
        For an explained claim: whose fault it is, one of `claims.FAULTS`.
    companion : bool
        Whether the claim supports the explanation of one that does not hold; it is often a variant
        of that claim.
    seeds : int
        The number of seeds of runs or data over which it was judged; 0 if nothing is random.
    few_seeds : str
        Why there are not more seeds, if the claims file says so.
    paper : str
    says : str
        What the source says. Verdicts of one paper with the same text are parts of one claim.
    shown_by : tuple of str
        The claims that show the note.
    expected : str
        For an explained claim: what its explanation expects instead.
    """

    experiment: str
    what: str
    where: str
    source: str
    claimed: str
    bound: str
    measured: str
    verdict: str
    note: str
    values: tuple[float, ...]
    fault: str = ""
    companion: bool = False
    seeds: int = 0
    few_seeds: str = ""
    paper: str = ""
    says: str = ""
    shown_by: tuple[str, ...] = ()
    expected: str = ""

    @property
    def kind(self) -> str:
        """The kind of the claim: one of `claims.COUNTED`."""
        if self.source == "ours":
            return "ours"
        return "companions" if self.companion else "papers' claims"


def judge(claim: Table, runs: Runs, seeds: Sequence[int], experiment: str, sweep: Sweep) -> Verdict:
    """Return the verdict on a checked claim."""
    measure, seeded = MEASURES[claim["measure"]], _seeded(claim, runs, seeds, sweep)
    if measure.across:
        measured = [measure.find(claim, seeded)]
    else:
        measured = [measure.find(claim, rows) for places in seeded for _, rows in places]
    spread: list[Array] = []
    if claim.get("median"):
        spread = list(np.array(measured).reshape(len(seeds), -1).T)
        measured = [[float(np.median(each)) for each in spread]]
        spread = spread if len(seeds) > 1 else []
    values = [value for each in measured for value in each]
    if "near" in claim:
        targets = _targets("near", claim["near"], measured)
        off, worst = _off(values, targets), max(zip(values, targets, strict=True), key=_error)[0]
        holds = off <= claim["within"]
        percent = f"{100 * off:.0f}" if off > 1 else f"{100 * off:.2g}"
        text = f"{_named(claim, values, spread)} (off by {percent} %)"
    else:
        name, sign = ("below", -1) if "below" in claim else ("above", 1)
        limits = _limits(name, claim[name], measured)
        room = [sign * (v - limit) for v, limit in zip(values, limits, strict=True)]
        holds = all(each > 0 for each in room)  # NaN never passes
        worst = min(zip(room, values, strict=True), key=lambda pair: pair[0])[1]
        text = _shown(claim, values, worst, spread)
    if claim.get("of_mean") and len(seeds) > 1:
        text += f", of the mean of {len(seeds)} seeds"
    end, note = "pass" if holds else "fail", ""
    if "explained" in claim:
        table = claim["explained"]
        end, note = _explained(table, [[worst]] if table.get("worst") else measured, holds)
    return verdict_on(claim, experiment, text, end, values, note)


def verdict_on(
    claim: Table, experiment: str, measured: str, end: str, values: Iterable[float], note: str = ""
) -> Verdict:
    """Return the verdict on a measured claim, with what its file adds."""
    explained = claim["explained"] if end in ("explained", "not explained") else {}
    if explained:
        fault = explained["fault"]
        end = "not explained" if fault == "unknown" else "explained"  # as the file says now
        note = explained["why"] if fault == "unknown" else f"{WHOSE[fault]}: {explained['why']}"
    elif end == "pass":
        note = claim.get("why", "")
    shown_by = (explained or claim).get("shown_by", []) if note else []
    return Verdict(
        experiment, claim["what"], claim["where"], claim["source"], _claimed(claim), claim["bound"],
        measured, end, note, tuple(values), fault=explained.get("fault", ""),
        says=str(claim.get("says", claim["what"])),
        shown_by=tuple(as_list(shown_by)),
        expected=_expected(explained) if explained else "",
    )  # fmt: skip


def scaling(claim: Table, runs: Runs, seeds: Sequence[int], sweep: Sweep) -> Scaling:
    """Return the data of the fit of a claim with the measure "scaling"."""
    points = [quantities(claim, places, column_of) for places in _seeded(claim, runs, seeds, sweep)]
    return Scaling.of(claim, sweep, points[0][0], [values for _, values in points])


def _seeded(claim: Table, runs: Runs, seeds: Sequence[int], sweep: Sweep) -> list[Places]:
    """Return, for each seed, the places at which a claim is judged."""
    chosen = claim.get("at", [])
    return [[(key[-1], _reader(runs, key)) for key in sweep.places(s, chosen)] for s in seeds]


def _reader(runs: Runs, key: tuple[Any, ...]) -> Reader:
    return lambda label: runs[(label, *key)]


def _explained(table: Table, measured: Sequence[list[float]], holds: bool) -> tuple[str, str]:
    """Return the verdict on a claim whose explanation expects certain numbers, and why it fails."""
    values = [value for each in measured for value in each]
    off = _off(values, _targets("expected", table["expected"], measured))
    if not off <= table["tolerance"]:
        return "fail", f"the explanation expects {_expected(table)}; off by {100 * off:.2g} %"
    return "pass" if holds else "explained", ""


def _off(values: Sequence[float], targets: Sequence[float]) -> float:
    """Return the largest relative error; inf if a value is NaN.

    >>> _off([1.1, 2.0], [1.0, 2.0]), _off([math.inf], [math.inf]), _off([math.nan], [0.0])
    (0.10000000000000009, 0.0, inf)
    """
    return max(_error(pair) for pair in zip(values, targets, strict=True))


def _error(pair: tuple[float, float]) -> float:
    """Return the relative error of a value against its target."""
    value, target = pair
    error = 0.0 if value == target else abs(value - target) / (abs(target) or 1.0)
    return math.inf if math.isnan(error) else error


def _targets(name: str, given: object, measured: Sequence[list[float]]) -> list[float]:
    """Return a target for each measured number, from one for all, some seeds, or each."""
    targets = [float(number) for number in as_list(given)]
    each, every = len(measured[0]), sum(map(len, measured))
    if len(targets) > 1 and (len(targets) % each or every % len(targets)):
        raise ConfigError(f"{name} has {len(targets)} numbers for {each} measured ones")
    return targets * (every // len(targets))


def _limits(name: str, given: object, measured: Sequence[list[float]]) -> list[float]:
    """Return the limit of each measured number: one for all, or for each seed its own.

    >>> _limits("below", 1.0, [[0.5, 0.2]]), _limits("below", [1.0, 2.0], [[0.5, 0.2], [0.3, 0.1]])
    ([1.0, 1.0], [1.0, 1.0, 2.0, 2.0])
    """
    limits = [float(number) for number in as_list(given)]
    if len(limits) not in (1, len(measured)):
        raise ConfigError(
            f"{name} must be one number, or one for each seed, {len(measured)} in all, "
            f"got {len(limits)}"
        )
    limits *= len(measured) // len(limits)
    return [limit for limit, each in zip(limits, measured, strict=True) for _ in each]


# --- text ----------------------------------------------------------------------------------------


def _claimed(claim: Table) -> str:
    if "near" in claim:
        return f"{_many(as_list(claim['near']))} within {100 * claim['within']:g} %"
    name, sign = ("below", "<") if "below" in claim else ("above", ">")
    return f"{sign} {_many(as_list(claim[name]))}"


def _expected(table: Table) -> str:
    text = f"{_many(as_list(table['expected']))} within {100 * table['tolerance']:g} %"
    return f"at worst {text}" if table.get("worst") else text


def _shown(claim: Table, values: Sequence[float], worst: float, spread: Sequence[Array]) -> str:
    if claim["measure"] == "cost" or spread:
        return _named(claim, values, spread)
    if len(values) == 1:
        return _number(worst)
    ends = f"{_number(min(values))} to {_number(max(values))}"
    return f"{_number(worst)} (worst of {len(values)}: {ends})"


def _number(value: float) -> str:
    """Return a number for a table.

    >>> _number(10559.2), _number(0.5), _number(1.3e-5), _number(float("inf"))
    ('10559', '0.5', '1.3e-05', 'never')
    """
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def _many(values: Iterable[float]) -> str:
    return ", ".join(map(_number, values))


def _named(claim: Table, values: Sequence[float], spread: Sequence[Array] = ()) -> str:
    """Return the values as text, with algorithms' labels if there is one for each.

    Of more than six values without a label there are the ends. `spread` adds the range over the
    seeds of which each value is the median.

    >>> _named({"measure": "cost", "algorithms": ["FedFW", "FedDR"]}, [20.0, math.inf])
    'FedFW: 20, FedDR: never'
    >>> _named({"measure": "ratio"}, [0.5], [np.array([0.25, 0.5, 1.0])])
    '0.5 (0.25 to 1)'
    >>> _named({"measure": "value"}, [16.0] * 5), _named({"measure": "value"}, range(7))
    ('16 (each of 5)', '0 to 6 (7 values)')
    """
    labels = claim["algorithms"] if claim["measure"] == "cost" else []
    texts = [_number(value) for value in values]
    if spread:
        ends = [f"({_number(min(each))} to {_number(max(each))})" for each in spread]
        texts = [f"{value} {range_}" for value, range_ in zip(texts, ends, strict=True)]
    if len(labels) != len(values):
        if len(texts) > 1 and len(set(texts)) == 1:
            return f"{texts[0]} (each of {len(texts)})"
        if len(texts) > 6 and not spread:
            return f"{_number(min(values))} to {_number(max(values))} ({len(values)} values)"
        return ", ".join(texts)
    return ", ".join(f"{name}: {text}" for name, text in zip(labels, texts, strict=True))
