"""`fedcon contrast`: effects between values, with errors and tests, of the model of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flower_fedcon.errors import ConfigError
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import say
from flower_fedcon.runs.paper_tables import p_equals


def contrast(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run on tables.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FEATURE=VALUE...",
            help="Values of features; several of one give a comparison for each.",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FEATURE=VALUE", help="What they are compared with; repeated by feature."
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FEATURE[=VALUE]",
            help="Tell effects apart at each category of a feature, or at values (repeated), and "
            "test whether they differ.",
        ),
    ] = None,
    coefficient: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WEIGHT",
            help="In place of values: a linear combination of coefficients, by their names in "
            "coefficients.csv; repeated.",
        ),
    ] = None,
    smaller: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR",
            help="In place of values: test the model by a likelihood ratio against that of another "
            "run, on the same rows with fewer columns.",
        ),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Intervals cover 1 - alpha.")] = 0.05,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A CSV file to write.")
    ] = None,
) -> None:
    """Compare values of features by the model that a run has left: effects with errors and tests.

    An effect is the difference between the linear predictors of two rows, and its exponential an
    odds, rate or hazard ratio where the model has one. A feature that a term multiplies by those
    compared must be named, too, in both rows or by --by. The run needs `inference`. Nothing is
    sent.
    """
    from flower_fedcon.tables.fitted import load_model
    from flower_fedcon.wire.whole_files import write_csv

    model = load_model(run_dir)
    if smaller is not None:
        if values or against or by or coefficient or output:
            raise ConfigError("--smaller compares two models: leave all but their folders out")
        less = load_model(smaller)
        statistic, df, p = model.likelihood_ratio(less)
        say(
            f"likelihood ratio of {run_dir} against {smaller}: chi2 {statistic:.5g}, degrees of "
            f"freedom {df}, {p_equals(p)}"
        )
        for name in ("aic", "bic"):
            criteria = (getattr(one.estimates, name) for one in (model, less))
            say("{}: {:.6g} against {:.6g}".format(name.upper(), *criteria))
        return
    if coefficient:
        if values or against or by:
            raise ConfigError("--coefficient takes the place of values: leave these out")
        contrasts = model.combination(dict(_weight(text) for text in coefficient))
    elif not (values and against):
        raise ConfigError(
            "say what is compared, such as age=70 --against age=50, or --coefficient NAME=WEIGHT"
        )
    else:
        rows, second = _by_feature(values), _by_feature(against)
        contrasts = model.contrast(rows, second, by=_at(by or ()))
    say(contrasts.summary(alpha))
    tables = [contrasts]
    if len(set(contrasts.at)) > 1:
        try:
            differences = contrasts.differences()
        except ConfigError as error:
            say(str(error))
        else:
            tables.append(differences)
            say("\nHow they differ:\n" + differences.summary(alpha).partition("\nnote:")[0])
            together = differences.joint_in_words(range(len(differences.names)))
            say(f"whether they differ at all: {together}")
    if output is not None:
        each = [table.columns_of(alpha) for table in tables]
        columns: dict[str, list[Any]] = {name: [] for one in each for name in one}
        for one in each:
            for name, column in columns.items():
                column += one.get(name, [None] * len(one["contrast"]))
        write_csv(output, columns)
        say(f"contrasts: {output}")


def _by_feature(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of each feature."""
    values: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"expected FEATURE=VALUE, such as age=70, got {text!r}")
        values.setdefault(name.strip(), []).append(value.strip())
    return values


def _at(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values at which effects are shown: the named ones, or all categories."""
    alone = [text.strip() for text in texts if "=" not in text]
    return dict.fromkeys(alone) | _by_feature([text for text in texts if "=" in text])


def _weight(text: str) -> tuple[str, float]:
    name, _, weight = text.rpartition("=")
    try:
        return name.strip(), float(weight)
    except ValueError:
        raise ConfigError(f"expected NAME=WEIGHT, such as age=20, got {text!r}") from None


COMMANDS = {
    "contrast": Command(
        contrast,
        100,
        "fedcon contrast runs/heart age=70 --against age=50",
        "fedcon contrast runs/trial treatment=early --against treatment=usual --by sex "
        "-o effects.csv",
        "fedcon contrast runs/heart --coefficient age=10 --coefficient sex=1=1",
        "fedcon contrast runs/by_sex --smaller runs/readmission",
    )
}
