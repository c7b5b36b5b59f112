"""The server's side: l1 logistic regression whose intercept is free, by FedDR."""

from pathlib import Path

from flower_fedcon import server_app
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.strategies import FedDR


def make_strategy(context):
    return FedDR(WithIntercept(L1(float(context.run_config["l1"]))), step_size=3.0)


app = server_app(make_strategy, schema=Path(__file__).parent / "schema.toml")
