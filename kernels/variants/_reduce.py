"""The second half of a split-K product: fp32 sums in, y out. Serves atomics (one sum) and partials (one per split)."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl

from roofgap.kernels.ints import cdiv
from roofgap.kernels.step import Launch, Step, TorchStep
from roofgap.kernels.variant import Operands
from roofgap.kernels.variants._epilogue import finish_row
from roofgap.shapes.problem import Problem

REDUCE_BLOCK_N = 256


@triton.jit
def add_splits(sums_ptr, at, stride_split, mask, SPLITS: tl.constexpr):
    """fp32 sums of all splits at offsets ``at``, added in their order."""
    total = tl.load(sums_ptr + at, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(sums_ptr + split * stride_split + at, mask=mask, other=0.0)
    return total


@triton.jit
def reduce_kernel(
    sums_ptr,  # [SPLITS, M, N] fp32
    bias_ptr,  # [N] | None
    residual_ptr,  # [M, N] | None
    y_ptr,  # [M, N], or [M, N / 2] with SWIGLU
    width,  # of y
    stride_split,
    stride_sm,
    stride_rm,
    stride_ym,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SWIGLU: tl.constexpr = False,  # rows of the weight are gate|up
    PDL: tl.constexpr = False,
):
    """``y[m, n] = sum_s sums[s, m, n] + bias[n]``, added in the order of s; grid (M, ceil(width / BLOCK_N))."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = offs_n < width
    y = add_splits(sums_ptr, row * stride_sm + offs_n, stride_split, mask, SPLITS)
    up = y
    if SWIGLU:
        up = add_splits(sums_ptr, row * stride_sm + width + offs_n, stride_split, mask, SPLITS)
    y = finish_row(y, up, bias_ptr, residual_ptr, row * stride_rm, offs_n, width, SWIGLU)
    tl.store(y_ptr + row * stride_ym + offs_n, y.to(y_ptr.dtype.element_ty), mask=mask)


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
    width = operands.y.shape[1]
    args = {
        "sums_ptr": sums,
        "bias_ptr": operands.bias,
        "residual_ptr": operands.residual,
        "y_ptr": operands.y,
        "width": width,
        "stride_split": sums.stride(0),
        "stride_sm": sums.stride(1),
        "stride_rm": operands.residual_stride,
        "stride_ym": operands.y.stride(0),
        "SPLITS": sums.shape[0],
        "BLOCK_N": REDUCE_BLOCK_N,
        "SWIGLU": operands.swiglu,
    }
    grid = (problem.m, cdiv(width, REDUCE_BLOCK_N))
    finish = Launch(kernel=reduce_kernel, grid=grid, args=args, num_warps=2, num_stages=1, role="reduce")
    return [zero_step(sums), main, finish] if reduce == "atomic" else [main, finish]
