"""The quality of a model on held-out rows: the sums that a site sends, and the results.

For a model a site sends of its n held-out rows (`NUMBERS`):

numbers : 11 numbers
    n; the sum of the outcomes; the deviance, and that of the site's null model, which is its own
    mean; the sum of squared errors (Brier's, for probabilities); the exposure, which is the sum of
    exp(offset) for Poisson losses and n for others; the site's own AUC, calibration intercept,
    calibration slope, and intercept at the slope 1; and 1 if the calibration has an estimate, else
    0. With an offset the mean is that of rates. The sum of outcomes is then that of y - offset for
    a squared loss, and of y / exp(offset) for a gamma loss. The mean of a logistic or negative
    binomial loss with an offset is not a ratio of sums; its deviance is sent as -1. The null model
    of Huber's loss is the constant that minimises it, and is not pooled. A row's part of a sum is
    at most 1e100.
counts : 4 x 1,000 numbers, of a logistic loss
    For each bin of the predicted probability the rows without the event, those with it, and the sum
    of their probabilities. A bin is merged with the next ones until neither count is below the
    node's `min_rows` and `min_cell`; counts of 0 are allowed. The last bins join those before them.
    A merged bin stands at its last place, and the fourth row states where it begins. All are zeros
    if fewer rows of a class are held out.

A site with fewer rows than `min_rows`, or for a logistic loss with fewer of either class, sends
zeros.

The pooled ROC curve and AUC follow from the counts over sites; they also compare rows of different
sites. A pair within one bin counts half, so that the error of the AUC is at most half the share of
such pairs. The calibration line is the generalized linear model of the outcome on the linear
predictor: intercept and slope (0 and 1 for a calibrated model), and the intercept with the slope
fixed at 1 (calibration in the large). An offset is added unchanged; the slope multiplies the rest.
For the pooled line sites send score and information, 7 numbers, at each step of Newton's method
(`calibration_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flower_fedcon.errors import ConfigError, RefusedError, first_few
from flower_fedcon.objectives.base import Scaled
from flower_fedcon.objectives.private_objective import is_private
from flower_fedcon.tables.checks.opposite_effects import may_be_turned, turned_in_words
from flower_fedcon.tables.checks.turned_round import OPPOSITE
from flower_fedcon.tables.families import Family, family_of
from flower_fedcon.tables.families.base import KNOWN, PEARSON
from flower_fedcon.tables.families.link_functions import bounded
from flower_fedcon.tables.held_out import HeldOut
from flower_fedcon.tables.noisy_quality import NOISY_BINS, area_error, as_binned
from flower_fedcon.tables.small_cells import is_few
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload

BINS = 1000
MOST_COUNTS = 4 * BINS
"""The largest size of an array that a site sends."""
NUMBERS = (
    "rows", "outcomes", "deviance", "null_deviance", "squares", "exposed", "auc", "intercept",
    "slope", "in_the_large", "calibrated",
)  # fmt: skip
CALIBRATION = 7
"""The size of an answer at a step of the calibration line: score and information, two models."""
_FEW = "it holds out fewer rows of a class than its policy.min-cell"
_STEPS, _SMALL = 50, 1e-10  # of Newton's method: the most steps, and the last step's size
_FAR = 1e3  # a slope beyond this shows separated outcomes
_ALIKE = 1e-12  # relative to outcomes: a distance that is rounding
_GROUPS = 10  # points of a calibration curve


def why_absent(loss: str, held_out: Sequence[str]) -> str:
    """Return why a model's quality is unknown; "" if it is known.

    >>> why_absent("logistic", ["test_auc"]), why_absent("squared", [])
    ('', 'no rows are held out: give the schema a test_fraction')
    """
    if held_out or family_of(loss).no_quality:
        return family_of(loss).no_quality
    return "no rows are held out: give the schema a test_fraction"


# --- at a site -----------------------------------------------------------------------------------


def shapes_of(loss: str) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array in a site's answer."""
    counts = {"counts": (4, BINS)} if family_of(loss).binary else {}
    return {"numbers": (len(NUMBERS),), **counts}


