"""PyTorch: train loops of one's own, and models as objectives.

Needs the extra `flower-fedcon[torch]`; the rest of the package does without PyTorch.
"""

from flower_fedcon.errors import ConfigError

try:
    import torch as torch
except ModuleNotFoundError:
    raise ConfigError(
        "flower_fedcon.torch needs PyTorch: pip install 'flower-fedcon[torch]'"
    ) from None

from functools import partial

from flower_fedcon.flower.train_functions import train_step as _train_step
from flower_fedcon.torch.local_loop import MethodOptimizer, TorchCorrection, TorchTraining
from flower_fedcon.torch.objective import TorchObjective
from flower_fedcon.training.local_round import current_method

train_step = partial(_train_step, training=TorchTraining)
"""`flower_fedcon.train_step` for PyTorch: a model is a `torch.nn.Module`."""

__all__ = [
    "MethodOptimizer",
    "TorchCorrection",
    "TorchObjective",
    "TorchTraining",
    "current_method",
    "train_step",
]
