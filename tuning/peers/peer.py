"""What the comparison needs of another project's kernel: pack a weight, call it, say what it should compute."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from roofgap.kernels.formats.weight import DTYPE_NAMES, QuantizedWeight
from roofgap.kernels.reference import Reference
from roofgap.shapes.problem import Problem, XDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A weight [N, K] as a peer reads it.

    Attributes:
        n: output features.
        k: input features.
        group_size: weights along K that share a scale.
        dtype: of activations and output.
        read: tensors that every call reads whole; copied for a cold L2.
        shared: what calls need besides, alike for all copies: workspaces, tables, flags.
    """

    n: int
    k: int
    group_size: int
    dtype: torch.dtype
    read: Mapping[str, torch.Tensor]
    shared: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes that a call reads of the weight."""
        return sum(tensor.nbytes for tensor in self.read.values())

    def clone(self) -> Packed:
        """The same weight in memory of its own."""
        return replace(self, read={name: tensor.clone() for name, tensor in self.read.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a peer's own tuner chose.

    Attributes:
        config: as text, None for a peer that does not tune.
        seconds: what tuning took, compiling included.
        atomic_splits: partial sums that are added to the output by 16-bit atomics; 1 means none are.
    """

    config: str | None = None
    seconds: float = 0.0
    atomic_splits: int = 1


NOT_TUNED = Tuned()


class Peer(ABC):
    """Another project's product y[M, N] = x[M, K] W^T. It is imported when it is first asked for, never before."""

    name: ClassVar[str]
    package: ClassVar[str | None] = None
    """The distribution that it comes from; None where it comes with torch or with a loaded library."""
    dtypes: ClassVar[tuple[XDtype, ...]] = ("fp16", "bf16")
    needs_gpu: ClassVar[bool] = True
    takes_out: ClassVar[bool] = False
    """Whether ``run`` writes into a given output. Else it returns a new tensor."""

    def missing(self, dtype: torch.dtype) -> str | None:
        """Why it cannot run here at all, or None."""
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return f"{self.name} needs a GPU" if self.needs_gpu and not torch.cuda.is_available() else None

    def dtype_for(self, dtype: torch.dtype) -> torch.dtype:
        """The activations' dtype it is run in where ``dtype`` is asked for: that one if it can, else bf16."""
        return dtype if DTYPE_NAMES[dtype] in self.dtypes else torch.bfloat16

    @abstractmethod
    def refuses(self, problem: Problem) -> str | None:
        """Why it does not compute this problem, or None."""

    @abstractmethod
    def pack(self, weight: QuantizedWeight, dtype: torch.dtype) -> Packed:
        """Arranges a canonical weight, on the weight's device, for activations of ``dtype``."""

    def tune(self, x: torch.Tensor, packed: Packed) -> Tuned:
        """Runs its own tuner, if it has one, for x [M, K]."""
        return NOT_TUNED

    @abstractmethod
    def run(self, x: torch.Tensor, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """x [M, K] -> [M, N] on the current stream; into ``out`` where it ``takes_out`` and one is given."""

    @abstractmethod
    def reference(self, x: torch.Tensor, weight: QuantizedWeight, packed: Packed, tuned: Tuned) -> Reference:
        """The fp64 product with the peer's own quantised weights, for ``tolerance.judge(rounds_weights=True)``.

        ``energy`` is widened where the peer rounds to 16 bits more often than once per weight; each class derives it.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """Ends what it started."""

    def version(self) -> str | None:
        """Version of its package, None where it is not installed."""
        try:
            return importlib.metadata.version(self.package) if self.package else None
        except importlib.metadata.PackageNotFoundError:
            return None
