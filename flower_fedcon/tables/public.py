"""What a schema must state of private rows, on which `tables.noisy_sums` builds."""

from __future__ import annotations

import numpy as np

from flower_fedcon.errors import ConfigError
from flower_fedcon.tables.encoding import WIDE
from flower_fedcon.tables.schema import Feature, Schema


def bounds(feature: Feature) -> tuple[float, float]:
    """Return the smallest and the largest allowed value of a numeric column, after its transform.

    >>> bounds(Feature("dose", range=(-2.0, 1.0), transform="square"))
    (0.0, 4.0)
    """
    ends = np.array(feature.range)
    if feature.transform == "square":
        low, high = sorted(ends * ends)
        return (0.0 if ends[0] < 0 < ends[1] else float(low)), float(high)
    if feature.transform != "none":
        ends = getattr(np, feature.transform)(ends)
    return float(ends[0]), float(ends[1])


def check_public(schema: Schema) -> None:
    """Raise unless a schema states all that must be public for private rows.

    Raises
    ------
    ConfigError
    """
    problems = []
    if schema.sparse:
        problems.append('features = "all" does not describe the columns: name them in [features]')
    if schema.family.compares:
        problems.append(f'loss = "{schema.loss}" compares rows with each other: use another loss')
    if more := schema.family.more(schema):
        problems.append(
            f'loss = "{schema.loss}" also fits {more[0].removeprefix("log ")}: use '
            f'loss = "{schema.family.instead}"'
        )
    if schema.complete_cases:
        problems.append(
            "no noise protects the number of rows that complete_cases leaves: let missing values "
            "be filled in"
        )
    if schema.describe_by:
        problems.append(f"no noise protects sums by {schema.describe_by!r}: leave describe_by out")
    if schema.design:
        problems.append(
            "no noise protects what nodes agree on for terms, medians and indicators of missing "
            "values: leave them out"
        )
    if schema.offsets:
        problems.append(
            f"the effect of {', '.join(map(repr, schema.offsets))} on gradients is unbounded: "
            f"leave offset and exposure out"
        )
    if schema.weight:
        problems.append(
            f"the sum of the weights in {schema.weight!r} changes with every row: leave weight out"
        )
    if any(not feature.range for feature in schema.numeric):
        names = [feature.name for feature in schema.numeric if not feature.range]
        problems.append(
            f"the range of {', '.join(map(repr, names))} is not public: write "
            f'{names[0]} = {{type = "numeric", range = [0, 120]}}, from knowledge other than '
            "the data"
        )
    for feature in schema.numeric:
        with np.errstate(all="ignore"):
            usable = not feature.range or bool(np.isfinite(bounds(feature)).all())
        if not usable:
            problems.append(
                f"range = {list(feature.range)} of {feature.name!r} is infinite after transform = "
                f"{feature.transform!r}: give a range within the transform's domain"
            )
    for feature in schema.categorical:
        if not feature.categories:
            problems.append(
                f"the categories of {feature.name!r} are not public: list them, "
                f'{feature.name} = {{type = "categorical", categories = ["a", "b"]}}'
            )
        elif len(feature.categories) > WIDE:
            problems.append(f"{feature.name!r} has more than {WIDE} categories: give fewer")
    if problems:
        raise ConfigError(
            "with ExampleDP a table needs a schema that states what is public: "
            + "; ".join(problems)
        )
