"""tldot: the naive tl.dot rewrite, kept because a negative result is a result.

    y[m, n] = sum_k x[m, k] * round16(s * (q - z)) + bias[n]

Layout: K-packed (``kpacked``): int32 [K/8, N].
Bytes per weight: 0.5 of codes stored, but 4 asked for: the weight tile is addressed per *weight*, so that each packed
word is loaded eight times, once per nibble, and each scale once per weight. The caches serve the repeats; the load
instructions, the address arithmetic and the shifts by a per-row amount are paid for each of the eight. The usual form
(GPTQ-triton's ``matmul4``). M is padded to the 16 rows that tensor cores want: at M = 1, 15/16 of the product is
thrown away.
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
from roofgap.kernels.variants._dot import dot_rounded
from roofgap.kernels.variants._kpacked import device_group, metadata_args
from roofgap.kernels.variants._rules import refuse_dot
from roofgap.shapes.problem import Problem

BLOCK_M = 16


@triton.jit
def tldot_kernel(
    x_ptr,  # [M, K] fp16 or bf16
    codes_ptr,  # [ceil(K/8), N] int32
    scales_ptr,  # [G, N]
    zeros_ptr,  # [G, ceil(N/8)] int32 | [G, N] | None
    bias_ptr,  # [N] | None
    y_ptr,  # [M, N]
    m,
    n,
    k,
    stride_xm,
    stride_cw,
    stride_sg,
    stride_zg,
    stride_ym,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """BLOCK_M rows of x times BLOCK_N outputs; grid (ceil(M / BLOCK_M), ceil(N / BLOCK_N))."""
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_mask, n_mask = offs_m < m, offs_n < n
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k_start in range(0, k, BLOCK_K):
        offs_k = k_start + tl.arange(0, BLOCK_K)
        k_mask = offs_k < k
        w_mask = k_mask[:, None] & n_mask[None, :]
        x = tl.load(
            x_ptr + offs_m[:, None] * stride_xm + offs_k[None, :],
            mask=m_mask[:, None] & k_mask[None, :],
            other=0.0,
        )
        row = (offs_k // 8).to(tl.int64)[:, None]
        group = (offs_k // QUANT_GROUP)[:, None]
        words = tl.load(codes_ptr + row * stride_cw + offs_n[None, :], mask=w_mask, other=0)
        code = (words >> ((offs_k % 8) * 4)[:, None]) & 15
        scale = tl.load(scales_ptr + group * stride_sg + offs_n[None, :], mask=w_mask, other=0.0)
        scale = scale.to(tl.float32)
        if ZERO_MODE == "sym":
            weight = scale * (code - 8).to(tl.float32)
        elif ZERO_MODE == "asym":
            packed = tl.load(zeros_ptr + group * stride_zg + (offs_n // 8)[None, :], mask=w_mask, other=0)
            zero = (packed >> ((offs_n % 8) * 4)[None, :]) & 15
            weight = scale * (code - zero).to(tl.float32)
        else:
            offset = tl.load(zeros_ptr + group * stride_zg + offs_n[None, :], mask=w_mask, other=0.0)
            weight = scale * code.to(tl.float32) + offset.to(tl.float32)
        total = dot_rounded(x, weight, total)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + offs_n, mask=n_mask, other=0.0).to(tl.float32)[None, :]
    tl.store(
        y_ptr + offs_m[:, None] * stride_ym + offs_n[None, :],
        total.to(y_ptr.dtype.element_ty),
        mask=m_mask[:, None] & n_mask[None, :],
    )


@dataclass(frozen=True, kw_only=True)
class TlDotConfig(KernelConfig):
    """Tile of the weight; the tile of x is always 16 rows."""

    block_n: int = 64
    block_k: int = 64


class TlDot(Variant):
    """Naive tl.dot."""

    name = "tldot"
    summary = "naive tl.dot, M padded to 16, each word loaded once per nibble (a negative result)"
    layout = KPacked
    config_type = TlDotConfig
    rounds_weights = True

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> TlDotConfig:
        """Small tiles."""
        return TlDotConfig(block_n=32 if problem.n < 64 * limits.sm_count else 64, block_k=64)

    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        """What the matmul tutorial would try."""
        return {
            "block_n": (16, 32, 64, 128),
            "block_k": (16, 32, 64, 128),
            "num_warps": (1, 2, 4, 8),
            "num_stages": (1, 2, 3, 4),
        }

    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        """Refuses tiles that tensor cores or shared memory cannot take."""
        assert isinstance(config, TlDotConfig)
        return refuse_dot(
            problem, config, limits, block_m=BLOCK_M, block_n=config.block_n, block_k=config.block_k
        )

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        """One launch."""
        assert isinstance(config, TlDotConfig)
        return [
            Launch(
                kernel=tldot_kernel,
                grid=(cdiv(problem.m, BLOCK_M), cdiv(problem.n, config.block_n)),
                args={
                    "x_ptr": operands.x,
                    **metadata_args(operands),
                    "bias_ptr": operands.bias,
                    "y_ptr": operands.y,
                    "m": problem.m,
                    "n": problem.n,
                    "k": problem.k,
                    "stride_xm": operands.x.stride(0),
                    "stride_ym": operands.y.stride(0),
                    "ZERO_MODE": problem.zero_mode,
                    "QUANT_GROUP": device_group(problem),
                    "BLOCK_M": BLOCK_M,
                    "BLOCK_N": config.block_n,
                    "BLOCK_K": config.block_k,
                },
                num_warps=config.num_warps,
                num_stages=config.num_stages,
            )
        ]

    def kernels(self) -> tuple[Any, ...]:
        """The one kernel."""
        return (tldot_kernel,)
