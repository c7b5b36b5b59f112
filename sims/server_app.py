"""The server of `flwr run sims`: the experiment's first algorithm."""

from pathlib import Path

from flwr.app import Context

from flower_fedcon import server_app
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.strategies import FedConStrategy


def make_strategy(context: Context) -> FedConStrategy:
    """Return the strategy that the experiment file describes."""
    path = Path(__file__).parent / str(context.run_config["experiment"])
    return Experiment.load(path).strategy()


app = server_app(make_strategy)
