"""Runs the strategy that the run configuration names."""

import json

from flower_fedcon import Sample, server_app
from flower_fedcon.registry import strategy_class
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball


def make_strategy(context):
    config = context.run_config
    algorithm = str(config["algorithm"])
    oracle = L1Ball(radius=5.0) if algorithm.startswith("FedFW") else L1(weight=0.1)
    arguments = json.loads(str(config["arguments"]).replace("'", '"'))
    return strategy_class(algorithm)(oracle, participation=Sample(count=2), **arguments)


app = server_app(make_strategy)
