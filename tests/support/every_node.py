"""The app of the nodes on which `every_method` plays; it imports little, as each message does."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from problems import q6_limited

from flower_fedcon import Policy, client_app


def load_objective(context: Context) -> Any:
    """Return a node's objective."""
    return q6_limited().objectives[int(context.node_config["partition-id"])]


client = client_app(load_objective, policy=Policy.open())
