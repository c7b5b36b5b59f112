"""The server's side: l1 logistic regression whose intercept is free, by FedNewton."""

from pathlib import Path

from flower_fedcon import server_app
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.strategies import FedNewton


def make_strategy(context):
    return FedNewton(WithIntercept(L1(float(context.run_config["l1"]))))


app = server_app(make_strategy, schema=Path(__file__).parent / "schema.toml")
