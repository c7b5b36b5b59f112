"""fullerexample: the ClientApp."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fullerexample.task import ResNet, load_data, test, train_epochs

app = ClientApp()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@app.train()
def train(msg: Message, context: Context):
    """Train the model on this node's data."""
    config = msg.content["config"]
    torch.manual_seed(1000 * config["server-round"] + context.node_config["partition-id"])
    model = ResNet()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader, _ = load_data(context)
    epochs = context.run_config["local-epochs"]
    losses = train_epochs(model.to(device), trainloader, epochs, config["lr"], device)
    metrics = {"train_loss": losses[-1], "losses": losses, "num-examples": len(trainloader.dataset)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the model on this node's data."""
    model = ResNet()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, valloader = load_data(context)
    loss, accuracy = test(model.to(device), valloader, device, msg.content["config"]["top-k"])
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(valloader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
