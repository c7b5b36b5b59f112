"""What may take the place of the mean over the cohort, so that a few false uploads do little.

A strategy takes one as `aggregation=`; those whose server step must be the plain mean refuse it and
say why (`fedcon info`).

>>> from flower_fedcon.aggregation import TrimmedMean
>>> from flower_fedcon.strategies import FedAvg
>>> strategy = FedAvg(client_lr=0.1, local_steps=5, aggregation=TrimmedMean(0.2))
"""

from flower_fedcon.aggregation.base import Aggregation
from flower_fedcon.aggregation.rules import (
    CoordinateMedian,
    GeometricMedian,
    NormClipping,
    TrimmedMean,
)

__all__ = ["Aggregation", "CoordinateMedian", "GeometricMedian", "NormClipping", "TrimmedMean"]
