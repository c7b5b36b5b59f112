"""Standard errors of a run on tables: checked before round 1, asked for after the last round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.method import Method
from flower_fedcon.core.protocol import Setup
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, FedConError, first_few
from flower_fedcon.runs.final_sums import added, every_answer
from flower_fedcon.runs.plan import Plan
from flower_fedcon.tables.checks.odd_clusters import ALONE, nothing_grouped
from flower_fedcon.tables.design import of_quantiles
from flower_fedcon.tables.ending.convergence import Convergence, least_weight
from flower_fedcon.tables.ending.final_baseline import (
    CommonFit,
    check_common,
    has_common_baseline,
)
from flower_fedcon.tables.ending.final_intercepts import OfTables, check_random, has_random
from flower_fedcon.tables.ending.final_signs import turned_at_the_end
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.row_weights import (
    FREQUENCY,
    NO_OWN_FITS,
    NO_RANDOM,
    SAMPLING,
    check_sampling,
    kind_of_weights,
    of_sites,
    said_of,
)
from flower_fedcon.tables.statistics.after_fit import estimates_at
from flower_fedcon.tables.statistics.debiased import expect_lasso
from flower_fedcon.tables.statistics.estimates import (
    DEBIASED,
    PENALISED,
    Estimates,
    check_method,
)
from flower_fedcon.tables.statistics.heterogeneity import check_heterogeneity
from flower_fedcon.tables.statistics.site_sums import CLUSTER, MODEL, ROBUST, estimates
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import Payload


def check_inference(plan: Plan, strategy: Method[Any], setup: OfTables) -> str | None:
    """Return a run's method of inference, checked; with random intercepts it is "model".

    With one baseline hazard for all sites it is "model" by default, too.

    Raises
    ------
    ConfigError
        If the run is not on tables, if it is penalised, constrained or private, or if its loss does
        not have such errors.
    """
    prepared, method = setup.preparation, plan.inference
    penalised = strategy.constraint is not None or least_weight(
        strategy.regularizer, setup.layout.shape
    )
    if has_random(setup):
        if _kind_of_weights(setup, "random intercepts") == SAMPLING:
            raise ConfigError(NO_RANDOM)
        check_random(
            setup, method, heterogeneity=plan.heterogeneity,
            private=strategy.privacy is not None, penalised=bool(penalised),
        )  # fmt: skip
        return MODEL
    if has_common_baseline(prepared):
        check_common(strategy, setup, debiased=method == DEBIASED)
        if method is None and not penalised:  # it costs nothing more
            method = ROBUST if _kind_of_weights(setup, "errors") == SAMPLING else MODEL
        elif method is None:
            return None
    if plan.heterogeneity and prepared is not None:
        check_heterogeneity(prepared.loss)
    if method is None:
        return None
    if prepared is None:
        raise ConfigError(
            f"inference={method!r} is for runs on tables: for arrays give the estimators inference="
        )
    if _kind_of_weights(setup, "errors") == SAMPLING:
        check_sampling(method)
        if plan.heterogeneity:
            raise ConfigError(NO_OWN_FITS)
    if strategy.privacy is not None:
        raise ConfigError(
            f"inference={method!r} cannot be used with privacy={strategy.privacy!r}: no noise "
            f'protects its sums of scores and second derivatives ("information", "score", '
            f'"meat"). Leave one of the two out'
        )
    if method == DEBIASED and strategy.constraint is None:
        expect_lasso(
            f"inference={method!r}", prepared.loss, _penalty(strategy, setup),
            ("l1 > 0 and l2 = 0", 'inference = "model"'),
        )  # fmt: skip
        return method
    if penalised:
        raise ConfigError(
            f"inference={method!r} of a run with a penalty: "
            + PENALISED.format(how="l1 = 0 and l2 = 0")
        )
    return check_method(prepared.loss, method)


def _kind_of_weights(setup: OfTables, what: str) -> str:
    """Return what the rows' weights mean."""
    prepared = setup.preparation
    schema = None if prepared is None else prepared.stated
    if prepared is None or schema is None or not schema.weight:
        return FREQUENCY
    doubt = "" if schema.weight_kind else of_sites(setup.names, prepared.weights, prepared.rows)
    return kind_of_weights(schema.weight_kind, what, doubt)


def _said_of_weights(fit: Estimates, prepared: Preparation) -> Estimates:
    """Return estimates that say what the rows' weights are, and what to doubt of them."""
    schema = prepared.stated
    if schema is None or not schema.weight:
        return fit
    said = said_of(schema.weight_kind, sum(prepared.rows), sum(prepared.weights))
    return replace(fit, notes=(*fit.notes, *said), weighing=prepared.weighing)


