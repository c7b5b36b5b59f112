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

from flower_fedcon.torch.training import MethodOptimizer, TorchCorrection, TorchTraining

__all__ = ["MethodOptimizer", "TorchCorrection", "TorchTraining"]
