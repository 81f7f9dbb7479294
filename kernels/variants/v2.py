"""v2: a plain fused dequantising GEMV, one pass over the packed words.

    y[m, n] = sum_k x[m, k] * w[n, k] + bias[n],   w[n, k] = s * (q - 8) | s * (q - z) | s * q + o

Layout: K-packed (``kpacked``): int32 [K/8, N], eight codes along K in a word, N contiguous, so that neighbouring lanes
read neighbouring words and a lane that owns four outputs reads 16 bytes at once.
Bytes per weight: 0.5 of codes + 2/g of scales (+ 0.5/g of zeros, or 2/g of offsets), each read once per row of x.

A program owns BLOCK_N outputs of one row of x and walks all of K. Each word is unpacked with a shift and a mask per
nibble; products and sums are fp32. The scale multiplies the sum of a word's eight products, not each weight. The zero
is subtracted from each code and not from the sum: with an infinite x the factored form would give inf - inf.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from roofgap.kernels.config import KernelConfig, Value
from roofgap.kernels.formats.kpacked import KPacked
from roofgap.kernels.ints import cdiv
from roofgap.kernels.step import Launch, Step
from roofgap.kernels.variant import Limits, Operands, Variant
from roofgap.kernels.variants._kpacked import device_group, load_scale, load_zero, metadata_args
from roofgap.kernels.variants._rules import fit_k, fit_n, refuse_blocks
from roofgap.shapes.problem import Problem


@triton.jit
def v2_kernel(
    x_ptr,  # [M, K] fp16 or bf16
    codes_ptr,  # [ceil(K/8), N] int32
    scales_ptr,  # [G, N]
    zeros_ptr,  # [G, ceil(N/8)] int32 | [G, N] | None
    bias_ptr,  # [N] | None
    y_ptr,  # [M, N]
    n,
    k,
    stride_xm,
    stride_cw,
    stride_sg,
    stride_zg,
    stride_ym,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """One row of x times BLOCK_N outputs; grid (M, ceil(N / BLOCK_N))."""
    BLOCK_W: tl.constexpr = BLOCK_K // 8
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = offs_n < n
    offs_w = tl.arange(0, BLOCK_W)
    x_row = x_ptr + row * stride_xm

    total = tl.zeros((BLOCK_W, BLOCK_N), dtype=tl.float32)
    for k_start in tl.range(0, k, BLOCK_K, num_stages=NUM_STAGES):
        first_word = tl.cast(k_start // 8, tl.int64)
        offs_k = k_start + offs_w * 8
        tile_mask = (offs_k < k)[:, None] & n_mask[None, :]
        words = tl.load(
            codes_ptr + first_word * stride_cw + offs_w[:, None] * stride_cw + offs_n[None, :],
            mask=tile_mask,
            other=0,
        )
        scale = load_scale(scales_ptr, k_start, offs_k, offs_n, k, n_mask, stride_sg, QUANT_GROUP, BLOCK_K)
        zero = load_zero(
            zeros_ptr, k_start, offs_k, offs_n, k, n_mask, stride_zg, ZERO_MODE, QUANT_GROUP, BLOCK_K
        )
        part = tl.zeros((BLOCK_W, BLOCK_N), dtype=tl.float32)
        for j in tl.static_range(8):
            x = tl.load(x_row + offs_k + j, mask=offs_k + j < k, other=0.0).to(tl.float32)
            code = (words >> (4 * j)) & 15
            if ZERO_MODE == "offset":
                part += x[:, None] * (scale * code.to(tl.float32) + zero)
            else:
                part += x[:, None] * (code - zero).to(tl.float32)
        total += part if ZERO_MODE == "offset" else part * scale
    y = tl.sum(total, axis=0)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + offs_n, mask=n_mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * stride_ym + offs_n, y.to(y_ptr.dtype.element_ty), mask=n_mask)


@dataclass(frozen=True, kw_only=True)
class V2Config(KernelConfig):
    """``block_n`` outputs per program, ``block_k`` weights of each per step of the loop."""

    num_stages: int = 1
    block_n: int = 64
    block_k: int = 128


class V2(Variant):
    """Plain fused GEMV."""

    name = "v2"
    summary = "fused dequantising GEMV: shift and mask, fp32 sums, one pass over K"
    layout = KPacked
    config_type = V2Config

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> V2Config:
        """The widest block that still gives every SM two programs."""
        block_n = 128
        while block_n > 32 and cdiv(problem.n, block_n) * max(1, problem.m) < 2 * limits.sm_count:
            block_n //= 2
        return V2Config(block_n=fit_n(block_n, problem.n), block_k=fit_k(128, problem.k), num_warps=4)

    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        """288 combinations before ``is_valid``."""
        return {
            "block_n": (16, 32, 64, 128, 256, 512),
            "block_k": (32, 64, 128, 256),
            "num_warps": (1, 2, 4, 8),
            "num_stages": (1, 2, 4),
        }

    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        """Refuses blocks that no thread count can hold, or that are mostly padding."""
        assert isinstance(config, V2Config)
        return refuse_blocks(problem, config, limits, block_n=config.block_n, block_k=config.block_k)

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        """One launch."""
        assert isinstance(config, V2Config)
        args = {
            "x_ptr": operands.x,
            **metadata_args(operands),
            "bias_ptr": operands.bias,
            "y_ptr": operands.y,
            "n": problem.n,
            "k": problem.k,
            "stride_xm": operands.x.stride(0),
            "stride_ym": operands.y.stride(0),
            "ZERO_MODE": problem.zero_mode,
            "QUANT_GROUP": device_group(problem),
            "BLOCK_N": config.block_n,
            "BLOCK_K": config.block_k,
            "NUM_STAGES": config.num_stages,
        }
        grid = (problem.m, cdiv(problem.n, config.block_n))
        return [
            Launch(
                kernel=v2_kernel,
                grid=grid,
                args=args,
                num_warps=config.num_warps,
                num_stages=config.num_stages,
            )
        ]

    def kernels(self) -> tuple[Any, ...]:
        """The one kernel."""
        return (v2_kernel,)
