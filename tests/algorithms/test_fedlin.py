"""FedLin: what the contract test does not say."""

from __future__ import annotations
