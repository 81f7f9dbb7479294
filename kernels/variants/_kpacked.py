"""What the kernels over K-packed words share: loading a group's scale and zero, and the arguments for it."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from roofgap.kernels.variant import Operands
from roofgap.shapes.problem import Problem

WHOLE_ROW = 1 << 30


def device_group(problem: Problem) -> int:
    """QUANT_GROUP for the kernels: ``k // QUANT_GROUP`` is k's group.

    One group for all of K becomes a power of two past any K: k // 2^30 is 0, every power-of-two block lies inside
    it, and one compiled kernel serves every K.
    """
    return WHOLE_ROW if problem.groups == 1 else problem.group


def metadata_args(operands: Operands) -> dict[str, Any]:
    """Codes, scales and zeros with their row strides. A stride passed as its own argument keeps the divisibility that
    Triton needs for 128-bit loads; computed from K or N inside the kernel it would lose it.
    """
    zeros = operands.zeros
    return {
        "codes_ptr": operands.codes,
        "scales_ptr": operands.scales,
        "zeros_ptr": zeros,
        "stride_cw": operands.codes.stride(0),
        "stride_sg": operands.scales.stride(0),
        "stride_zg": 0 if zeros is None else zeros.stride(0),
    }


@triton.jit
def load_scale(
    scales_ptr,  # [G, N]
    k_start,  # first k of the block, a multiple of BLOCK_K
    offs_k,  # [BLOCK_W] first k of each row of words
    offs_n,  # [BLOCK_N]
    k,
    n_mask,  # [BLOCK_N]
    stride_sg,
    QUANT_GROUP: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """fp32 scales that broadcast over words [BLOCK_W, BLOCK_N]: [1, BLOCK_N] where the block lies in one group."""
    if QUANT_GROUP % BLOCK_K == 0:
        group = tl.cast(k_start // QUANT_GROUP, tl.int64)
        scale = tl.load(scales_ptr + group * stride_sg + offs_n, mask=n_mask, other=0.0)[None, :]
    else:
        group = offs_k // QUANT_GROUP
        mask = (offs_k < k)[:, None] & n_mask[None, :]
        scale = tl.load(scales_ptr + group[:, None] * stride_sg + offs_n[None, :], mask=mask, other=0.0)
    return scale.to(tl.float32)


@triton.jit
def load_zero(
    zeros_ptr,  # [G, ceil(N/8)] int32 (asym) | [G, N] (offset) | None (sym)
    k_start,
    offs_k,
    offs_n,
    k,
    n_mask,
    stride_zg,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """What the scale's shape needs beside it: int32 zeros (8 for sym), or fp32 offsets."""
    if ZERO_MODE == "sym":
        zero = 8
    else:
        column = offs_n if ZERO_MODE == "offset" else offs_n // 8
        if QUANT_GROUP % BLOCK_K == 0:
            group = tl.cast(k_start // QUANT_GROUP, tl.int64)
            zero = tl.load(zeros_ptr + group * stride_zg + column, mask=n_mask, other=0)[None, :]
        else:
            group = offs_k // QUANT_GROUP
            mask = (offs_k < k)[:, None] & n_mask[None, :]
            zero = tl.load(zeros_ptr + group[:, None] * stride_zg + column[None, :], mask=mask, other=0)
        shift = ((offs_n % 8) * 4)[None, :]
        zero = (zero >> shift) & 15 if ZERO_MODE == "asym" else zero.to(tl.float32)
    return zero
