"""Your own train loops: the corrections of a method in a loop that you write.

`flower_fedcon.torch` has the same for PyTorch; `flower_fedcon.train_step` puts a loop into a
Flower app.
"""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.training.local_round import LocalTraining, current_method
from flower_fedcon.training.loop_client import own_loop
from flower_fedcon.training.numpy_loop import ArrayCorrection, ArraySteps, ArrayTraining

__all__ = [
    "ArrayCorrection",
    "ArraySteps",
    "ArrayTraining",
    "LocalTraining",
    "current_method",
    "own_loop",
]

point_elsewhere(__name__)