def quality_sums(held: HeldOut, x: Array) -> dict[str, Array]:
    """Return a site's answer for a model; see the module.

    Parameters
    ----------
    held : HeldOut
    x : array
        The model.
    """
    family, binned = held.family, held.family.binary
    counts = {"counts": np.zeros((4, BINS))} if binned else {}
    if not _tells(held):
        return {"numbers": np.zeros(len(NUMBERS)), **counts}
    scores, y = held.scores(x), held.y
    mean = family.link.inverse(scores)
    outcomes, exposed, null = _null(held, x)
    with np.errstate(over="ignore"):
        squares = np.square(family.numbers(y) - mean)
    numbers = {
        "rows": float(len(y)),
        "outcomes": outcomes,
        "deviance": _deviance(held, scores, x),
        "null_deviance": null,
        "squares": _total(squares),
        "exposed": exposed,
    }
    line = Line.fit(lambda at: _calibration(held, x, at))
    if line is not None:
        numbers |= {"intercept": line.intercept, "slope": line.slope,
                  "in_the_large": line.in_the_large, "calibrated": 1.0}  # fmt: skip
    if binned:
        numbers["auc"] = family.pairs(scores, y)["auc"][0]
        if held.rarer >= held.cell:
            most = max(held.least, held.cell)
            counts["counts"] = binned_counts(mean, y > 0, most, held.weights)
    return {"numbers": np.array([numbers.get(name, 0.0) for name in NUMBERS]), **counts}


def calibration_sums(held: HeldOut, x: Array, at: Array) -> dict[str, Array]:
    """Return a site's answer at a step towards the pooled calibration line.

    Parameters
    ----------
    held : HeldOut
    x : array
    at : array, shape (3,)
        Intercept and slope, and the intercept at the slope 1.
    """
    if not _tells(held):
        return {"calibration": np.zeros(CALIBRATION)}
    return {"calibration": _calibration(held, x, at)}


