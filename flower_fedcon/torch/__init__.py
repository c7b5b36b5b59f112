"""PyTorch: your own train loops, and modules as objectives.

This needs the extra `flower-fedcon[torch]`; the rest of the package does not need PyTorch.
"""

from flower_fedcon.errors import needing, point_elsewhere

with needing("flower_fedcon.torch needs PyTorch", "torch"):
    import torch as torch

from collections.abc import Callable
from typing import Any

from flower_fedcon.flower.train_functions import train_step as _train_step
from flower_fedcon.torch.local_loop import MethodOptimizer, TorchCorrection, TorchTraining
from flower_fedcon.torch.objective import TorchObjective, separable
from flower_fedcon.training.local_round import current_method


def train_step(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Turn a train function of PyTorch into a client of one of this package's strategies.

    It is `flower_fedcon.train_step`, with the same options, for loops in which the model is a
    `torch.nn.Module`: the round's method is a `TorchTraining`.

    Parameters
    ----------
    function : callable
        `train(message, context)`, or `train(message, context, method)`.
    **options
        state_dir, oracles, num_examples

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> @app.train()
    ... @train_step
    ... def train(message, context):
    ...     net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    ...     optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    ...     current_method().begin(net, optimizer)
    ...     # the loop as ever: its optimizer.step() corrects the gradients first
    """
    return _train_step(function, training=TorchTraining, **options)


__all__ = [
    "MethodOptimizer",
    "TorchCorrection",
    "TorchObjective",
    "TorchTraining",
    "current_method",
    "separable",
    "train_step",
]

point_elsewhere(__name__)
