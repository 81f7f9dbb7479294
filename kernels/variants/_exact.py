"""v4's product in plain Triton: the portable kernel's body.

The zero is taken off each code, not off the sum, so that an infinite activation reaches an output with the sign of its
weight.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl

from roofgap.kernels.variants._decode import decode_scaled
from roofgap.kernels.variants._epilogue import finish_row


@triton.jit
def exact_sums(
    x_row,  # pointer to x [K] of one token
    codes_ptr,  # layout interleaved
    scales_ptr,
    zeros_ptr,
    offs_n,  # [BLOCK_N]
    n,
    k_begin,
    k_end,
    stride_cn,
    groups,
    magic,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of 128 k per step
):
    """fp32 [BLOCK_N]: sum over k_begin..k_end of x[k] w[n, k]; rows past N give values that must not be stored."""
    tile = tl.minimum(offs_n, n - 1) // 16
    rows = tl.minimum(n - tile * 16, 16)[:, None]
    row = (tl.minimum(offs_n, n - 1) % 16)[:, None]
    tile64 = tile.to(tl.int64)[:, None]
    codes_row = codes_ptr + tile64 * (16 * stride_cn) + row * 16
    scales_row = scales_ptr + tile64 * (16 * groups) + row
    place = tl.arange(0, 16 * BLOCKS)
    first_k = place // 16 * 128 + place % 4 * 32 + place % 16 // 4 * 8

    total = tl.zeros((BLOCK_N, 16 * BLOCKS), dtype=tl.float32)
    for k_start in range(k_begin, k_end, 128 * BLOCKS):
        offs_k = k_start + first_k
        mask = (offs_k < k_end)[None, :]
        block = (k_start // 128 + place // 16)[None, :]
        words = tl.load(codes_row + block * (rows * 16) + (place % 16)[None, :], mask=mask, other=0)
        group = (offs_k // QUANT_GROUP)[None, :]
        scale = tl.load(scales_row + group * rows, mask=mask, other=0.0).to(tl.float32)
        if ZERO_MODE == "sym":
            zero = 8
        elif ZERO_MODE == "asym":
            packed = tl.load(zeros_ptr + tile64 * (2 * groups) + group * 2 + row // 8, mask=mask, other=0)
            zero = (packed >> (row % 8 * 4)) & 15
        else:
            offsets_row = zeros_ptr + tile64 * (16 * groups) + row
            zero = tl.load(offsets_row + group * rows, mask=mask, other=0.0).to(tl.float32)
        part = tl.zeros((BLOCK_N, 16 * BLOCKS), dtype=tl.float32)
        upper = words >> 20
        for j in tl.static_range(8):
            offs_x = offs_k + j % 2 * 4 + j % 4 // 2 * 2 + j // 4
            x = tl.load(x_row + offs_x, mask=offs_x < k_end, other=0.0).to(tl.float32)[None, :]
            power = 1.0 / 16 ** (j if j < 5 else j - 5)
            value = decode_scaled(words if j < 5 else upper, magic, zero, j if j < 5 else j - 5, ZERO_MODE)
            if ZERO_MODE == "offset":
                part += x * (value * (scale * power) + zero)
            else:
                part += (x * power) * value
        total += part if ZERO_MODE == "offset" else part * scale
    return tl.sum(total, axis=1)


@triton.jit
def v4_portable_kernel(
    x_ptr,  # [M, K] fp16 or bf16
    codes_ptr,  # [N, 16 ceil(K/128)] int32, layout interleaved
    scales_ptr,  # [N, G]
    zeros_ptr,  # [ceil(N/16), G, 2] int32 | [N, G] | None
    bias_ptr,  # [N] | None
    residual_ptr,  # [M, N] | None
    out_ptr,  # y [M, N], [M, N / 2] with SWIGLU, or fp32 sums [splits, M, N]
    n,
    k,
    k_slice,
    groups,
    stride_xm,
    stride_cn,
    stride_split,
    stride_rm,
    stride_om,
    magic,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,
    SWIGLU: tl.constexpr = False,  # rows are gate|up
    PDL: tl.constexpr = False,
):
    """One token times BLOCK_N outputs over a slice of K; grid (ceil(width of y / BLOCK_N), splits, M)."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    width = n // 2 if SWIGLU else n  # of y
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(2).to(tl.int64)
    k_begin = tl.program_id(1) * k_slice
    k_end = tl.minimum(k_begin + k_slice, k)
    y = exact_sums(
        x_ptr + token * stride_xm, codes_ptr, scales_ptr, zeros_ptr, offs_n, n, k_begin, k_end, stride_cn, groups,
        magic, ZERO_MODE, QUANT_GROUP, BLOCK_N, BLOCKS,
    )  # fmt: skip
    up = y
    if SWIGLU:
        up = exact_sums(
            x_ptr + token * stride_xm, codes_ptr, scales_ptr, zeros_ptr, width + offs_n, n, k_begin, k_end, stride_cn,
            groups, magic, ZERO_MODE, QUANT_GROUP, BLOCK_N, BLOCKS,
        )  # fmt: skip
    y = finish_row(y, up, bias_ptr, residual_ptr, token * stride_rm, offs_n, width, SWIGLU)
    out = out_ptr + tl.program_id(1).to(tl.int64) * stride_split + token * stride_om + offs_n
    tl.store(out, y.to(out_ptr.dtype.element_ty), mask=offs_n < width)
