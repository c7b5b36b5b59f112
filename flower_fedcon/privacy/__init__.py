"""Differential privacy of whole clients and of single rows, and secure aggregation.

Every strategy whose server needs only the sum of the clients' uploads (`fedcon list`, "Needs")
takes `privacy=GaussianDP(...)`, for whole clients; docs/privacy.md says what is covered, and what
is public. For the same strategies `SecAggPlus` lets the server see nothing but the sum
(docs/secure_aggregation.md). `ExampleDP` makes each row of a node private
(docs/private_examples.md).

>>> from flower_fedcon.privacy import GaussianDP
>>> from flower_fedcon.regularizers import L1
>>> from flower_fedcon.strategies import FedDualAvg
>>> privacy = GaussianDP(clip=0.5, noise_multiplier=1.0, target_delta=1e-5)
>>> strategy = FedDualAvg(L1(0.01), client_lr=0.1, local_steps=5, privacy=privacy)
"""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.privacy.examples import ExampleDP
from flower_fedcon.privacy.gaussian import GaussianDP
from flower_fedcon.privacy.secure_aggregation import SecAggPlus

__all__ = ["ExampleDP", "GaussianDP", "SecAggPlus"]

point_elsewhere(__name__)
