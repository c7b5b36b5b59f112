"""Train loops of one's own: a method's corrections in a loop that this package does not run.

`flower_fedcon.torch` has the same for PyTorch; `flower_fedcon.train_step` puts a loop into a
Flower app.
"""

from flower_fedcon.training.arrays import ArrayCorrection, ArraySteps, ArrayTraining
from flower_fedcon.training.client import own_loop
from flower_fedcon.training.local import LocalTraining

__all__ = ["ArrayCorrection", "ArraySteps", "ArrayTraining", "LocalTraining", "own_loop"]
