"""A user's own tables: a file for each client, or one file and a column that names the client."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flower_fedcon.core.protocol import EXAMPLES, UNIFORM, WEIGHTINGS, Reply, Request
from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.ledger import Ledger
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.files import natural, paths_of
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import L1, ElasticNet, GroupLasso, Regularizer, WithIntercept
from flower_fedcon.regularizers.rescaled import Entrywise
from flower_fedcon.tables import Preparation, Schema, Table, read_table
from flower_fedcon.tables.agreeing import STAGES, Preparing
from flower_fedcon.tables.checks.beside_others import rows_beside_others
from flower_fedcon.tables.checks.collinear import collinear
from flower_fedcon.tables.checks.conspicuous import check_comparable
from flower_fedcon.tables.checks.kinds_of_columns import codes_as_numbers, two_values
from flower_fedcon.tables.checks.odd_values import odd_across
from flower_fedcon.tables.checks.outcome_scales import scales_of_outcomes
from flower_fedcon.tables.checks.turned_round import turned_round
from flower_fedcon.tables.checks.weights_in_rows import broken_frequencies
from flower_fedcon.tables.dealing import dealt_out
from flower_fedcon.tables.noisy_sums import PrivateTable
from flower_fedcon.tables.read import SAID, log_notes, read_clients
from flower_fedcon.tables.schema import COMMON, RANDOM
from flower_fedcon.tables.statistics.estimates import DEBIASED
from flower_fedcon.tables.statistics.heterogeneity import check_heterogeneity
from flower_fedcon.tables.statistics.site_sums import METHODS
from flower_fedcon.validation import Array, choice, count, nonnegative

_WORK = 1e9  # multiplications spent on collinear columns: half a second
_log = logging.getLogger("flwr")
_MANY, _WIDE = 20_000, 1000  # rows and columns from which on progress is logged
PENALTIES = L1_NORM, GROUP = "l1", "group"


@stated
def tables(
    *,
    data: str | list[str],
    schema: str | dict[str, Any],
    client_column: str | None = None,
    partition: dict[str, Any] | None = None,
    l1: float = 0.0,
    l2: float = 0.0,
    penalty: str = "l1",
    penalty_factor: dict[str, float] | None = None,
    weighting: str = "examples",
    min_rows: int = 1,
    inference: str | None = None,
    site_effects: str = COMMON,
    heterogeneity: bool = False,
) -> FederatedProblem:
    r"""Return the problem whose clients have tables, prepared as nodes prepare them.

    No rows are pooled: clients agree on categories, means and scales by the exchanges of
    `flower_fedcon.tables.preparation`. The same rows on nodes give the same numbers, bit for bit.
    The last entry of the model is the intercept, which is not penalised (a Cox model has none).
    With held-out rows (the schema's `test_fraction`) the history has each client's metrics and the
    pooled ones; see `flower_fedcon.tables.held_out`. The metric "nonzeros" counts the columns whose
    coefficient is not 0.

    Parameters
    ----------
    data : str or list of str
        CSV, Parquet, NPZ or SVMlight files, one for each client, in the clients' order, or a
        pattern such as "hospitals/*.csv". With `client_column` one file.
    schema : str or dict
        What the columns mean: a TOML file such as "schema.toml", or a table; see
        `flower_fedcon.tables.Schema`.
    client_column : str, optional
        The column of one file for all clients that states the client of each row; clients are in
        the order of its values.
    partition : dict, optional
        For studies: how the rows of one pooled file are divided among clients, such as
        ``{by = "dirichlet", clients = 10, alpha = 0.5}``. `flower_fedcon.problems.partition` lists
        the rules, and `fedcon data partition` draws the result.
    l1 : float
        The penalty's weight, lambda >= 0, for the mean loss over all rows (or over all clients).
    l2 : float
        The weight of the square, l2/2 ||w||^2. With l1 it gives the elastic net; its `l1_ratio` in
        scikit-learn is l1 / (l1 + l2) (glmnet's alpha), and its `alpha` l1 + l2 (glmnet's lambda).
    penalty : {"l1", "group"}
        "group" keeps or drops all columns of a categorical feature together: the group lasso, with
        the weight l1 sqrt(columns of the feature).
    penalty_factor : dict of float, optional
        Factors of the penalty's weights, by column of the table or of the model ("sex=m"): 0 for
        columns without penalty, 1 for those not named. They are used as given, while glmnet divides
        its `penalty.factor` by their mean over the model's columns.
    weighting : {"examples", "uniform"}
        "examples": rows count equally, or by their weights, as in pooled data. "uniform": clients
        count equally.
    min_rows : int
        The `min-rows` of every node's policy; see `flower_fedcon.Policy`.
    inference : {"model", "robust", "cluster", "quasi", "debiased"}, optional
        Standard errors of the coefficients, in a run's report; see `Plan`. "debiased" needs an l1
        norm, the others a fit without a penalty.
    site_effects : {"common", "own", "random"}
        "common": one intercept for all clients. "own": each client has its own, for squared,
        logistic and Poisson losses; the client eliminates it exactly and never sends it, and the
        model has no intercept (`flower_fedcon.objectives.Profiled`). A client whose outcomes are
        all equal (logistic), or all 0 (Poisson), then carries no information, and the report names
        it; its rows still count in the mean loss to which a penalty is added. "random": normal
        intercepts of clients, or of the values of the schema's `cluster` within them, by maximum
        likelihood without a penalty (`flower_fedcon.tables.ending.final_intercepts`).
    heterogeneity : bool
        With inference: whether each client also reports a fit of its own rows; see `Plan`.

    Raises
    ------
    ConfigError
        If no file matches, the schema cannot be used, or a file does not fit it (`DataError`).

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder, rng = pathlib.Path(tempfile.mkdtemp()), np.random.default_rng(0)
    >>> for name in ("north", "south"):
    ...     rows = [f"{a:.1f},{'fm'[int(a > 0)]},{a**2:.2f}" for a in rng.normal(size=9)]
    ...     _ = (folder / f"{name}.csv").write_text("\n".join(["dose,sex,effect", *rows]))
    >>> schema = {"target": "effect", "features": {"dose": "numeric", "sex": "categorical"}}
    >>> problem = tables(data=f"{folder}/*.csv", schema=schema, l1=0.1)
    >>> problem.names, problem.preparation.names, problem.x0.shape
    (('north', 'south'), ('dose', 'sex=m'), (3,))
    """
    if inference is not None:  # before anything is read or solved
        choice("inference", inference, (*METHODS, DEBIASED))
    if heterogeneity and inference is None:
        raise ConfigError(
            'heterogeneity compares clients with pooled estimates: give inference = "model", too'
        )
    if heterogeneity:
        check_heterogeneity(Schema.load(schema).loss)
    read, names = clients_of(data, schema, client_column, partition)
    pooled = inference is not None or site_effects == RANDOM
    if weighting == UNIFORM and (pooled or not Schema.load(schema).stratified):
        what = "inference" if inference is not None else f'site_effects = "{RANDOM}"'
        what = what if pooled else "stratified = false"
        raise ConfigError(
            f'{what} needs weighting = "examples", since errors follow from the likelihood of all '
            f"rows"
        )
    problem = prepared_problem(
        read,
        names,
        l1=l1,
        l2=l2,
        penalty=penalty,
        penalty_factor=penalty_factor,
        weighting=weighting,
        min_rows=min_rows,
        site_effects=site_effects,
    )
    problem.inference, problem.heterogeneity = inference, heterogeneity
    return problem


def clients_of(
    data: str | list[str],
    schema: str | dict[str, Any],
    client_column: str | None = None,
    partition: dict[str, Any] | None = None,
) -> tuple[list[Table], list[str]]:
    """Return the clients' tables and names; see `tables`."""
    loaded = Schema.load(schema)
    paths = paths_of(data)
    if (client_column, partition) != (None, None) and len(paths) != 1:
        raise ConfigError(
            f"client_column and partition divide one file, and data names "
            f"{len(paths)}: leave them out, or name one file"
        )
    if partition is not None:
        if client_column is not None:
            raise ConfigError('give client_column or partition (by = "natural"), not both')
        read, names = dealt_out(paths[0], loaded, partition)
    elif client_column is None:
        names = client_names(paths)
        read = []
        for path in paths:
            read.append(read_table(path, loaded))
            if len(read[-1].targets) > _MANY:
                _log.info("tables: read %s, %d rows", path, len(read[-1].targets))
    else:
        by_client = read_clients(paths[0], loaded, client_column)
        names = sorted(by_client, key=natural)
        read = [by_client[name] for name in names]
    log_notes(read)
    return read, names


def prepared_problem(
    clients: Sequence[Table],
    names: Sequence[str],
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    penalty: str = L1_NORM,
    penalty_factor: Mapping[str, float] | None = None,
    weighting: str = EXAMPLES,
    min_rows: int = 1,
    privacy: ExampleDP | None = None,
    site_effects: str = COMMON,
) -> FederatedProblem:
    r"""Return the problem of clients whose tables are available; see `tables`.

    With `privacy` each client's rows are private from the start, as on a private node: see
    `flower_fedcon.tables.noisy_sums`. Remarks on rows, such as rows held twice, are left out then.
    `problem.objectives[j].ledger` has what is spent.

    Examples
    --------
    >>> from flower_fedcon.tables import read_table
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "north.csv"
    >>> _ = file.write_text("dose,effect\n" + "\n".join(f"{k % 10},{k % 7}" for k in range(500)))
    >>> schema = {"target": "effect", "features": {"dose": {"range": [0, 9]}}}
    >>> rows = read_table(file, Schema.load(schema))
    >>> privacy = ExampleDP(clip=1.0, noise_multiplier=2.0, target_delta=1e-5)
    >>> problem = prepared_problem([rows], ["north"], privacy=privacy)
    >>> bool(abs(problem.preparation.means[0] - 4.5) < 0.5)
    True
    >>> problem.objectives[0].ledger.spent  # the two exchanges
    {1.0: 2}
    """
    choice("weighting", weighting, WEIGHTINGS)
    count("min_rows", min_rows)
    if privacy is not None:
        clients = [PrivateTable.of(table, privacy, Ledger(privacy)) for table in clients]
    preparation = prepare(clients, names, min_rows, site_effects)
    remarks, preparation = preparation.remarks, replace(preparation, remarks=())
    if privacy is None:  # remarks on rows are exact, which private ones must not be
        units = [*scales_of_outcomes(names, clients)]
        more = (
            *units,
            *odd_across(names, clients),
            *two_values(clients),
            *codes_as_numbers(clients),
            *broken_frequencies(clients),
            *turned_round(names, clients, preparation),
            *rows_beside_others(names, clients, [*remarks, *units]),
            *collinear(clients, preparation, work=_WORK),
        )
        for line in more:
            _log.warning("tables: %s", line)
        remarks += (*more, *_seen(names, clients))
    objectives = [table.objective(preparation, min_rows) for table in clients]
    schema = clients[0].schema
    constants = (getattr(f, "smoothness", None) for f in objectives)
    check_comparable(schema, constants, site_effects)
    columns = len(preparation.names)
    if columns > _WIDE:
        rows = sum(table.num_examples for table in clients)
        _log.info("tables: %d rows of %d clients, %d columns", rows, len(clients), columns)
    return FederatedProblem(
        objectives,
        regularizer=regularizer(schema, preparation, l1, penalty, l2, penalty_factor),
        weights=None if weighting == UNIFORM else preparation.weights,
        names=names,
        metrics={"nonzeros": lambda x: float(np.count_nonzero(x[:columns].any(axis=-1)
                                             if x.ndim > 1 else x[:columns]))},
        preparation=replace(preparation, remarks=remarks),
        x0=preparation.start,
    )  # fmt: skip


def _seen(names: Sequence[str], clients: Sequence[Table]) -> Iterator[str]:
    """Yield the remarks on clients' rows, which have been logged, for the report."""
    lines = dict.fromkeys(
        f"{name}: {note}"
        for name, table in zip(names, clients, strict=True)
        for note in table.notes()
    )
    yield from [*lines][:SAID]
    if len(lines) > SAID:
        yield f"{len(lines) - SAID} more remarks: see `fedcon data check`"


def prepare(
    clients: Sequence[Table], names: Sequence[str], min_rows: int = 1, site_effects: str = COMMON
) -> Preparation:
    """Return the agreement of the clients in this process."""
    schema = clients[0].schema

    def answer(request: Request) -> list[Reply]:
        stage = STAGES[request.round - 1]
        told = ((c, clients[c].answer(stage, request.broadcast, min_rows)) for c in request.clients)
        return [Reply([c], request.round, {k: [v] for k, v in a.items()}) for c, a in told]

    return Preparing(schema, names, answer, site_effects=site_effects).agree()


def regularizer(
    schema: Schema,
    preparation: Preparation,
    l1: float,
    penalty: str = L1_NORM,
    l2: float = 0.0,
    penalty_factor: Mapping[str, float] | None = None,
) -> Regularizer:
    """Return the penalty of a model with these columns; the intercept is free."""
    weight, square = nonnegative("l1", l1), nonnegative("l2", l2)
    if schema.family.more(schema) and (weight or square):
        raise ConfigError(
            f'loss = "{schema.loss}" has no penalty, got l1 = {weight:g} and l2 = {square:g}: '
            f'leave them out, or use loss = "{schema.family.instead}"'
        )
    factors = _factors(schema, preparation, penalty_factor or {})
    psi: Regularizer
    if choice("penalty", penalty, PENALTIES) == GROUP:
        if square:
            raise ConfigError(f'l2 = {l2:g} is for penalty = "l1": leave it out of the group lasso')
        labels = np.unique(preparation.groups, return_inverse=True)[1]
        least, most = (np.full(labels.max() + 1, end) for end in (np.inf, 0.0))
        np.minimum.at(least, labels, factors)
        np.maximum.at(most, labels, factors)
        if (least != most).any():
            raise ConfigError(
                "penalty_factor differs within a feature, and the group lasso keeps or drops a "
                "feature's columns together: name the feature, not its columns"
            )
        psi = GroupLasso(weight * np.sqrt(np.bincount(labels)) * most, labels)
    elif penalty_factor:
        shape = schema.model_shape(len(factors))[1:]
        each = np.broadcast_to(factors.reshape(-1, *(1 for _ in shape)), (len(factors), *shape))
        psi = Entrywise(weight * each, square * each)
    else:
        psi = ElasticNet(weight, square) if square else L1(weight)
    shape = schema.model_shape(len(factors), preparation.site_effects)
    return WithIntercept(psi) if shape[0] > len(factors) else psi


def _factors(schema: Schema, preparation: Preparation, given: Mapping[str, float]) -> Array:
    """Return the factor of the penalty for each column of the model."""
    names, features = preparation.names, schema.groups
    factors = np.ones(len(names))
    for name, factor in given.items():
        value = nonnegative(f"penalty_factor of {name!r}", factor)
        if name in names:
            factors[names.index(name)] = value
        elif name in features:
            belongs = np.array(preparation.groups) == features.index(name)
            named = [j for j in np.flatnonzero(belongs) if names[j] not in given]
            factors[named] = value
        elif name not in preparation.left_out:
            hint = nearest(name, [*features, *names])
            raise ConfigError(f"penalty_factor names {name!r}, which is not a column: {hint}")
    return factors


def client_names(paths: Sequence[str]) -> list[str]:
    """Return the clients' names: the files' names, if they differ."""
    stems = [Path(path).stem.removesuffix(".csv") for path in paths]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]


__all__ = ["prepare", "prepared_problem", "regularizer", "tables"]
