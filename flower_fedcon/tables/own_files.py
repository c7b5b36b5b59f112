"""Tables that this package writes, which a pattern such as "*.csv" may match, too."""

from __future__ import annotations

from collections.abc import Sequence

SURVEY = ("column", "client", "category", "values", "missing", "least", "mean", "greatest")
PATH = ("kkt", "rounds", "exchanges", "uplink_bytes", "downlink_bytes")  # after the weight
DESCRIPTIVES = ("column", "category", "client", "values", "mean", "std_dev", "share")
BY_LEVEL = ("column", "category", "level", "values", "mean", "std_dev", "share", "expected")
LEVEL_TESTS = (
    "column", "test", "statistic", "df", "df_within", "p_value", "std_difference", "least_expected",
)  # fmt: skip
AT_RISK = ("arm", "time", "at_risk")
CONTRASTS = ("contrast", "estimate", "std_error")
COEFFICIENTS = ("column", "coefficient", "per_unit")
AGAINST_FIRST = ("column", "per_unit_against_first")
HETEROGENEITY = (
    "column", "pooled", "pooled_std_error", "fixed", "fixed_std_error", "random",
    "random_std_error", "q", "df", "p_value", "i2", "tau2", "ratio_chi2", "ratio_df",
    "ratio_p_value",
)  # fmt: skip
PROPORTIONALITY = ("column", "chi2", "df", "p_value")
BASELINE = ("client", "time", "cumulative_hazard")
COMMON_BASELINE = ("stratum", "time", "cumulative_hazard")
PREDICTIONS = ("row", "prediction")
EFFECTS = ("group", "rows", "random_intercept")
WITHOUT_INTERCEPT = "linear_predictor_without_intercept"
PREDICTORS = ("row", WITHOUT_INTERCEPT)
_EARLIER_PREDICTORS = ("row", "linear_predictor")
CURVES = ("arm", "time", "adjusted_at_risk", "events", "survival", "std_error", "lower", "upper")
_EARLIER_CURVES = ("arm", "time", "at_risk", *CURVES[3:])


def written_by(names: Sequence[str]) -> str:
    """Return the command that writes files with these columns; "" for other files.

    >>> written_by(["lambda", *PATH, "age per sd"]), written_by(["age", "sex"])
    ('`fedcon path --output`', '')
    """
    if tuple(names) == SURVEY:
        return "`fedcon data check --output`"
    if tuple(names[1 : 1 + len(PATH)]) == PATH:
        return "`fedcon path --output`"
    if tuple(names[: len(PREDICTIONS)]) in (PREDICTIONS, PREDICTORS, _EARLIER_PREDICTORS):
        return "`fedcon predict`"
    if tuple(names) == EFFECTS:
        return "a node"
    if tuple(names[: len(CONTRASTS)]) == CONTRASTS:
        return "`fedcon contrast`"
    headers = (
        COEFFICIENTS,
        AGAINST_FIRST,
        CURVES,
        _EARLIER_CURVES,
        HETEROGENEITY,
        PROPORTIONALITY,
        BASELINE,
        COMMON_BASELINE,
        DESCRIPTIVES,
        AT_RISK,
        BY_LEVEL,
        LEVEL_TESTS,
    )
    return "a run" if any(tuple(names[: len(header)]) == header for header in headers) else ""
