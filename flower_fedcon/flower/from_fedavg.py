"""The counterparts here of the arguments of Flower's own strategies, as in the docs."""

from __future__ import annotations

INSTEAD = {
    "fraction_train": "participation=Sample(fraction=0.5)",
    "fraction_fit": "participation=Sample(fraction=0.5)",
    "min_train_nodes": "min_replies=2",
    "min_fit_clients": "min_replies=2",
    "min_available_nodes": "start(num_clients=3)",
    "min_available_clients": "start(num_clients=3)",
    "fraction_evaluate": "start(evaluate_every=5)",
    "min_evaluate_nodes": "nothing",
    "min_evaluate_clients": "nothing",
    "weighted_by_key": 'start(weighting="examples")',
    "arrayrecord_key": "nothing",
    "configrecord_key": "nothing",
    "train_metrics_aggr_fn": "start(callbacks=[mine])",
    "evaluate_metrics_aggr_fn": "start(callbacks=[mine])",
    "fit_metrics_aggregation_fn": "start(callbacks=[mine])",
    "evaluate_metrics_aggregation_fn": "start(callbacks=[mine])",
    "proximal_mu": "FedProx(proximal=0.1)",
}
"""The text to write instead, by an argument of Flower's FedAvg or FedProx (either interface)."""


def instead_of(name: str) -> str:
    """Return what to write for an argument of Flower's own strategies; "" for others.

    >>> instead_of("fraction_evaluate")
    "Flower's fraction_evaluate is start(evaluate_every=5) here"
    >>> instead_of("min_evaluate_nodes")
    "Flower's min_evaluate_nodes has no counterpart here: leave it out"
    >>> instead_of("proximal")
    ''
    """
    if name not in INSTEAD:
        return ""
    if INSTEAD[name] == "nothing":
        return f"Flower's {name} has no counterpart here: leave it out"
    return f"Flower's {name} is {INSTEAD[name]} here"
