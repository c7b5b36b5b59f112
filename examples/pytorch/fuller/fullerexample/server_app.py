"""fullerexample: the ServerApp."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fullerexample.task import ResNet, load_test_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model on the nodes."""
    lr = context.run_config["learning-rate"]
    torch.manual_seed(0)
    strategy = FedAvg(fraction_train=0.67, min_available_nodes=3)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(ResNet().state_dict()),
        train_config=ConfigRecord({"lr": lr}),
        evaluate_config=ConfigRecord({"top-k": 1}),
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), context.run_config["final-model"])


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on central data."""
    model = ResNet()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, load_test_data(), torch.device("cpu"), 1)
    return MetricRecord({"accuracy": accuracy, "loss": loss})
