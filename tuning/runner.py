"""Who executes what a search asks for: a GPU, a recorded sweep or a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from roofgap.kernels.config import KernelConfig
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.space import Space
from roofgap.tuning.trial import Round, Trial


@dataclass(frozen=True, slots=True)
class Attainable:
    """What the hardware allows for a problem's bytes, in microseconds; None where it is not known.

    ``roof_us`` is bytes over bandwidth, ``probe_us`` the stream probe: a kernel that only reads the same
    words.
    """

    roof_us: float | None = None
    probe_us: float | None = None


class SetUpError(RoofgapError):
    """One problem cannot be set up on the device (its operands do not fit); the others may."""


class Runner(Protocol):
    """Executes trials of one problem at a time. A trial's failure is a status, never an exception.

    Raises:
        SetUpError: from ``begin``.
    """

    quarantine: dict[str, str]
    """Machine code that must not be launched, by code hash, with the evidence. The caller adds to it."""

    def begin(self, space: Space, timed: dict[str, str]) -> None:
        """Gets ready for a problem. ``timed`` are configs that have a time already, by the hash of their
        code.
        """

    def explore(self, configs: Sequence[KernelConfig]) -> Iterator[Trial]:
        """One trial per config, each yielded as soon as it is known, in any order."""

    def duel(self, contenders: Sequence[str], number: int) -> Round:
        """One interleaved round; ``number`` counts the rounds of the problem from 0."""

    def baselines(self) -> dict[str, str | None]:
        """Baselines that can compute the problem, as name -> None, or name -> why it cannot."""

    def attainable(self) -> Attainable:
        """Roof and stream probe of the problem."""

    def clock(self) -> float:
        """Seconds since some fixed moment, for charging time."""

    def close(self) -> None:
        """Frees the device."""
