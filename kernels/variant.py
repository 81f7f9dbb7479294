"""What every kernel variant provides: one class per file in ``variants/``, one line each in ``registry.py``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from roofgap.kernels.config import KernelConfig, Value
from roofgap.kernels.step import Step
from roofgap.shapes.problem import Problem

if TYPE_CHECKING:
    import torch

    from roofgap.kernels.formats.layout import Layout


Epilogue = Literal["residual", "swiglu"]
EPILOGUE_ROWS = 32
"""Gate and up are whole tiles of 16 rows each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a config may use on the GPU it is meant for. The defaults suit every GPU since sm_80 (sm_86 least).

    ``max_cluster`` is how many programs can surely form a cluster: 8 from sm_90 on (CUDA C++ Programming Guide, "Thread
    Block Clusters"), 1 where there are none.
    """

    sm_count: int = 28
    shared_bytes: int = 99 * 1024
    max_warps: int = 32
    warp_size: int = 32
    max_cluster: int = 1


def max_cluster(major: int) -> int:
    """``Limits.max_cluster`` of an NVIDIA GPU's compute capability; 0 for other makers' GPUs."""
    return 8 if major >= 9 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Tensors of one product. All live on one device; ``meta`` tensors are legal and give a plan without memory.

    Attributes:
        x: activations [M, K] fp16 or bf16; the last axis is contiguous, rows may be further apart than K.
        codes: packed codes in the variant's layout, int32.
        scales: scales in the variant's layout, fp16 or bf16 (fp32 accepted).
        zeros: packed zeros (asym), float offsets (offset) or None (sym).
        bias: [N] or None.
        y: output [M, N], or [M, N / 2] with ``swiglu``, dtype of x, contiguous. May hold anything on entry: a plan
            never reads it before writing.
        residual: [M, N] added to the output before it is rounded, or None; dtype of x, contiguous rows. Only for
            variants that list ``residual`` among their epilogues.
        swiglu: the weight is gate over up, [2 I, K], and the output silu(gate) * up; gate and up are not rounded. Only
            for variants that list ``swiglu``.
    """

    x: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bias: torch.Tensor | None
    y: torch.Tensor
    residual: torch.Tensor | None = None
    swiglu: bool = False

    @property
    def residual_stride(self) -> int:
        """Elements between rows of the residual, 0 without one."""
        return 0 if self.residual is None else self.residual.stride(0)


class Variant(ABC):
    """A way to compute ``y = x @ dequantise(W)^T + bias``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    layout: ClassVar[type[Layout]]
    config_type: ClassVar[type[KernelConfig]]
    max_m: ClassVar[int | None] = None
    epilogues: ClassVar[tuple[Epilogue, ...]] = ()
    """What its plan can do with a sum before it is rounded, bias aside; configs are the plain problem's."""
    rounds_weights: ClassVar[bool] = False
    """Whether weights pass through x's 16-bit dtype before they are multiplied; enters the tolerance."""
    factors_zero: ClassVar[bool] = False
    """Whether x q and x z are summed apart, the zero taken off the sum; enters the tolerance. A non-finite activation
    may then make every output of its token NaN."""

    def supports(self, problem: Problem) -> str | None:
        """Why the problem cannot be computed, or None. The default refuses only M above ``max_m``."""
        if self.max_m is not None and problem.m > self.max_m:
            return f"M={problem.m} is above {self.name}'s limit of {self.max_m} rows; use gemm"
        return None

    def refuses_epilogue(self, problem: Problem, epilogue: Epilogue) -> str | None:
        """Why an epilogue cannot be part of the product, or None."""
        if epilogue not in self.epilogues:
            return f"{self.name} has no epilogue {epilogue}"
        if epilogue == "swiglu" and problem.n % EPILOGUE_ROWS:
            return f"N={problem.n} of gate|up must be a multiple of {EPILOGUE_ROWS}"
        return None

    @abstractmethod
    def default_config(self, problem: Problem, limits: Limits = Limits()) -> KernelConfig:
        """A config that is valid and reasonable on any GPU; always a candidate of the tuner."""

    @abstractmethod
    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        """Values to try per config field; the product of them, filtered by ``is_valid``, is the search space."""

    @abstractmethod
    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        """Why the config cannot or need not be tried, or None. Serves tuner and default alike."""

    @abstractmethod
    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        """The steps that fill ``operands.y``. Allocates its own workspaces on the operands' device."""

    @abstractmethod
    def kernels(self) -> tuple[Any, ...]:
        """Every ``@triton.jit`` function the plan can launch or call; their sources make the source hash."""

    def split_count(self, problem: Problem, config: KernelConfig) -> int:
        """Partial sums per output added across programs; enters the tolerance."""
        return 1

    def is_deterministic(self, problem: Problem, config: KernelConfig) -> bool:
        """Whether two runs on the same inputs give the same bits."""
        return True

    def configs(self, problem: Problem, limits: Limits = Limits()) -> Iterator[KernelConfig]:
        """Every valid config of the space, in a fixed order."""
        space = self.space(problem)
        for values in product(*space.values()):
            config = self.config_type.from_dict(dict(zip(space, values, strict=True)))
            if self.is_valid(problem, config, limits) is None:
                yield config
