"""The second half of a split-K product: fp32 sums in, y out. Serves atomics (one sum) and partials (one per split)."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl

from roofgap.kernels.step import Launch, Step, TorchStep
from roofgap.kernels.variant import Operands
from roofgap.shapes.problem import Problem

REDUCE_BLOCK_N = 256


@triton.jit
def reduce_kernel(
    sums_ptr,  # [SPLITS, M, N] fp32
    bias_ptr,  # [N] | None
    y_ptr,  # [M, N]
    n,
    stride_split,
    stride_sm,
    stride_ym,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """``y[m, n] = sum_s sums[s, m, n] + bias[n]``, added in the order of s; grid (M, ceil(N / BLOCK_N))."""
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = offs_n < n
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(sums_ptr + split * stride_split + row * stride_sm + offs_n, mask=mask, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + offs_n, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * stride_ym + offs_n, total.to(y_ptr.dtype.element_ty), mask=mask)


def workspace(problem: Problem, reduce: str, split_k: int, device: torch.device) -> torch.Tensor:
    """fp32 [1, M, N] that atomics add into, or [split_k, M, N] of partials. Uninitialised."""
    slots = 1 if reduce == "atomic" else split_k
    return torch.empty((slots, problem.m, problem.n), dtype=torch.float32, device=device)


def zero_step(sums: torch.Tensor) -> TorchStep:
    """Zeroes a workspace on the current stream; part of the plan, so that a replayed graph zeroes it again."""
    return TorchStep(
        name="zero", run=sums.zero_, read_bytes=0, written_bytes=sums.numel() * 4, writes=(sums,)
    )


def split_steps(
    problem: Problem, reduce: str, sums: torch.Tensor, main: Launch, operands: Operands
) -> list[Step]:
    """The launch that fills ``sums``, zeroed before it where it adds, and the reduction after it."""
    args = {
        "sums_ptr": sums,
        "bias_ptr": operands.bias,
        "y_ptr": operands.y,
        "n": problem.n,
        "stride_split": sums.stride(0),
        "stride_sm": sums.stride(1),
        "stride_ym": operands.y.stride(0),
        "SPLITS": sums.shape[0],
        "BLOCK_N": REDUCE_BLOCK_N,
    }
    grid = (problem.m, triton.cdiv(problem.n, REDUCE_BLOCK_N))
    finish = Launch(kernel=reduce_kernel, grid=grid, args=args, num_warps=2, num_stages=1, role="reduce")
    return [zero_step(sums), main, finish] if reduce == "atomic" else [main, finish]
