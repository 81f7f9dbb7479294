"""gemm: a grouped W4A16 GEMM that loads every packed word once.

    y[m, n] = sum_k x[m, k] * round16(s * (q - z)) + bias[n]

Layout: K-packed (``kpacked``): int32 [K/8, N], eight codes along K in a word, N contiguous.
Bytes per weight: 0.5 of codes + 2/g of scales (+ 0.5/g of zeros, or 2/g of offsets), read once per block_m rows of x;
with split_k > 1 also fp32 sums, as in v3.

A program loads a tile of words [BLOCK_K/8, BLOCK_N] once. Its eight nibbles are decoded in registers and joined along
K, so that one ``tl.dot`` per step takes them all; no word and no scale is loaded a second time. A block may span any
number of quantisation groups: a word never straddles two, so a scale per word is always right, and a scale per column
is used where the block lies inside one group.

Dispatch (``choose_split``): few rows leave most SMs idle, so K is split among programs there; past the crossover the
plain tiled kernel runs. Programs are ordered in bands of GROUP_M tiles of rows, for the L2.
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
from roofgap.kernels.variants._decode import MAGIC, decode_scaled
from roofgap.kernels.variants._dot import dot_rounded
from roofgap.kernels.variants._kpacked import device_group, load_scale, load_zero, metadata_args
from roofgap.kernels.variants._reduce import reduce_kernel, split_steps, workspace
from roofgap.kernels.variants._rules import fit_k, fit_n, refuse_dot, refuse_split
from roofgap.shapes.problem import Problem

SPLIT_K_MAX_M = 16
"""Rows up to which splitting K pays; at 32 rows it was measured slower than the plain kernel on an A100."""


def choose_split(problem: Problem, tiles: int, block_k: int, sm_count: int) -> int:
    """The dispatch rule: slices of K, 1 meaning the plain tiled kernel.

    Up to SPLIT_K_MAX_M rows K is halved until there are two programs per SM, each keeping at least four steps.
    """
    split_k = 1
    if problem.m > SPLIT_K_MAX_M:
        return split_k
    while tiles * split_k < 2 * sm_count and split_k < 16 and problem.k >= 8 * split_k * block_k:
        split_k *= 2
    return split_k


@triton.jit
def weight_of(words, magic, scale, zero, NIBBLE: tl.constexpr, ZERO_MODE: tl.constexpr):
    """fp32 weights of nibble NIBBLE of every word."""
    value = decode_scaled(words, magic, zero, NIBBLE, ZERO_MODE) * (scale * (1.0 / 16**NIBBLE))
    return value + zero if ZERO_MODE == "offset" else value


@triton.jit
def gemm_kernel(
    x_ptr,  # [M, K] fp16 or bf16
    codes_ptr,  # [ceil(K/8), N] int32
    scales_ptr,  # [G, N]
    zeros_ptr,  # [G, ceil(N/8)] int32 | [G, N] | None
    bias_ptr,  # [N] | None; read only with REDUCE "none"
    out_ptr,  # y [M, N] with REDUCE "none", else fp32 sums [1 or SPLIT_K, M, N]
    m,
    n,
    k,
    k_slice,  # weights of one output per program, a multiple of BLOCK_K
    stride_xm,
    stride_cw,
    stride_sg,
    stride_zg,
    stride_split,
    stride_om,
    magic,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,
    REDUCE: tl.constexpr,  # "none" | "atomic" | "partials"
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """BLOCK_M x BLOCK_N outputs of a slice of K; grid (tiles of M x tiles of N, SPLIT_K)."""
    BLOCK_W: tl.constexpr = BLOCK_K // 8
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tile_m, tile_n = tl.swizzle2d(
        tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n, tiles_m, tiles_n, GROUP_M
    )
    split = tl.program_id(1)
    k_begin = split * k_slice
    k_end = tl.minimum(k_begin + k_slice, k)
    offs_m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m_mask, n_mask = offs_m < m, offs_n < n
    offs_w = tl.arange(0, BLOCK_W)
    x_rows = x_ptr + offs_m[:, None] * stride_xm

    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k_start in range(k_begin, k_end, BLOCK_K):
        first_word = tl.cast(k_start // 8, tl.int64)
        offs_k = k_start + offs_w * 8
        words = tl.load(
            codes_ptr + first_word * stride_cw + offs_w[:, None] * stride_cw + offs_n[None, :],
            mask=(offs_k < k)[:, None] & n_mask[None, :],
            other=0,
        )
        offs_x = k_start + tl.arange(0, BLOCK_K)
        x = tl.load(x_rows + offs_x[None, :], mask=m_mask[:, None] & (offs_x < k)[None, :], other=0.0)
        scale = load_scale(scales_ptr, k_start, offs_k, offs_n, k, n_mask, stride_sg, QUANT_GROUP, BLOCK_K)
        zero = load_zero(
            zeros_ptr, k_start, offs_k, offs_n, k, n_mask, stride_zg, ZERO_MODE, QUANT_GROUP, BLOCK_K
        )
        high = words >> 20  # nibbles 5, 6 and 7 where decoding wants 0, 1 and 2
        w0 = weight_of(words, magic, scale, zero, 0, ZERO_MODE)
        w1 = weight_of(words, magic, scale, zero, 1, ZERO_MODE)
        w2 = weight_of(words, magic, scale, zero, 2, ZERO_MODE)
        w3 = weight_of(words, magic, scale, zero, 3, ZERO_MODE)
        w4 = weight_of(words, magic, scale, zero, 4, ZERO_MODE)
        w5 = weight_of(high, magic, scale, zero, 0, ZERO_MODE)
        w6 = weight_of(high, magic, scale, zero, 1, ZERO_MODE)
        w7 = weight_of(high, magic, scale, zero, 2, ZERO_MODE)
        # join puts the new axis last, [W, N, bit 2 of j, bit 1, bit 0]; then the nibbles move beside their word.
        even = tl.join(tl.join(w0, w4), tl.join(w2, w6))
        odd = tl.join(tl.join(w1, w5), tl.join(w3, w7))
        weight = tl.join(even, odd).permute(0, 2, 3, 4, 1).reshape(BLOCK_K, BLOCK_N)
        total = dot_rounded(x, weight, total)

    out_mask = m_mask[:, None] & n_mask[None, :]
    out = out_ptr + offs_m[:, None] * stride_om + offs_n[None, :]
    if REDUCE == "none":
        if bias_ptr is not None:
            total += tl.load(bias_ptr + offs_n, mask=n_mask, other=0.0).to(tl.float32)[None, :]
        tl.store(out, total.to(out_ptr.dtype.element_ty), mask=out_mask)
    elif REDUCE == "atomic":
        tl.atomic_add(out, total, mask=out_mask, sem="relaxed")
    else:
        tl.store(out + split.to(tl.int64) * stride_split, total, mask=out_mask)


@dataclass(frozen=True, kw_only=True)
class GemmConfig(KernelConfig):
    """Tile sizes, L2 band, and split-K as in v3."""

    num_stages: int = 3
    block_m: int = 16
    block_n: int = 64
    block_k: int = 64
    group_m: int = 8
    split_k: int = 1
    reduce: str = "atomic"


class Gemm(Variant):
    """Grouped load-once GEMM."""

    name = "gemm"
    summary = "grouped W4A16 GEMM: each word loaded once, split-K for few rows, tiled past a crossover"
    layout = KPacked
    config_type = GemmConfig
    rounds_weights = True

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> GemmConfig:
        """Tiles by M, split by ``choose_split``."""
        if problem.m <= SPLIT_K_MAX_M:
            block_m, block_n, block_k = 16, 64, 128
        elif problem.m <= 64:
            block_m, block_n, block_k = 32, 64, 64
        else:
            block_m, block_n, block_k = 64, 128, 64
        block_n, block_k = fit_n(block_n, problem.n), fit_k(block_k, problem.k)
        tiles = cdiv(max(1, problem.m), block_m) * cdiv(problem.n, block_n)
        split_k = choose_split(problem, tiles, block_k, limits.sm_count)
        return GemmConfig(
            block_m=block_m, block_n=block_n, block_k=block_k, split_k=split_k, num_warps=4, num_stages=3
        )

    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        """Tiles up to what M can fill; splits only where the dispatch rule would."""
        small = problem.m <= SPLIT_K_MAX_M
        return {
            "block_m": (16,) if small else (16, 32, 64, 128),
            "block_n": (32, 64, 128, 256),
            "block_k": (32, 64, 128, 256),
            "num_warps": (2, 4, 8),
            "num_stages": (1, 2, 3, 4),
            "group_m": (1,) if small else (1, 8),
            "split_k": (1, 2, 4, 8, 16) if small else (1,),
            "reduce": ("atomic", "partials") if small else ("atomic",),
        }

    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        """Refuses tiles that do not fit and slices without work."""
        assert isinstance(config, GemmConfig)
        if config.group_m < 1:
            return f"group_m={config.group_m} must be at least 1"
        return refuse_dot(
            problem, config, limits, block_m=config.block_m, block_n=config.block_n, block_k=config.block_k
        ) or refuse_split(problem, config.split_k, config.reduce, config.block_k)

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        """One launch, or with split_k > 1: zero (atomic only), main, reduce."""
        assert isinstance(config, GemmConfig)
        reduce = "none" if config.split_k == 1 else config.reduce
        sums = operands.y[None]
        if reduce != "none":
            sums = workspace(problem, reduce, config.split_k, operands.x.device)
        tiles = cdiv(problem.m, config.block_m) * cdiv(problem.n, config.block_n)
        blocks_k = cdiv(problem.k, config.block_k)
        main = Launch(
            kernel=gemm_kernel,
            grid=(tiles, config.split_k),
            args={
                "x_ptr": operands.x,
                **metadata_args(operands),
                "bias_ptr": operands.bias if reduce == "none" else None,
                "out_ptr": sums,
                "m": problem.m,
                "n": problem.n,
                "k": problem.k,
                "k_slice": cdiv(blocks_k, config.split_k) * config.block_k,
                "stride_xm": operands.x.stride(0),
                "stride_split": sums.stride(0),
                "stride_om": sums.stride(1),
                "magic": MAGIC,
                "ZERO_MODE": problem.zero_mode,
                "QUANT_GROUP": device_group(problem),
                "REDUCE": reduce,
                "BLOCK_M": config.block_m,
                "BLOCK_N": config.block_n,
                "BLOCK_K": config.block_k,
                "GROUP_M": config.group_m,
            },
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
        return [main] if reduce == "none" else split_steps(problem, reduce, sums, main, operands)

    def kernels(self) -> tuple[Any, ...]:
        """The GEMM and the reduction."""
        return (gemm_kernel, reduce_kernel)

    def split_count(self, problem: Problem, config: KernelConfig) -> int:
        """Slices of K."""
        assert isinstance(config, GemmConfig)
        return config.split_k

    def is_deterministic(self, problem: Problem, config: KernelConfig) -> bool:
        """Unless atomics add more than one slice."""
        assert isinstance(config, GemmConfig)
        return config.split_k == 1 or config.reduce == "partials"
