"""v1: dequantise the whole weight to a dense matrix in memory, then let torch multiply.

    D[k, n] = round16(s * (q - z));   y = x @ D + bias

Layout: K-packed (``kpacked``): int32 [K/8, N]; the dense workspace is [K, N] in x's dtype, N contiguous, so that both
the loads and the stores of the first step run along N.
Bytes per weight: 0.5 of codes read + 2 written + 2 read again by the matmul = 4.5, plus scales and zeros: more than
twice a dense 16-bit weight's 2. This is what "just dequantise it" costs at every call.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from roofgap.kernels.config import KernelConfig, Value
from roofgap.kernels.formats.kpacked import KPacked
from roofgap.kernels.ints import cdiv
from roofgap.kernels.step import Launch, Step, TorchStep
from roofgap.kernels.variant import Limits, Operands, Variant
from roofgap.kernels.variants._kpacked import device_group, load_scale, load_zero, metadata_args
from roofgap.kernels.variants._rules import fit_n, refuse_blocks
from roofgap.shapes.problem import Problem


@triton.jit
def v1_kernel(
    codes_ptr,  # [ceil(K/8), N] int32
    scales_ptr,  # [G, N]
    zeros_ptr,  # [G, ceil(N/8)] int32 | [G, N] | None
    dense_ptr,  # [K, N] fp16 or bf16
    n,
    k,
    stride_cw,
    stride_sg,
    stride_zg,
    stride_dk,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """BLOCK_K x BLOCK_N weights; grid (ceil(K / BLOCK_K), ceil(N / BLOCK_N))."""
    BLOCK_W: tl.constexpr = BLOCK_K // 8
    k_start = tl.program_id(0) * BLOCK_K
    offs_w = tl.arange(0, BLOCK_W)
    offs_k = k_start + offs_w * 8
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = offs_n < n
    first_word = (k_start // 8).to(tl.int64)
    words = tl.load(
        codes_ptr + first_word * stride_cw + offs_w[:, None] * stride_cw + offs_n[None, :],
        mask=(offs_k < k)[:, None] & n_mask[None, :],
        other=0,
    )
    scale = load_scale(scales_ptr, k_start, offs_k, offs_n, k, n_mask, stride_sg, QUANT_GROUP, BLOCK_K)
    zero = load_zero(
        zeros_ptr, k_start, offs_k, offs_n, k, n_mask, stride_zg, ZERO_MODE, QUANT_GROUP, BLOCK_K
    )
    rows = dense_ptr + k_start.to(tl.int64) * stride_dk + offs_n[None, :]
    for j in tl.static_range(8):
        code = (words >> (4 * j)) & 15
        integer = code if ZERO_MODE == "offset" else code - zero
        weight = scale * integer.to(tl.float32)
        if ZERO_MODE == "offset":
            weight += zero
        mask = (offs_k + j < k)[:, None] & n_mask[None, :]
        tl.store(
            rows + (offs_w * 8 + j)[:, None] * stride_dk, weight.to(dense_ptr.dtype.element_ty), mask=mask
        )


@dataclass(frozen=True, kw_only=True)
class V1Config(KernelConfig):
    """Tile of the dequantising kernel; the matmul is torch's to tune."""

    num_stages: int = 1
    block_n: int = 128
    block_k: int = 64


class V1(Variant):
    """Dequantise, then torch.matmul."""

    name = "v1"
    summary = "dequantise to a dense workspace, then torch.matmul"
    layout = KPacked
    config_type = V1Config
    rounds_weights = True

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> V1Config:
        """A tile of 1,024 words."""
        return V1Config(block_n=fit_n(128, problem.n), block_k=64, num_warps=4)

    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        """Tiles only."""
        return {
            "block_n": (32, 64, 128, 256, 512),
            "block_k": (16, 32, 64, 128),
            "num_warps": (1, 2, 4, 8),
        }

    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        """Refuses tiles that do not fit."""
        assert isinstance(config, V1Config)
        return refuse_blocks(problem, config, limits, block_n=config.block_n, block_k=config.block_k)

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        """Dequantise, matmul."""
        assert isinstance(config, V1Config)
        dense = torch.empty((problem.k, problem.n), dtype=operands.x.dtype, device=operands.x.device)
        main = Launch(
            kernel=v1_kernel,
            grid=(cdiv(problem.k, config.block_k), cdiv(problem.n, config.block_n)),
            args={
                **metadata_args(operands),
                "dense_ptr": dense,
                "n": problem.n,
                "k": problem.k,
                "stride_dk": dense.stride(0),
                "ZERO_MODE": problem.zero_mode,
                "QUANT_GROUP": device_group(problem),
                "BLOCK_N": config.block_n,
                "BLOCK_K": config.block_k,
            },
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
        element = dense.element_size()
        bias_bytes = 0 if operands.bias is None else problem.n * element
        matmul = TorchStep(
            name="matmul",
            run=_matmul(operands, dense),
            read_bytes=(problem.n * problem.k + problem.m * problem.k) * element + bias_bytes,
            written_bytes=problem.m * problem.n * element,
            reads=(operands.x, dense) if operands.bias is None else (operands.x, dense, operands.bias),
            writes=(operands.y,),
        )
        return [main, matmul]

    def kernels(self) -> tuple[Any, ...]:
        """The dequantising kernel."""
        return (v1_kernel,)


def _matmul(operands: Operands, dense: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        with _fp32_reductions():
            if operands.bias is None:
                torch.mm(operands.x, dense, out=operands.y)
            else:
                torch.addmm(operands.bias, operands.x, dense, out=operands.y)

    return run


@contextmanager
def _fp32_reductions() -> Iterator[None]:
    """Forbids cuBLAS to add the partial sums of a split K in 16 bits, which overflows fp16 on large activations."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_fp16_reduced_precision_reduction, settings.allow_bf16_reduced_precision_reduction
    settings.allow_fp16_reduced_precision_reduction = False
    settings.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        settings.allow_fp16_reduced_precision_reduction, settings.allow_bf16_reduced_precision_reduction = (
            before
        )
