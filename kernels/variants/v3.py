"""v3: a split-K GEMV, tuned. SPLIT_K programs share the outputs of a block and add their sums up.

    y[m, n] = sum_s sum_{k in slice s} x[m, k] * w[n, k] + bias[n]

Layout: K-packed (``kpacked``): int32 [K/8, N], eight codes along K in a word, N contiguous.
Bytes per weight: 0.5 of codes + 2/g of scales (+ 0.5/g of zeros, or 2/g of offsets), each read once per row of x; with
split_k > 1 also 4 bytes per output and split for the fp32 sums (zeroed, added and read for ``atomic``; written and
read for ``partials``), which is 4 * split_k / K bytes per weight.

``reduce=atomic`` adds into one fp32 workspace: the order of additions, and so the last bits, differ from run to run.
``reduce=partials`` stores every slice's sums and adds them in a fixed order: the same bits every time.
The workspace belongs to the plan, which zeroes it before every run; y may hold anything on entry.

Decoding is free of conversions (``_decode.py``): and-or, subtract and multiply-add make three instructions per weight
where v2 takes five or six. Loading x and computing addresses cost the rest of what ``inspect`` counts; wide blocks with
few warps spread it over more outputs.
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
from roofgap.kernels.variants._kpacked import device_group, load_scale, load_zero, metadata_args
from roofgap.kernels.variants._reduce import reduce_kernel, split_steps, workspace
from roofgap.kernels.variants._rules import fit_k, refuse_blocks, refuse_split
from roofgap.shapes.problem import Problem


@triton.jit
def add_products(part, x, words, magic, scale, zero, NIBBLE: tl.constexpr, ZERO_MODE: tl.constexpr):
    """``part += x * (q - z)`` for nibble NIBBLE of every word, or ``x * (s * q + o)`` for offsets."""
    value = decode_scaled(words, magic, zero, NIBBLE, ZERO_MODE)
    if ZERO_MODE == "offset":
        part += x[:, None] * (value * (scale * (1.0 / 16**NIBBLE)) + zero)
    else:
        part += (x * (1.0 / 16**NIBBLE))[:, None] * value
    return part


@triton.jit
def v3_kernel(
    x_ptr,  # [M, K] fp16 or bf16
    codes_ptr,  # [ceil(K/8), N] int32
    scales_ptr,  # [G, N]
    zeros_ptr,  # [G, ceil(N/8)] int32 | [G, N] | None
    bias_ptr,  # [N] | None; read only with REDUCE "none"
    out_ptr,  # y [M, N] with REDUCE "none", else fp32 sums [1 or SPLIT_K, M, N]
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
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr = False,
):
    """A slice of K of one row of x times BLOCK_N outputs; grid (M, ceil(N / BLOCK_N), SPLIT_K)."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        if NUM_STAGES > 1:
            tl.extra.cuda.gdc_wait()  # a pipeline asks for its first steps of x ahead of the loop
    BLOCK_W: tl.constexpr = BLOCK_K // 8
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    k_begin = split * k_slice
    k_end = tl.minimum(k_begin + k_slice, k)
    n_mask = offs_n < n
    offs_w = tl.arange(0, BLOCK_W)
    x_row = x_ptr + row * stride_xm

    total = tl.zeros((BLOCK_W, BLOCK_N), dtype=tl.float32)
    for k_start in tl.range(k_begin, k_end, BLOCK_K, num_stages=NUM_STAGES):
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
        if PDL and NUM_STAGES == 1:
            tl.extra.cuda.gdc_wait()  # x, and the sums that atomics add to; at once from the second step on
        part = tl.zeros((BLOCK_W, BLOCK_N), dtype=tl.float32)
        high = words >> 20
        for j in tl.static_range(8):
            x = tl.load(x_row + offs_k + j, mask=offs_k + j < k, other=0.0).to(tl.float32)
            if j < 5:
                part = add_products(part, x, words, magic, scale, zero, j, ZERO_MODE)
            else:
                part = add_products(part, x, high, magic, scale, zero, j - 5, ZERO_MODE)
        total += part if ZERO_MODE == "offset" else part * scale
    y = tl.sum(total, axis=0)

    if REDUCE == "none":
        if bias_ptr is not None:
            y += tl.load(bias_ptr + offs_n, mask=n_mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * stride_om + offs_n, y.to(out_ptr.dtype.element_ty), mask=n_mask)
    elif REDUCE == "atomic":
        tl.atomic_add(out_ptr + row * stride_om + offs_n, y, mask=n_mask, sem="relaxed")
    else:
        slot = split.to(tl.int64) * stride_split
        tl.store(out_ptr + slot + row * stride_om + offs_n, y, mask=n_mask)


