"""Step lengths that change from round to round, for the `client_lr` of methods that bear that.

Each is a length for round 1 and a rule for those after it. It depends on the number of the round
alone: a run that is resumed goes on with it, and clients that are sampled late know it.
Strategies say which of them take a schedule (`fedcon info`), and others why not.

>>> from flower_fedcon.schedules import InverseSqrt
>>> from flower_fedcon.strategies import FedAvg
>>> strategy = FedAvg(client_lr=InverseSqrt(0.1), local_steps=5)

In an experiment file: ``client_lr = {type = "InverseSqrt", initial = 0.1}``.
"""

from flower_fedcon.schedules.base import Schedule
from flower_fedcon.schedules.rules import Constant, Cosine, Inverse, InverseSqrt, StepDecay

__all__ = ["Constant", "Cosine", "Inverse", "InverseSqrt", "Schedule", "StepDecay"]
