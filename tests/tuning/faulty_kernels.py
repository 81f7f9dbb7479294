"""v2 with something wrong: one config per way in which a kernel or its compilation can fail."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from roofgap.kernels.config import KernelConfig, Value
from roofgap.kernels.step import Launch, Step
from roofgap.kernels.variant import Limits, Operands
from roofgap.kernels.variants.v2 import V2, V2Config
from roofgap.shapes.problem import Problem

FAULTS: dict[str, str] = {
    "none": "ok",
    "illegal_access": "illegal_access",
    "infinite_loop": "timeout",
    "out_of_memory": "out_of_memory",
    "segfault": "crash",
    "dirty_accumulation": "wrong",
    "unwritten_output": "wrong",
    "out_of_bounds": "wrong",
    "static_assert": "compile_error",
    "ptxas": "compile_error",
    "llvm_abort": "compile_crash",
    "compile_hang": "compile_timeout",
    "plan_error": "error",
}
"""Status that each fault must end in."""


@triton.jit
def illegal_kernel(y_ptr):
    tl.store(y_ptr + (tl.program_id(0).to(tl.int64) + 1) * 1099511627776, 1.0)


@triton.jit
def endless_kernel(flag_ptr):
    while tl.atomic_add(flag_ptr, 0) != -12345:
        pass


@triton.jit
def tag_kernel(tag_ptr, TAG: tl.constexpr):
    tl.store(tag_ptr, TAG)


@triton.jit
def accumulate_kernel(y_ptr, part_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    total = tl.load(y_ptr + offsets, mask=mask) + tl.load(part_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, total, mask=mask)


@triton.jit
def copy_kernel(y_ptr, part_ptr, stop, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < stop
    tl.store(y_ptr + offsets, tl.load(part_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def stray_kernel(y_ptr, index):
    tl.store(y_ptr + index, 1.0)


@triton.jit
def refused_kernel(tag_ptr):
    tl.static_assert(False, "refused on purpose")


@triton.jit
def garbage_kernel(tag_ptr):
    value = tl.inline_asm_elementwise(
        "not_an_instruction $0, $1;", "=r,r", [tl.load(tag_ptr)], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(tag_ptr, value)


def _harm_at_once(fault: str, compiling: bool) -> None:
    """Faults that strike before any kernel does."""
    if fault == "llvm_abort" and compiling:
        os.abort()
    if fault == "compile_hang" and compiling:
        time.sleep(1e6)
    if fault == "plan_error":
        raise KeyError("no such field")
    if fault == "segfault" and not compiling:
        os.kill(os.getpid(), signal.SIGSEGV)


@dataclass(frozen=True, kw_only=True)
class FaultyConfig(V2Config):
    fault: str = "none"


class Faulty(V2):
    """Computes the product with v2 and then does harm, or does harm instead."""

    name = "faulty"
    summary = "for tests"
    config_type = FaultyConfig

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> FaultyConfig:
        return FaultyConfig(block_n=32, block_k=128, num_warps=4)

    def space(self, problem: Problem) -> dict[str, tuple[Value, ...]]:
        return {"num_warps": (4,), "block_n": (32,), "block_k": (128,), "fault": tuple(FAULTS)}

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        assert isinstance(config, FaultyConfig)
        device, y = operands.y.device, operands.y
        compiling, fault = device.type == "meta", config.fault
        _harm_at_once(fault, compiling)
        right = super().plan(problem, config, operands)
        if fault == "none":
            return right
        tag = torch.empty(1, dtype=torch.int32, device=device)
        part = torch.empty_like(y)
        aside = super().plan(problem, config, replace(operands, y=part))
        blocks = (triton.cdiv(y.numel(), 256),)
        if fault == "illegal_access":
            return [*right, Launch(kernel=illegal_kernel, grid=(1,), args={"y_ptr": y})]
        if fault == "infinite_loop":
            return [*right, Launch(kernel=endless_kernel, grid=(1,), args={"flag_ptr": tag})]
        if fault == "out_of_memory":
            huge = torch.empty(1 << 42, dtype=torch.int32, device=device)
            return [*right, Launch(kernel=tag_kernel, grid=(1,), args={"tag_ptr": huge, "TAG": 1})]
        if fault == "segfault":
            return [*right, Launch(kernel=tag_kernel, grid=(1,), args={"tag_ptr": tag, "TAG": 2})]
        if fault == "dirty_accumulation":
            args = {"y_ptr": y, "part_ptr": part, "count": y.numel(), "BLOCK": 256}
            return [*aside, Launch(kernel=accumulate_kernel, grid=blocks, args=args)]
        if fault == "unwritten_output":
            args = {"y_ptr": y, "part_ptr": part, "stop": y.numel() - 1, "BLOCK": 256}
            return [*aside, Launch(kernel=copy_kernel, grid=blocks, args=args)]
        if fault == "out_of_bounds":
            args = {"y_ptr": y, "index": y.numel()}
            return [*right, Launch(kernel=stray_kernel, grid=(1,), args=args)]
        if fault == "static_assert":
            return [*right, Launch(kernel=refused_kernel, grid=(1,), args={"tag_ptr": tag})]
        assert fault in ("ptxas", "llvm_abort", "compile_hang"), fault
        return [*right, Launch(kernel=garbage_kernel, grid=(1,), args={"tag_ptr": tag})]


FAULTY = Faulty()
EXPECTED = {
    replace(FAULTY.default_config(Problem(n=256, k=512)), fault=name).key: status
    for name, status in FAULTS.items()
}
