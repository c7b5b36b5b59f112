"""The exchanges after a run on tables in which intercepts become random.

The rounds find the model with one intercept for all. From there the server fits normally
distributed intercepts of sites, or of the schema's clusters within them. It asks for sums over
groups at further models (`flower_fedcon.tables.statistics.group_sums`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from flower_fedcon.core.engine import Engine
from flower_fedcon.core.server import Server
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.layout import Layout
from flower_fedcon.runs.final_sums import asked, total_sums
from flower_fedcon.tables.ending.convergence import Convergence
from flower_fedcon.tables.families.base import RESIDUAL
from flower_fedcon.tables.preparation import Preparation
from flower_fedcon.tables.schema import RANDOM
from flower_fedcon.tables.statistics import RandomFit
from flower_fedcon.tables.statistics.after_fit import random_fit
from flower_fedcon.tables.statistics.intercept_variance import expect_groups
from flower_fedcon.tables.statistics.site_sums import MODEL
from flower_fedcon.tables.wing import EFFECTS
from flower_fedcon.validation import Array

_log = logging.getLogger("flwr.strategies")
_WHAT = f'site_effects = "{RANDOM}"'
_NODES, _TOL, _MOST = 7, 1e-8, 100  # nodes of the quadrature; standard errors; exchanges
_SHARED = "groups are within sites: one label at two sites means two groups"


class OfTables(Protocol):
    """A problem or a setup, as far as it decides what may be asked at the end of a run."""

    @property
    def preparation(self) -> Preparation | None:
        """The agreement of clients on their tables."""
        ...

    @property
    def layout(self) -> Layout:
        """The layout of the model."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """The clients' names."""
        ...

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        ...


def has_random(setup: OfTables) -> bool:
    """Return whether a run ends with random intercepts."""
    return setup.preparation is not None and setup.preparation.site_effects == RANDOM


def check_random(
    setup: OfTables, inference: str | None, *, heterogeneity: bool, private: bool, penalised: bool
) -> None:
    """Refuse, before round 1, runs that cannot end with random intercepts.

    Raises
    ------
    ConfigError
    """
    if inference not in (None, MODEL):
        raise ConfigError(
            f"{_WHAT} has errors by the model alone, got inference = {inference!r}: take "
            f'"{MODEL}", or other site_effects'
        )
    if heterogeneity:
        raise ConfigError(
            "heterogeneity compares clients with their own intercepts, and here they are random: "
            'use site_effects = "own"'
        )
    if private:
        raise ConfigError(
            f"{_WHAT} beside privacy: no noise covers the sums over groups that it is found by: "
            'take site_effects = "common"'
        )
    if penalised:
        raise ConfigError(
            f"{_WHAT} is of maximum likelihood, and there is a penalty or a constraint: take "
            "l1 = 0 and l2 = 0"
        )
    prepared = setup.preparation
    assert prepared is not None  # noqa: S101  (the caller's case)
    if prepared.stated is not None and not prepared.stated.cluster:  # otherwise only sites know
        rows = sum(prepared.rows) if prepared.family.scale == RESIDUAL else math.inf
        expect_groups(setup.num_clients, rows)


def final_intercepts(
    server: Server, engine: Engine, reached: Convergence | None
) -> tuple[Array, RandomFit] | str:
    """Return a model with random intercepts and its fit; or why there is none.

    This is not part of a round: no state changes. Afterwards each client predicts the intercepts of
    its own groups.

    Parameters
    ----------
    server : Server
        The server, at the model without random intercepts.
    engine : Engine
    reached : Convergence, optional
        How close that model is to the optimum.

    Returns
    -------
    tuple, or str
        The model for prepared columns, and its estimates in the columns' own units.
    """
    if reached is not None and (reached.separated or reached.converged is False):
        return f"no random intercepts: {reached.text}"
    prepared, x = server.setup.preparation, np.asarray(server.x, dtype=np.float64)
    assert prepared is not None  # noqa: S101  (checked before round 1)
    names, ask = prepared.entries(x.shape), partial(total_sums, server, engine)
    try:
        fit = random_fit(
            ask, prepared.loss, names, x, reml=False, nodes=_NODES, tol=_TOL, most=_MOST
        )
    except FedConError as error:  # it must not end a finished run
        return f"no random intercepts: {error}"
    asked(
        server, engine, EFFECTS, {"groups": (1,)}, None, fit.estimates.values, sd=fit.sd,
        residual_sd=float(np.nan_to_num(fit.residual_sd)), nodes=float(_NODES),
    )  # fmt: skip
    estimates = fit.estimates.mapped(prepared.in_units(np.eye(len(x))), names)
    notes = [_SHARED] if prepared.stated is not None and prepared.stated.cluster else []
    if not fit.converged:
        notes.append(f"random intercepts: {fit.unfinished}")
        _log.warning("%s", notes[-1])
    estimates = replace(estimates, notes=(*estimates.notes, *notes))
    schema = prepared.stated
    group = (schema.cluster if schema is not None else "") or fit.group
    return fit.estimates.values, replace(fit, estimates=estimates, group=group)
