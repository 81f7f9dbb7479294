"""Small variants with known costs for the static metrics' tests; importable by name in a compile worker."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.formats.layout import PackedWeight
from roofgap.kernels.static.compile import compile_launch, plan_on_meta
from roofgap.kernels.static.elf import code_hash
from roofgap.kernels.static.targets import load_target
from roofgap.kernels.step import Launch
from roofgap.kernels.variant import Variant


@triton.jit
def load_masked(ptr, at, ok):
    return tl.load(ptr + at, mask=ok, other=0)


@triton.jit
def stream(
    codes_ptr, scales_ptr, y_ptr, words, groups, stride_row, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Reads every word once and one scale per 16 words, both through the same line, and adds the words up."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_N, BLOCK_W), dtype=tl.int32)
    factor = tl.zeros((BLOCK_N, BLOCK_W // 16), dtype=tl.float32)
    for start in range(0, words, BLOCK_W):
        at = start + tl.arange(0, BLOCK_W)
        group = start // 16 + tl.arange(0, BLOCK_W // 16)
        total += load_masked(codes_ptr, rows[:, None] * stride_row + at[None, :], (at < words)[None, :])
        factor += load_masked(scales_ptr, rows[:, None] * groups + group[None, :], (group < groups)[None, :])
    y = tl.sum(total, axis=1).to(tl.float32) * tl.sum(factor, axis=1)
    tl.store(y_ptr + rows, y.to(y_ptr.dtype.element_ty))


@triton.jit
def reload(
    codes_ptr, scales_ptr, y_ptr, words, groups, stride_row, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Addresses one word per weight: asks for each word eight times."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_N, BLOCK_W * 8), dtype=tl.int32)
    for start in range(0, words * 8, BLOCK_W * 8):
        k = start + tl.arange(0, BLOCK_W * 8)
        word = tl.load(codes_ptr + rows[:, None] * stride_row + (k // 8)[None, :])
        total += (word >> ((k % 8) * 4)[None, :]) & 15
    tl.store(y_ptr + rows, tl.sum(total, axis=1).to(y_ptr.dtype.element_ty))


@triton.jit
def hungry(
    codes_ptr, scales_ptr, y_ptr, words, groups, stride_row, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Keeps more values alive than a thread has registers."""
    at = tl.arange(0, BLOCK_N * BLOCK_W)
    a = tl.load(codes_ptr + at)
    b = tl.load(codes_ptr + BLOCK_N * BLOCK_W + at)
    tl.debug_barrier()
    tl.store(y_ptr + at, (a * b).to(y_ptr.dtype.element_ty))
    tl.store(y_ptr + BLOCK_N * BLOCK_W + at, (a ^ b).to(y_ptr.dtype.element_ty))


@triton.jit
def misspelt(
    codes_ptr, scales_ptr, y_ptr, words, groups, stride_row, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr
):
    tl.store(y_ptr, tl.load(codes_ptr) + undefined_name)  # type: ignore[name-defined]  # noqa: F821


@triton.jit
def bad_ptx(
    codes_ptr, scales_ptr, y_ptr, words, groups, stride_row, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr
):
    word = tl.load(codes_ptr + tl.arange(0, BLOCK_W))
    word = tl.inline_asm_elementwise(
        "no.such.op $0, $1;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(y_ptr + tl.arange(0, BLOCK_W), word.to(y_ptr.dtype.element_ty))


class Rows:
    """Words [N, K/8] and scales [N, G], rows contiguous."""

    name = "rows"

    @classmethod
    def meta(cls, problem):
        return PackedWeight(
            n=problem.n,
            k=problem.k,
            group_size=problem.group_size,
            zero_mode=problem.zero_mode,
            layout=cls.name,
            codes=torch.empty(problem.n, problem.k // 8, dtype=torch.int32, device="meta"),
            scales=torch.empty(problem.n, problem.groups, dtype=torch.float16, device="meta"),
            zeros=None,
        )


@dataclass(frozen=True, kw_only=True)
class ToyConfig(KernelConfig):
    num_stages: int = 1
    block_n: int = 16
    block_w: int = 64
    maxnreg: int = 0


class Toy(Variant):
    name = "stream"
    summary = "toy"
    layout = Rows  # type: ignore[assignment]
    config_type = ToyConfig
    kernel: Any = stream

    def default_config(self, problem, limits=None):
        return ToyConfig()

    def space(self, problem):
        return {}

    def is_valid(self, problem, config, limits=None):
        return None

    def plan(self, problem, config, operands):
        return [
            Launch(
                kernel=type(self).kernel,
                grid=(triton.cdiv(problem.n, config.block_n),),
                args={
                    "codes_ptr": operands.codes,
                    "scales_ptr": operands.scales,
                    "y_ptr": operands.y,
                    "words": problem.k // 8,
                    "groups": problem.groups,
                    "stride_row": operands.codes.stride(0),
                    "BLOCK_N": config.block_n,
                    "BLOCK_W": config.block_w,
                },
                num_warps=config.num_warps,
                num_stages=config.num_stages,
                options={"maxnreg": config.maxnreg} if config.maxnreg else {},
            )
        ]

    def kernels(self):
        return (type(self).kernel,)


class Reload(Toy):
    name = "reload"
    kernel = reload


class Hungry(Toy):
    name = "hungry"
    kernel = hungry


class Misspelt(Toy):
    name = "misspelt"
    kernel = misspelt


class BadPtx(Toy):
    name = "bad-ptx"
    kernel = bad_ptx


class Crash(Toy):
    name = "crash"

    def plan(self, problem, config, operands):
        print("LLVM ERROR: toy abort", file=sys.stderr, flush=True)
        os.abort()


class Hang(Toy):
    name = "hang"

    def plan(self, problem, config, operands):
        time.sleep(60)
        raise AssertionError


class Picky(Toy):
    name = "picky"

    def supports(self, problem):
        return "never"


def hash_without_locations(problem, target_name):
    """Hash of the code that Triton makes when it is not asked for lines of its IR."""
    locations = os.environ.pop("USE_IR_LOC")
    cache = os.environ["TRITON_CACHE_DIR"]
    os.environ["TRITON_CACHE_DIR"] = cache + "-plain"
    try:
        target = load_target(target_name)
        toy = Toy()
        (launch,), _, codes = plan_on_meta(toy, problem, ToyConfig())
        compiled = compile_launch(launch, target, codes)
        assert "loc(" in compiled.asm["ttir"]
        return code_hash(compiled.binary, compiled.threads, compiled.shared_bytes)
    finally:
        os.environ.update(USE_IR_LOC=locations, TRITON_CACHE_DIR=cache)
