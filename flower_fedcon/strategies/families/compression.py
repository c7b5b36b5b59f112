"""Compressed messages in both directions, with error feedback if a compressor needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, Unpack

import numpy as np

from flower_fedcon.compressors import Compressor, Identity, RandK, as_compressor
from flower_fedcon.core.release import Release
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies.base import Common, FedConStrategy
from flower_fedcon.validation import Array

State = TypeVar("State")


class Compression(NamedTuple):
    """The compressors of a run, in the form that it uses."""

    uplink_compressor: Compressor
    downlink_compressor: Compressor
    feedback: bool  # whether error feedback is used


class CompressionOptions(Common, total=False):
    """The arguments of `CompressedMessages`."""

    uplink_compressor: Compressor | None
    downlink_compressor: Compressor | None
    uplink: Compressor | None
    downlink: Compressor | None


class CompressedMessages(FedConStrategy[State]):
    """A compressor in each direction.

    Parameters
    ----------
    uplink_compressor : Compressor, optional
        C_j, for what clients upload; by default `Identity()`. Also accepted as `uplink`.
    downlink_compressor : Compressor, optional
        C_0, for the change of the model; by default `Identity()`. Also accepted as `downlink`.
    """

    constants: Compression
    compact = True
    release = Release("without compression")
    needs_uncompressed = "it has its own, uplink_compressor and downlink_compressor"

    def __init__(
        self,
        *,
        uplink_compressor: Compressor | None = None,
        downlink_compressor: Compressor | None = None,
        uplink: Compressor | None = None,
        downlink: Compressor | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.uplink_compressor = one_of("uplink_compressor", uplink_compressor, "uplink", uplink)
        self.downlink_compressor = one_of(
            "downlink_compressor", downlink_compressor, "downlink", downlink
        )
        for name in ("uplink_compressor", "downlink_compressor"):
            if self.aggregation is not None and not isinstance(getattr(self, name), Identity):
                raise ConfigError(
                    f"{self.title} takes aggregation={self.aggregation!r} only without "
                    f"compression, got {name}={getattr(self, name)!r}: the errors of compression "
                    f"cancel only in the mean, or over the rounds"
                )

    def derive(self) -> Compression:
        """Set the compressors."""
        size = self.setup.layout.size
        return compression(self.title, self.uplink_compressor, self.downlink_compressor, size)

    def why_single(self) -> str:
        """Return why the server needs each upload in this run; "" if the sum suffices."""
        plain = isinstance(self.constants.uplink_compressor, Identity)
        return "" if plain else "each upload is compressed differently: use Identity()"

    def decode(self, name: str, parts: Mapping[str, Array]) -> Any:
        """Return a compressed upload from its arrays in a message."""
        layout = self.setup.layout
        compressor = self.constants.uplink_compressor
        return compressor.decode(parts, layout.shape, np.dtype(layout.dtype))


def one_of(name: str, value: Compressor | None, older: str, same: Compressor | None) -> Compressor:
    """Return the compressor of an argument that also has an older name."""
    if value is not None and same is not None:
        raise ConfigError(f"{name} and {older} are two names of one argument: give one of them")
    return as_compressor(same if value is None else value)


def unbiased(name: str, value: Compressor | None) -> Compressor:
    """Return an unbiased compressor; None is `Identity()`.

    Raises
    ------
    ConfigError
        If it is biased, with those that are not.
    """
    found = as_compressor(value)
    if not found.unbiased:
        raise ConfigError(
            f"{name} must be unbiased, such as RandK, QSGD or Natural, got {found!r}: a biased one "
            "needs error feedback, such as Scaffold's compression=EF21(...)"
        )
    return found


def compression(title: str, uplink: Compressor, downlink: Compressor, size: int) -> Compression:
    """Return how models of `size` entries are compressed.

    Raises
    ------
    ConfigError
        If a compressor keeps more entries than the model has, or is not contractive with error
        feedback.
    """
    feedback = not (isinstance(downlink, Identity) and uplink.unbiased)
    if not feedback:
        uplink.q(size)
        return Compression(uplink, downlink, feedback)
    up, down = (_contractive(title, compressor, size) for compressor in (uplink, downlink))
    return Compression(up, down, feedback)


def _contractive(title: str, compressor: Compressor, size: int) -> Compressor:
    """Return a compressor in its contractive form."""
    if isinstance(compressor, RandK):
        compressor = replace(compressor, scaled=False)
    q = compressor.q(size)
    if compressor.unbiased and q >= 1:
        raise ConfigError(
            f"{title} with error feedback needs contractive compressors, and the error of "
            f"{compressor!r} on {size} entries can be {q:.3g} ||x||^2: use TopK or RandK, or QSGD "
            "with more levels"
        )
    return compressor
