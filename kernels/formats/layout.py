"""The interface of a packed layout: how canonical codes, scales and zeros are arranged in memory for a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from roofgap.shapes.problem import Problem, ZeroMode

if TYPE_CHECKING:
    import torch

    from roofgap.kernels.formats.weight import QuantizedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A weight in one layout, ready for a kernel.

    ``codes``, ``scales`` and ``zeros`` have the shapes the layout's docstring gives; ``zeros`` is None for ``sym``.
    """

    n: int
    k: int
    group_size: int
    zero_mode: ZeroMode
    layout: str
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None


class Layout(ABC):
    """Exact in both directions: ``unpack(pack(w))`` equals ``w`` bit for bit."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def pack(cls, weight: QuantizedWeight) -> PackedWeight:
        """Arranges a canonical weight."""

    @classmethod
    @abstractmethod
    def unpack(cls, packed: PackedWeight) -> QuantizedWeight:
        """Restores the canonical weight."""

    @classmethod
    @abstractmethod
    def meta(cls, problem: Problem) -> PackedWeight:
        """The packed weight of a problem as meta tensors: shapes, strides and dtypes without memory."""

    @classmethod
    @abstractmethod
    def out_features(cls, codes: torch.Tensor) -> int:
        """N of packed codes."""
