"""The server's side: FedNewton, with the penalty of the run configuration; intercepts are free."""

from pathlib import Path

from flower_fedcon import server_app
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.strategies import FedNewton


def make_strategy(context):
    config = context.run_config
    penalty = L1(float(config["l1"]))
    own = config["site-effects"] == "own"  # then the model has no intercept
    return FedNewton(penalty if own else WithIntercept(penalty))


app = server_app(make_strategy, schema=Path(__file__).parent / "schema.toml")