def _said_of_clusters(fit: Estimates, prepared: Preparation) -> Estimates:
    """Return estimates that say so if errors ignore the schema's clusters, or these group nothing.

    What is among the preparation's remarks is not said again.
    """
    schema = prepared.stated
    if schema is None or not schema.cluster or any(ALONE in line for line in prepared.remarks):
        return fit
    if fit.method != CLUSTER:
        remedy = "fit without a penalty, and use " if fit.method == DEBIASED else "use "
        said = (
            f"errors take all rows as independent, also those of one cluster of "
            f"{schema.cluster!r}; where these are alike, errors are wrong, and most often too "
            f'small: {remedy}inference="{CLUSTER}"'
        )
    elif fit.clusters == sum(prepared.rows):
        said = nothing_grouped(schema.cluster)
    else:
        return fit
    return replace(fit, notes=(*fit.notes, said))


def _penalty(strategy: Method[Any], setup: OfTables) -> str:
    """Return "l1" for an l1 norm alone, "none" for no penalty, otherwise a description."""
    psi, shape = strategy.regularizer, setup.layout.shape
    weights = None if psi is None else psi.entrywise(shape)
    if psi is None or (weights is not None and not np.any(weights)):
        return "none"
    return "l1" if weights is not None and not np.any(weights[1]) else repr(psi)


def check_counts(strategy: Method[Any], setup: Setup) -> None:
    """Refuse, in a private run, results of counts of rows: knots, medians and curves.

    Raises
    ------
    ConfigError
    """
    schema = None if setup.preparation is None else setup.preparation.stated
    if strategy.privacy is None or schema is None:
        return
    if of_quantiles(schema):
        raise ConfigError(
            f"quantiles of {first_few(list(map(repr, of_quantiles(schema))))} beside "
            f"privacy={strategy.privacy!r}: no noise protects the counts from which knots and "
            f"medians follow. Give knots, such as rcs(x, [20, 25, 30]), and impute means"
        )
    if schema.describe_by:
        raise ConfigError(
            f"describe_by cannot be used with privacy={strategy.privacy!r}: no noise protects each "
            f"client's sums by level. Leave describe_by out of the schema"
        )
    if schema.curve_times:
        raise ConfigError(
            f"curve_times cannot be used with privacy={strategy.privacy!r}: no noise protects each "
            f"client's numbers of events and of rows at risk. Leave curve_times out of the schema"
        )


def estimates_of(
    server: Server,
    engine: Engine,
    method: str,
    reached: Convergence | None,
    common: CommonFit | None = None,
    remarks: list[str] | None = None,
) -> Estimates | str:
    """Return a run's coefficients in their columns' units with errors; or why there are none.

    For a multinomial model these are the coefficients of each class against the first. With one
    baseline hazard for all sites they are those of its fit. `remarks` takes what the sites' sums
    say of outcomes that are turned round.
    """
    separated = method != DEBIASED and reached is not None and reached.separated
    if reached is not None and (separated or reached.converged is False):
        return f"no standard errors: {reached.text}"
    prepared, x = server.setup.preparation, np.asarray(server.x, dtype=np.float64)
    assert prepared is not None  # noqa: S101  (checked before round 1)
    every: dict[int, Payload] = {}

    def ask(name: str, shapes: Any, x: Array, method: float) -> Payload:
        if common is not None:
            return estimates(common.likelihood, {"x": x, "method": method})
        every.update(every_answer(server, engine, name, shapes, x, method=method))
        return added(every, shapes)

    if common is not None:
        x = common.x
    try:
        names = np.array(prepared.entries(x.shape), dtype=object).reshape(x.shape)
        entries = (names if x.ndim == 1 else names[:, 1:]).reshape(-1).tolist()
        kind = _kind_of_weights(server.setup, "errors")
        fit = estimates_at(ask, prepared.loss, method, entries, x, kind)
        fit = _said_of_weights(replace(fit, common=common is not None), prepared)
        fit = _said_of_clusters(fit, prepared)
    except FedConError as error:  # it must not end a finished run
        return f"no standard errors: {error}"
    if remarks is not None:
        remarks += turned_at_the_end(server.setup.names, every, x, prepared)
    if method == DEBIASED:
        return fit.mapped(np.diag(1.0 / prepared.scales), prepared.names)
    units = np.kron(prepared.in_units(np.eye(len(x))), np.eye(len(entries) // len(x)))
    return fit.in_units(units)
