"""Estimates as a table in the style of statsmodels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flower_fedcon.runs.paper_tables import p_in_words
from flower_fedcon.tables.preparation import INTERCEPT
from flower_fedcon.tables.statistics.estimates import DEBIASED, Estimates
from flower_fedcon.tables.statistics.site_sums import CLUSTER, MODEL, QUASI

_WIDTH = 78


class Summary(str):
    """A text whose representation is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    @classmethod
    def of(
        cls,
        found: Estimates,
        alpha: float = 0.05,
        *,
        sites: int | None = None,
        strata: str = "",
        facts: Sequence[tuple[str, str]] = (),
    ) -> Summary:
        """Return the summary of estimates.

        Parameters
        ----------
        found : Estimates
        alpha : float
            Intervals have coverage 1 - alpha.
        sites : int, optional
            The number of sites.
        strata : str
            What divides rows into strata of a Cox model, beside the sites.
        facts : sequence of (name, value)
            Further facts about the fit.
        """
        errors = {
            MODEL: "model-based",
            QUASI: "quasi-Poisson",
            CLUSTER: f"{found.clusters} in-site clusters",
            DEBIASED: "debiased lasso",
        }.get(found.method, "robust (HC0)" if found.family.compares else "robust (HC1)")
        said = [
            ("Observations", f"{found.n:.10g}"),
            *([] if sites is None else [("Sites", str(sites))]),
            ("Parameters", f"{found.counted}" + f" + {found.more}" * bool(found.more)),
            ("Standard errors", errors),
            ("Log-likelihood", _number(found.loglik)),
            ("AIC", _number(found.aic)),
            ("BIC", _number(found.bic)),
        ]
        if found.family.compares:  # a partial likelihood has neither
            if found.common:
                said.append(("Baseline hazard", f"common by {strata}" if strata else "common"))
            else:
                said.append(("Strata", f"sites and {strata}" if strata else "sites"))
        else:
            said.append(("Deviance", _number(found.deviance)))
            phi = _number(found.dispersion)
            said.append(("Dispersion", f"{phi} (fixed)" if found.fixed else phi))
            if not math.isnan(found.pearson_ratio):
                said.append(("Pearson chi2/df", _number(found.pearson_ratio)))
        said += facts
        if found.method == DEBIASED:  # not a maximum of a likelihood
            said = [(what, shown) for what, shown in said if shown]
        if math.isfinite(found.shape):
            said.append(("Shape", _number(found.shape)))
        half = (len(said) + 1) // 2
        lines = [found.family.title.center(_WIDTH).rstrip(), "=" * _WIDTH]
        for place in range(half):
            pair = said[place::half]
            lines.append("    ".join(f"{name + ':':<18}{value:>19}" for name, value in pair))
        if found.weighing:
            lines.append(f"{'Weights:':<18}{found.weighing}")
        ratio = found.family.ratio
        table = estimates_table(found, alpha, ratio)
        rule = max(_WIDTH, *map(len, table))
        lines += ["=" * rule, table[0], "-" * rule, *table[1:], "=" * rule]
        lines += [f"note: {note}" for note in found.notes]
        return cls("\n".join(lines))


def estimates_table(
    found: Estimates, alpha: float, ratio: str, *, of_ratio: bool = False
) -> list[str]:
    """Return the lines of a table: a head, and one line for each estimate.

    Parameters
    ----------
    found : Estimates
    alpha : float
        Intervals have coverage 1 - alpha.
    ratio : str
        The name of an estimate's exponential; "" if it has no meaning.
    of_ratio : bool
        Whether the interval is that of the ratio (if this has a meaning), shown next to it.
    """
    letter = found.letter
    low, high = (f"{100 * share:.4g}%" for share in (alpha / 2, 1 - alpha / 2))
    head = ["coef", "std err", letter, f"P>|{letter}|", low, high]
    if ratio:
        head.insert(4 if of_ratio else 6, ratio)
    rows = zip(
        found.names, found.values.tolist(), found.bse.tolist(), found.statistics.tolist(),
        found.pvalues.tolist(), found.conf_int(alpha).tolist(), strict=True,
    )  # fmt: skip
    cells, of_columns = [], True  # before the intercept, and what comes after it
    for name, value, error, z, p, interval in rows:
        shown = [_number(value), _number(error), _ratio_to_error(z), p_in_words(p)]
        of_columns = of_columns and not name.startswith(INTERCEPT)
        effect = ratio and of_columns
        logs = [value, *interval]
        ratios = [_number(math.exp(min(v, 700.0))) if effect else "" for v in logs]
        shown += ratios if ratio and of_ratio else map(_number, interval)
        shown += ratios[:1] if ratio and not of_ratio else []
        cells.append([name, *shown])
    widths = [max(len(row[i]) for row in [["", *head], *cells]) for i in range(len(head) + 1)]
    widths[1:] = [max(width, 8) for width in widths[1:]]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in [["", *head], *cells]
    ]


def _ratio_to_error(z: float) -> str:
    """Return a z or t with three decimals, or its first digits if it has many.

    >>> _ratio_to_error(2.5), _ratio_to_error(1.77e31), _ratio_to_error(math.nan)
    ('2.500', '1.77e+31', '')
    """
    if math.isnan(z):
        return ""
    return f"{z:.3f}" if abs(z) < 1e6 else f"{z:.4g}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5g}" if abs(value) < 1e5 else f"{value:.8g}"