def told_quality(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return a site's answer for the model "x"; see `quality_sums`."""
    return quality_sums(_held_out(objective, least), down["x"])


def told_calibration(objective: Any, down: Payload, least: int = 1) -> Payload:
    """Return a site's answer at a step "at" towards the calibration line of the model "x"."""
    at = np.asarray(down["at"], dtype=np.float64)
    if at.shape != (3,) or not np.isfinite(at).all():
        raise ConfigError(
            f"a calibration line must be requested at 3 numbers, got shape {at.shape}"
        )
    return calibration_sums(_held_out(objective, least), down["x"], at)


def _held_out(objective: Any, least: int) -> HeldOut:
    """Return a site's held-out rows.

    Raises
    ------
    ConfigError
        If the site has none.
    RefusedError
        If the rows are private.
    """
    while not isinstance(held := getattr(objective, "metrics", None), HeldOut):
        if is_private(objective):
            raise RefusedError(
                "refused: this node's examples are private (ExampleDP), and no noise protects what "
                "this reveals of held-out rows"
            )
        if type(objective) is not Scaled:
            raise ConfigError("no rows are held out here: give the schema a test_fraction")
        objective = objective.objective
    return replace(held, least=max(held.least, least))


def binned_counts(
    probabilities: Array, event: Any, least: int, weights: Array | None = None
) -> Array:
    """Return rows without and with the event, the sums of probabilities, and where bins begin.

    >>> found = binned_counts(np.array([0.1, 0.2, 0.2, 0.7]), np.array([0, 0, 1, 1], bool), 2)
    >>> np.flatnonzero(found[0]).tolist(), found[:, 700].tolist()
    ([700], [2.0, 2.0, 1.2, 0.0])
    """
    places = np.minimum((probabilities * BINS).astype(np.intp), BINS - 1)
    raw = np.zeros((3, BINS))
    for row, weight in enumerate((~event, event, probabilities)):
        raw[row] = np.bincount(places, weight, minlength=BINS)

    def enough(begin: int, end: int) -> bool:
        if weights is None:
            return all(n == 0 or n >= least for n in raw[:2, begin:end].sum(axis=1).tolist())
        inside = (places >= begin) & (places < end)
        return not any(is_few(weights, inside & rows, least) for rows in (event, ~event))

    bins, first, last = np.zeros((4, BINS)), 0, -1
    for end in range(BINS):
        sums = raw[:, first : end + 1].sum(axis=1)
        if sums[:2].any() and raw[:2, end].any() and enough(first, end + 1):
            # A bin that began at the first of few rows would reveal its place.
            bins[:3, end], bins[3, end] = sums, end if least == 1 else first
            first, last = end + 1, end
    rest = raw[:, first:].sum(axis=1)
    while rest[:2].any():  # too few at the end: they join the bins before
        rest += bins[:3, last]
        first = int(bins[3, last])
        bins[:, last] = 0.0
        before = np.flatnonzero(bins[:2].any(axis=0))
        if enough(first, BINS):
            bins[:3, -1], bins[3, -1] = rest, first
            break
        last = int(before[-1])
    return bins


def _total(each: Array) -> float:
    """Return the sum of the rows' parts, each bounded so that the sum does not overflow."""
    return math.fsum(bounded(each).tolist())


def _deviance(held: HeldOut, scores: Array, x: Array) -> float:
    """Return the sum of the rows' deviances."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _total(held.family.deviance(scores, held.y, held.family.parameter(x)))


def _tells(held: HeldOut) -> bool:
    if held.family.no_quality or not held.usable:
        return False
    return held.rarer >= held.least


def _null(held: HeldOut, x: Array) -> tuple[float, float, float]:
    """Return the two sums whose ratio is the null model's mean, and its deviance; -1 if unknown."""
    family, y = held.family, held.y
    level = family.level(y, held.offset)
    if level is None:
        return math.fsum(family.numbers(y).tolist()), float(len(y)), -1.0
    scores = family.null(level[0] / level[1], y, held.offset)
    numbers, means = family.numbers(y), family.link.inverse(scores)
    if (np.abs(numbers - means) <= _ALIKE * np.abs(numbers) + 1e-300).all():
        return *level, 0.0
    return *level, max(_deviance(held, scores, x), 0.0)


def _calibration(held: HeldOut, x: Array, at: Array) -> Array:
    """Return the score and the information of both models at a point."""
    family, y, whole = held.family, held.y, held.scores(x)
    offset, parameter = 0.0 if held.offset is None else held.offset, family.parameter(x)
    scores = whole - offset
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        residual, weight = family.slopes(offset + at[0] + at[1] * scores, y, parameter)
        alone, information = family.slopes(at[2] + whole, y, parameter)
        sums = (residual, residual * scores, weight, weight * scores, weight * scores**2)
    return np.array([_total(each) for each in (*sums, alone, information)])


# --- on the server -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A calibration line, with its standard errors.

    Attributes
    ----------
    intercept, slope, in_the_large : float
    intercept_bse, slope_bse, in_the_large_bse : float
        From the information; for a squared loss with residuals of variance 1.
    steps : int
        The steps of Newton's method.
    """

    intercept: float
    slope: float
    in_the_large: float
    intercept_bse: float
    slope_bse: float
    in_the_large_bse: float
    steps: int

    @classmethod
    def fit(cls, sums: Callable[[Array], Array | None]) -> Line | None:
        """Return the line whose scores vanish; None if it does not exist.

        Parameters
        ----------
        sums : callable
            Returns `calibration_sums` over all sites at a point.
        """
        at = np.array([0.0, 1.0, 0.0])
        for steps in range(1, _STEPS + 1):
            s = sums(at)
            if s is None:
                return None
            information = np.array([[s[2], s[3]], [s[3], s[4]]])
            if not (np.isfinite(s).all() and s[6] > 0) or _singular(information):
                return None
            step = np.append(np.linalg.solve(information, s[:2]), s[5] / s[6])
            # Far out a full step overshoots: no step is longer than 2 on the intercepts' scale.
            at = at + step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-300))
            if not abs(at[1]) < _FAR:
                return None
            if float(np.abs(step).max()) <= _SMALL * max(1.0, float(np.abs(at).max())):
                errors = np.sqrt(np.append(np.diag(np.linalg.inv(information)), 1.0 / s[6]))
                a, b, large = at.tolist()
                a_bse, b_bse, large_bse = errors.tolist()
                return cls(a, b, large, a_bse, b_bse, large_bse, steps)
        return None


def _singular(information: Array) -> bool:
    scale = information[0, 0] * information[1, 1]
    return not scale > 0 or float(np.linalg.det(information)) <= 1e-12 * scale


@dataclass(frozen=True)
class Quality:
    """The quality of a model on held-out rows, at each site and over all sites.

    Attributes
    ----------
    loss : str
    sites : dict of dict
        The numbers of each site: "rows", "auc" (exact), "calibration_intercept",
        "calibration_slope", "calibration_in_the_large", "brier" or "mse", "deviance_explained".
    pooled : dict
        The same over all sites' rows, with "auc_error", a bound on the error of "auc", and standard
        errors of the calibration line ("..._bse"), and of the AUC if it contains noise.
    roc : dict
        "false_positive_rate", "true_positive_rate", "threshold", pooled.
    curve : dict
        For tenths of the rows by probability: "predicted" and "observed" shares, and "rows".
    absent : dict
        The reason for each missing result: by site, or by "pooled" and the quantity.
    """

    loss: str
    sites: dict[str, dict[str, float]]
    pooled: dict[str, float]
    roc: dict[str, list[float]] = field(default_factory=dict)
    curve: dict[str, list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        loss: str,
        told: Mapping[str, Mapping[str, Array]],
        calibration: Callable[[Array], Array | None],
        absent: Mapping[str, str] | None = None,
        noisy: Mapping[str, Mapping[str, Array]] | None = None,
        parameter: float = 0.0,
    ) -> Quality:
        """Return the quality that follows from all sites' `quality_sums`.

        Parameters
        ----------
        loss : str
        told : dict of dict
            The sums by site.
        calibration : callable
            Returns the sum over sites of `calibration_sums` at a point; None if a site has not
            answered.
        absent : dict, optional
            The reason for each site that sends nothing.
        noisy : dict of dict, optional
            The answer of each site with private rows; see `tables.noisy_quality`.
        parameter : float
            The model's, if its deviance has one; see `Family`.
        """
        noisy, family = noisy or {}, family_of(loss)
        numbers = {
            site: dict(zip(NUMBERS, sums["numbers"].tolist(), strict=True))
            for site, sums in told.items()
        }
        absent, sites = dict(absent or {}), {}
        for site, sums in numbers.items():
            if not sums["rows"]:
                absent[site] = (
                    "too few held-out rows, or too few of one class (the node's min_rows)"
                )
                continue
            sites[site] = _of_site(family, sums)
            if not sums["calibrated"]:
                absent[f"{site}: calibration"] = _NO_LINE
        using = [numbers[site] for site in sites]
        counts = []
        for site in sites if family.binary else ():
            if told[site]["counts"][:2].any():
                counts.append(told[site]["counts"])
            else:
                absent[f"{site}: its part of the AUC together"] = _FEW
        for site, of_bins in noisy.items():
            binned = as_binned(of_bins, BINS)
            counts.append(binned)
            sites[site] = {"rows": float(of_bins["known"][0]), **_area([binned], [of_bins])}
            absent[f"{site}: all but the AUC"] = (
                "noise protects only the counts of its held-out rows"
            )
        if not sites:
            return cls(loss, {}, {}, absent=absent)
        pooled = _pooled(family, using, parameter) if using else {"rows": 0.0}
        if using and not (family.mean_null and _with_null(using)):
            absent["pooled: deviance explained"] = (
                f"{'with an offset ' * family.mean_null}the null model of a {loss} loss is not a "
                f"mean of outcomes"
            )
        pooled["rows"] += sum(sites[site]["rows"] for site in noisy)
        line = Line.fit(calibration) if using else None
        if not using:
            pass
        elif line is None:
            absent["pooled: calibration"] = _NO_LINE
        else:
            for name in ("intercept", "slope", "in_the_large"):
                pooled[f"calibration_{name}"] = getattr(line, name)
                if family.scale == PEARSON:  # whose dispersion no site sends
                    continue
                scale = 1.0 if family.scale == KNOWN else math.sqrt(pooled["mse"])
                pooled[f"calibration_{name}_bse"] = scale * getattr(line, f"{name}_bse")
        roc: dict[str, list[float]] = {}
        curve: dict[str, list[float]] = {}
        if counts:
            area = _area(counts, list(noisy.values()))
            if not area:
                absent["pooled: auc"] = "the noise exceeds the counts of held-out rows"
            pooled |= area
            together = np.maximum(np.sum(counts, axis=0), 0.0)  # noisy ones may be negative
            if together[:2].any(axis=1).all():
                roc, curve = _roc(together), _curve(together)
        return cls(loss, sites, pooled, roc, curve, absent)

    @property
    def stated(self) -> dict[str, Any]:
        """All fields, in the form of `quality.json`."""
        return {
            "loss": self.loss, "rows": "held out", "pooled": self.pooled, "sites": self.sites,
            "roc": self.roc, "calibration_curve": self.curve, "absent": self.absent,
        }  # fmt: skip

    @property
    def lines(self) -> list[str]:
        """The lines of a report."""
        if not self.pooled and "all" in self.absent:
            return [f"nothing more is known of held-out rows: {self.absent['all']}"]
        if not self.pooled:
            return [
                f"quality on held-out rows: not known at any site ({first_few(list(self.absent))})"
            ]
        sentences = []
        pooled = self.pooled
        if "auc" in pooled:
            noise = f" (s.e. {pooled['auc_bse']:.2g} for noise)" if "auc_bse" in pooled else ""
            sentences.append(
                f"AUC of all sites' rows together: {pooled['auc']:.4f}{noise}, from binned scores, "
                f"with an error of at most {pooled['auc_error']:.2g}"
            )
        parts = (("calibration_slope", "calibration slope"),
                 ("calibration_intercept", "calibration intercept"),
                 ("calibration_in_the_large", "calibration in the large"),
                 ("brier", "Brier score"), ("mse", "mean squared error"),
                 ("deviance_explained", "deviance explained"))  # fmt: skip
        for name, words in parts:
            each = [f"{site} {one[name]:.4f}" for site, one in self.sites.items() if name in one]
            if name in pooled:
                error = pooled.get(f"{name}_bse")
                also = "" if error is None else f" (s.e. {error:.4f})"
                each.append(f"together {pooled[name]:.4f}{also}")
            if each:
                sentences.append(f"{words}: {', '.join(each)}")
        sentences += self._turned
        sentences += [f"not known: {what}: {why}" for what, why in self.absent.items()]
        return sentences

    @property
    def _turned(self) -> Iterator[str]:
        """Yield a remark if a site's AUC is as far below 1/2 as its share of events is opposite."""
        known = {name: one for name, one in self.sites.items() if "events" in one and "auc" in one}
        turned = {}
        for name, one in known.items():
            rows, events = one["rows"], one["events"]
            others = [other for place, other in known.items() if place != name]
            if not others or not 0 < events < rows:
                continue
            error = math.sqrt((rows + 1) / (12 * events * (rows - events)))
            elsewhere = sum(o["events"] for o in others) / sum(o["rows"] for o in others)
            below = one["auc"] - 0.5 < OPPOSITE * error
            if below and may_be_turned(events / rows, rows, elsewhere):
                turned[name] = events / rows
        rest = [one for name, one in known.items() if name not in turned]
        if turned and rest:
            elsewhere = sum(o["events"] for o in rest) / sum(o["rows"] for o in rest)
            yield turned_in_words(list(turned), list(turned.values()), elsewhere)


_NO_LINE = "there is no calibration line: the predictions separate the outcomes, or are all alike"


def _with_null(sites: Sequence[Mapping[str, float]]) -> bool:
    """Return whether every site has sent its null deviance."""
    return min(sums["null_deviance"] for sums in sites) >= 0


def _of_site(family: Family, own: Mapping[str, float]) -> dict[str, float]:
    numbers = {"rows": own["rows"], **_shares(family, own, own["null_deviance"])}
    if own["calibrated"]:
        for name in ("intercept", "slope", "in_the_large"):
            numbers[f"calibration_{name}"] = own[name]
    if family.binary:
        numbers |= {"events": own["outcomes"], "auc": own["auc"]}
    return numbers


def _shares(family: Family, sums: Mapping[str, float], null: float) -> dict[str, float]:
    shares = {family.error: sums["squares"] / sums["rows"]}
    if null > 0:
        shares["deviance_explained"] = 1.0 - sums["deviance"] / null
    return shares


def _pooled(
    family: Family, sites: Sequence[Mapping[str, float]], parameter: float = 0.0
) -> dict[str, float]:
    """Return the pooled results from the sites' sums; null deviances are about the pooled mean."""
    sums = {name: math.fsum(site[name] for site in sites) for name in NUMBERS[:6]}
    mean, null = sums["outcomes"] / sums["exposed"], -1.0
    if family.mean_null and _with_null(sites):
        null = sums["null_deviance"]
        for site in sites:  # about the pooled mean instead of the site's
            n = site["exposed"]
            null += n * family.between(site["outcomes"] / n, mean, parameter)
    pooled = {"rows": sums["rows"], **_shares(family, sums, null)}
    return pooled | ({"events": sums["outcomes"]} if family.binary else {})


def pooled_auc(counts: Sequence[Array]) -> tuple[float, float]:
    """Return the AUC over all sites' rows from their binned counts, and a bound on its error.

    Parameters
    ----------
    counts : sequence of array, shape (4, bins)
        The counts of each site, from `binned_counts`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.random(100)
    >>> site = binned_counts(p, rng.random(100) < p, 1)
    >>> value, error = pooled_auc([site])
    >>> 0 <= error < 0.01
    True
    """
    ends, begins = np.zeros(BINS + 1), np.zeros(BINS + 1)  # cumulative rows without the event
    for site in counts:
        used = np.flatnonzero(site[0])
        np.add.at(ends, used + 1, site[0, used])
        np.add.at(begins, site[3, used].astype(np.intp) + 1, site[0, used])
    below, begun = np.cumsum(ends), np.cumsum(begins)
    total = right = wrong = 0.0
    without = float(below[-1])
    for site in counts:
        used = np.flatnonzero(site[1])
        events, first = site[1, used], site[3, used].astype(np.intp)
        total += float(events.sum()) * without
        right += float(events @ below[first])  # bins that end before this one begins
        wrong += float(events @ (without - begun[used + 1]))  # bins that begin after this one's end
    unsure = total - right - wrong
    return (right + 0.5 * unsure) / total, 0.5 * unsure / total


def _area(counts: Sequence[Array], noisy: Sequence[Mapping[str, Array]]) -> dict[str, float]:
    """Return the AUC from counts, a bound on its error, and its standard error due to noise."""
    if not noisy:
        area, off = pooled_auc(counts)
        return {"auc": area, "auc_error": off}
    coarse = np.sum([site[:2].reshape(2, NOISY_BINS, -1).sum(axis=2) for site in counts], axis=0)
    error = area_error(coarse, noisy)
    if not error < 0.5:
        return {}
    area, off = pooled_auc(counts)
    return {"auc": area, "auc_error": abs(off), "auc_bse": error}


def _roc(counts: Array) -> dict[str, list[float]]:
    """Return the curve through the bins with rows, from the highest one down."""
    used = np.flatnonzero(counts[:2].any(axis=0))[::-1]
    without, events = np.cumsum(counts[0, used]), np.cumsum(counts[1, used])
    return {
        "false_positive_rate": [0.0, *(without / without[-1]).tolist()],
        "true_positive_rate": [0.0, *(events / events[-1]).tolist()],
        "threshold": [1.0, *(used / BINS).tolist()],
    }


def _curve(counts: Array) -> dict[str, list[float]]:
    """Return predicted and observed shares of tenths of the rows, to the accuracy of the bins."""
    rows = counts[0] + counts[1]
    middle = np.cumsum(rows) - 0.5 * rows
    group = np.minimum((_GROUPS * middle / rows.sum()).astype(np.intp), _GROUPS - 1)
    n, events, predicted = (
        np.bincount(group, each, minlength=_GROUPS) for each in (rows, counts[1], counts[2])
    )
    used = n > 0
    return {
        "predicted": (predicted[used] / n[used]).tolist(),
        "observed": (events[used] / n[used]).tolist(),
        "rows": n[used].tolist(),
    }