@dataclass(frozen=True, kw_only=True)
class V3Config(KernelConfig):
    """``split_k`` slices of K; ``reduce`` is how their sums meet: ``atomic`` or ``partials``."""

    num_stages: int = 1
    block_n: int = 32
    block_k: int = 128
    split_k: int = 4
    reduce: str = "partials"


class V3(Variant):
    """Split-K GEMV."""

    name = "v3"
    summary = "split-K GEMV: fp32 atomics or ordered partials, conversion-free decoding"
    layout = KPacked
    config_type = V3Config

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> V3Config:
        """Narrow blocks, and slices of K down to 256 weights until there are eight programs per SM.

        On an H200 within 5 % of the best of 750 configs at five shapes of Qwen2.5-1.5B, 16 % off at its head.
        """
        block_n, block_k = 32, fit_k(128, problem.k)
        blocks = cdiv(problem.n, block_n) * max(1, problem.m)
        split_k = 1
        while blocks * split_k < 8 * limits.sm_count and split_k < 16 and problem.k >= 512 * split_k:
            split_k *= 2
        reduce = "partials" if split_k > 1 else "atomic"
        return V3Config(block_n=block_n, block_k=block_k, split_k=split_k, reduce=reduce)

    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        """At most 406 valid configs: tall blocks for narrow N, flat ones (few words high) for the head.

        Left out, because 750 configs tried on an H200 never had them within 1 % of the best: 8 warps, 2 slices, blocks
        of 128 columns.
        """
        return {
            "block_n": (16, 32, 64, 256),
            "block_k": (32, 128, 256),
            "num_warps": (1, 2, 4),
            "num_stages": (1, 3),
            "split_k": (1, 4, 8, 16),
            "reduce": ("atomic", "partials"),
        }

    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        """Refuses blocks that do not fit and slices without work."""
        assert isinstance(config, V3Config)
        return refuse_blocks(
            problem, config, limits, block_n=config.block_n, block_k=config.block_k
        ) or refuse_split(problem, config.split_k, config.reduce, config.block_k)

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        """One launch, or with split_k > 1: zero (atomic only), main, reduce."""
        assert isinstance(config, V3Config)
        reduce = "none" if config.split_k == 1 else config.reduce
        sums = operands.y[None]
        if reduce != "none":
            sums = workspace(problem, reduce, config.split_k, operands.x.device)
        blocks_k = cdiv(problem.k, config.block_k)
        main = Launch(
            kernel=v3_kernel,
            grid=(problem.m, cdiv(problem.n, config.block_n), config.split_k),
            args={
                "x_ptr": operands.x,
                **metadata_args(operands),
                "bias_ptr": operands.bias if reduce == "none" else None,
                "out_ptr": sums,
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
                "BLOCK_N": config.block_n,
                "BLOCK_K": config.block_k,
                "NUM_STAGES": config.num_stages,
            },
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
        return [main] if reduce == "none" else split_steps(problem, reduce, sums, main, operands)

    def kernels(self) -> tuple[Any, ...]:
        """The GEMV and the reduction."""
        return (v3_kernel, reduce_kernel)

    def split_count(self, problem: Problem, config: KernelConfig) -> int:
        """Slices of K."""
        assert isinstance(config, V3Config)
        return config.split_k

    def is_deterministic(self, problem: Problem, config: KernelConfig) -> bool:
        """Unless atomics add more than one slice."""
        assert isinstance(config, V3Config)
        return config.split_k == 1 or config.reduce == "partials"
