"""Survival over sites that keep their rows: Kaplan-Meier curves and log-rank tests.

What a site sends is events and rows at risk in the intervals of a shared grid of times, small cells
merged: `flower_fedcon.tables.risk_counts`. For regression on times, see
`flower_fedcon.estimators.FederatedCoxRegression`.
"""

from flower_fedcon.survival.log_rank import LogRank, logrank
from flower_fedcon.survival.product_limit import KaplanMeier, kaplan_meier

__all__ = ["KaplanMeier", "LogRank", "kaplan_meier", "logrank"]
