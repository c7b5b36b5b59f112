"""Differential privacy of whole clients: what the models tell of one client's data is bounded.

Every strategy whose server needs only the sum of the clients' uploads (`fedcon list`, "Needs")
takes `privacy=GaussianDP(...)`; docs/privacy.md says what is covered, and what is public.

>>> from flower_fedcon.privacy import GaussianDP
>>> from flower_fedcon.regularizers import L1
>>> from flower_fedcon.strategies import FedDualAvg
>>> privacy = GaussianDP(clip=0.5, noise_multiplier=1.0, target_delta=1e-5)
>>> strategy = FedDualAvg(L1(0.01), client_lr=0.1, local_steps=5, privacy=privacy)
"""

from flower_fedcon.privacy.gaussian import GaussianDP

__all__ = ["GaussianDP"]
