"""The record of one traffic count."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, computed_field

from roofgap.kernels.config import Value
from roofgap.kernels.traffic.hook import AccessKind
from roofgap.shapes.problem import Problem

# What is listed apart from the weight: everything else is packed codes or a workspace.
_NOT_WEIGHT = frozenset({"x", "scales", "zeros", "bias", "y"})


class TrafficRow(BaseModel):
    """Bytes of one kind that one tensor sees.

    Attributes:
        tensor: operand name (``x, codes, scales, zeros, bias, y``), kernel argument of a workspace, or the
            name of a torch step that does not list its tensors.
        kind: ``load``, ``store`` or ``atomic`` (bytes sent; the memory system reads and writes them back).
        asked_bytes: active lanes times element size over all programs, repeats included.
        unique_bytes: distinct bytes among them; None where modelled.
        size_bytes: the whole tensor; None where unknown.
        ratio: asked_bytes / size_bytes; 1.0 means that the tensor is moved once.
        bytes_per_weight: asked_bytes / (N * K).
        modelled: taken from tensor sizes, for torch's own kernels cannot be counted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor: str
    kind: AccessKind
    asked_bytes: int
    unique_bytes: int | None
    size_bytes: int | None
    ratio: float | None
    bytes_per_weight: float
    modelled: bool = False

    @classmethod
    def of(
        cls,
        problem: Problem,
        tensor: str,
        kind: AccessKind,
        asked_bytes: int,
        *,
        unique_bytes: int | None = None,
        size_bytes: int | None = None,
        modelled: bool = False,
    ) -> TrafficRow:
        """The row with its two quotients worked out."""
        return cls(
            tensor=tensor,
            kind=kind,
            asked_bytes=asked_bytes,
            unique_bytes=unique_bytes,
            size_bytes=size_bytes,
            ratio=asked_bytes / size_bytes if size_bytes else None,
            bytes_per_weight=asked_bytes / (problem.n * problem.k),
            modelled=modelled,
        )


class Traffic(BaseModel):
    """Bytes that one call of a variant moves, as the program asks for them (before any cache).

    Attributes:
        variant: name of the variant.
        problem: the problem that was run.
        config: the config that was run.
        rows: one per tensor and kind.
        cut_from: the shape asked for, where ``problem`` is a cut of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    variant: str
    problem: Problem
    config: dict[str, Value]
    rows: tuple[TrafficRow, ...]
    cut_from: str | None = None

    def ratio(self, tensor: str) -> float | None:
        """Loaded bytes of a tensor over its size; None if it was not loaded."""
        loads = [row.ratio for row in self.rows if row.tensor == tensor and row.kind == "load" and row.ratio]
        return sum(loads) if loads else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def bytes_per_weight(self) -> float:
        """The weight path: codes and workspaces, loaded, stored and added to; all other operands apart."""
        asked = sum(row.asked_bytes for row in self.rows if row.tensor not in _NOT_WEIGHT)
        return asked / (self.problem.n * self.problem.k)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def codes_ratio(self) -> float | None:
        """1.0 if each packed word is loaded once."""
        return self.ratio("codes")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def scales_ratio(self) -> float | None:
        """1.0 if each scale is loaded once."""
        return self.ratio("scales")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def zeros_ratio(self) -> float | None:
        """1.0 if each packed zero or offset is loaded once."""
        return self.ratio("zeros")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def x_ratio(self) -> float | None:
        """How often the activations are asked for; programs re-read them, mostly from L1 and L2."""
        return self.ratio("x")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def asked_bytes(self) -> int:
        """All rows, modelled ones included."""
        return sum(row.asked_bytes for row in self.rows)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def modelled_bytes(self) -> int:
        """The modelled part of ``asked_bytes``."""
        return sum(row.asked_bytes for row in self.rows if row.modelled)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def cached_bytes(self) -> int:
        """What is left if a cache served every repeat: unique bytes, modelled ones as they are."""
        return sum(row.asked_bytes if row.unique_bytes is None else row.unique_bytes for row in self.rows)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def minimum_bytes(self) -> int:
        """What any implementation must move: ``Problem.total_bytes``."""
        return self.problem.total_bytes

    @computed_field  # type: ignore[prop-decorator]
    @property
    def asked_to_minimum(self) -> float | None:
        """asked_bytes / minimum_bytes."""
        return self.asked_bytes / self.minimum_bytes if self.minimum_bytes else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def cached_to_minimum(self) -> float | None:
        """cached_bytes / minimum_bytes."""
        return self.cached_bytes / self.minimum_bytes if self.minimum_bytes else None
