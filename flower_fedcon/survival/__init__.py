"""Survival over sites that keep their rows: Kaplan-Meier curves and log-rank tests.

A site sends events and rows at risk in the intervals of a shared grid of times, with small cells
merged: `flower_fedcon.tables.risk_counts`. For regression on times, see
`flower_fedcon.estimators.FederatedCoxRegression`.
"""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.survival.pooled import kaplan_meier, logrank
from flower_fedcon.tables.log_rank import LogRank
from flower_fedcon.tables.product_limit import KaplanMeier

__all__ = ["KaplanMeier", "LogRank", "kaplan_meier", "logrank"]

point_elsewhere(__name__)
