"""The hazard in its smallest form: a split-K product that adds into an output it never zeroes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.step import Launch, Step, TorchStep
from roofgap.kernels.variant import Operands
from roofgap.kernels.variants.v2 import V2, V2Config
from roofgap.shapes.problem import Problem


@triton.jit
def split_k_kernel(x_ptr, w_ptr, y_ptr, n, k, k_slice, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """y[n] += sum over one slice of K of x[k] * w[n, k], with fp32 atomics."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = tl.program_id(1) * k_slice
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for offset in range(0, k_slice, BLOCK_K):
        offs_k = start + offset + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + offs_k, mask=offs_k < k, other=0.0)
        w = tl.load(
            w_ptr + offs_n[:, None] * k + offs_k[None, :],
            mask=(offs_n < n)[:, None] & (offs_k < k)[None, :],
            other=0.0,
        )
        total += tl.sum(w * x[None, :], axis=1)
    tl.atomic_add(y_ptr + offs_n, total, mask=offs_n < n)


CONFIGS = [triton.Config({"BLOCK_N": n, "BLOCK_K": 32}, num_warps=4) for n in (16, 32)]


@dataclass
class Autotuned:
    """``split_k_kernel`` under Triton's own autotuner. ``repetitions`` counts launches while it was timing."""

    benchmark: Callable[[Callable[[], object]], list[float]] | None = None
    reset: bool = False
    repetitions: int = field(default=0, init=False)

    def __call__(self, x: torch.Tensor, w: torch.Tensor, splits: int = 4) -> torch.Tensor:
        n, k = w.shape
        y = torch.zeros(n, device=w.device)
        options: dict[str, Any] = {"reset_to_zero": ["y_ptr"]} if self.reset else {}
        tuned = triton.autotune(CONFIGS, key=["n", "k"], do_bench=self._do_bench, **options)(split_k_kernel)
        tuned[lambda meta: (triton.cdiv(n, meta["BLOCK_N"]), splits)](x, w, y, n, k, triton.cdiv(k, splits))
        return y

    def _do_bench(self, call: Callable[[], object], quantiles: Any) -> Any:
        def counted() -> object:
            self.repetitions += 1
            return call()

        if self.benchmark is not None:
            return self.benchmark(counted)
        return triton.testing.do_bench(counted, quantiles=quantiles)


@dataclass(frozen=True, kw_only=True)
class DirtyConfig(V2Config):
    zeroed: bool = False


@triton.jit
def add_kernel(y_ptr, part_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    total = tl.load(y_ptr + offsets, mask=mask) + tl.load(part_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, total, mask=mask)


class Accumulating(V2):
    """Adds its product into y: with ``zeroed`` after clearing it, as an op must, else on top of what was there."""

    name = "accumulating"
    config_type = DirtyConfig

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        assert isinstance(config, DirtyConfig)
        y, part = operands.y, torch.empty_like(operands.y)
        moved = Operands(
            x=operands.x,
            codes=operands.codes,
            scales=operands.scales,
            zeros=operands.zeros,
            bias=operands.bias,
            y=part,
        )
        args = {"y_ptr": y, "part_ptr": part, "count": y.numel(), "BLOCK": 256}
        add = Launch(kernel=add_kernel, grid=(triton.cdiv(y.numel(), 256),), args=args, role="add")
        zero = TorchStep(name="zero", run=y.zero_, read_bytes=0, written_bytes=y.nbytes, writes=(y,))
        return [*([zero] if config.zeroed else []), *super().plan(problem, config, moved), add]
