"""Byte counts against numbers worked out by hand, on kernels small enough to read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.formats.kpacked import KPacked
from roofgap.kernels.registry import VARIANTS
from roofgap.kernels.step import Launch, Step, TorchStep
from roofgap.kernels.traffic.counters import Counters
from roofgap.kernels.traffic.measure import add_arguments, cpu_operands, measure_traffic, run_counted
from roofgap.kernels.traffic.record import Traffic, TrafficRow
from roofgap.kernels.variant import Limits, Operands, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

BLOCK = 32


@triton.jit
def gemv_kernel(
    x_ptr,
    codes_ptr,
    scales_ptr,
    y_ptr,
    n,
    k,
    GROUP: tl.constexpr,
    RELOADS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """BLOCK_N outputs; each packed word is loaded RELOADS times: 1, or 8 (per nibble)."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = offs_n < n
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for word in range(tl.cdiv(k, 8)):
        scale = tl.load(scales_ptr + (word * 8 // GROUP) * n + offs_n, mask=mask, other=0.0).to(tl.float32)
        codes = tl.load(codes_ptr + word * n + offs_n, mask=mask, other=0)
        for j in tl.static_range(8):
            if RELOADS == 8 and j > 0:
                codes = tl.load(codes_ptr + word * n + offs_n, mask=mask, other=0)
            x = tl.load(x_ptr + word * 8 + j, mask=word * 8 + j < k, other=0.0).to(tl.float32)
            total += x * scale * (((codes >> (4 * j)) & 15) - 8).to(tl.float32)
    tl.store(y_ptr + offs_n, total.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def expand_kernel(codes_ptr, scales_ptr, dense_ptr, n, k, GROUP: tl.constexpr, BLOCK_N: tl.constexpr):
    """Dequantises BLOCK_N rows into dense [N, K]; scales are loaded once per word."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_j = tl.arange(0, 8)
    for word in range(k // 8):
        codes = tl.load(codes_ptr + word * n + offs_n, mask=offs_n < n, other=0)
        scale = tl.load(scales_ptr + (word * 8 // GROUP) * n + offs_n, mask=offs_n < n, other=0.0)
        weight = (((codes[:, None] >> (4 * offs_j[None, :])) & 15) - 8).to(tl.float32) * scale[:, None].to(
            tl.float32
        )
        at = dense_ptr + offs_n[:, None] * k + word * 8 + offs_j[None, :]
        tl.store(at, weight.to(dense_ptr.dtype.element_ty), mask=(offs_n < n)[:, None])


@triton.jit
def every_access_kernel(a_ptr, b_ptr, lock_ptr, n, WIDTH: tl.constexpr):
    """One access of each sort; the tests know its bytes."""
    offs = tl.arange(0, WIDTH)
    masked = tl.load(a_ptr + offs, mask=offs < n, other=0.0)
    scalar = tl.load(a_ptr)
    block = tl.load(tl.make_block_ptr(a_ptr, (n,), (1,), (0,), (WIDTH,), (0,)), boundary_check=(0,))
    described = tl.make_tensor_descriptor(a_ptr, (n, 8), (8, 1), (4, 8)).load([0, 0])
    value = masked + scalar + block + tl.sum(described)
    tl.store(b_ptr + offs, value, mask=offs < n)
    tl.store(b_ptr, scalar)
    tl.atomic_add(b_ptr + offs, value, mask=offs < n)
    tl.atomic_cas(lock_ptr, 0, 1)
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def copy_kernel(source_ptr, target_ptr, count, STRIDE: tl.constexpr, WIDTH: tl.constexpr):
    """target[i] = source[i * STRIDE]."""
    offs = tl.arange(0, WIDTH)
    tl.store(target_ptr + offs, tl.load(source_ptr + offs * STRIDE, mask=offs < count), mask=offs < count)


@triton.jit
def assembly_kernel(x_ptr):
    """x[0] = -x[0] in PTX."""
    value = tl.load(x_ptr)
    negated = tl.inline_asm_elementwise("neg.f32 $0, $1;", "=f,f", [value], tl.float32, is_pure=True, pack=1)
    tl.store(x_ptr, negated)


interpreted = pytest.mark.skipif(
    not isinstance(gemv_kernel, InterpretedFunction),
    reason="kernels were imported for a GPU, not interpreted",
)
pytestmark = interpreted


@dataclass(frozen=True, kw_only=True)
class ToyConfig(KernelConfig):
    reloads: int = 1


class Toy(Variant):
    """A GEMV that loads each packed word once, or eight times."""

    name = "toy"
    summary = "for tests"
    layout = KPacked
    config_type = ToyConfig
    max_m = 1

    def default_config(self, problem: Problem, limits: Limits = Limits()) -> ToyConfig:
        return ToyConfig()

    def space(self, problem: Problem) -> dict[str, tuple[Any, ...]]:
        return {"reloads": (1, 8)}

    def is_valid(self, problem: Problem, config: KernelConfig, limits: Limits = Limits()) -> str | None:
        return None if config.to_dict()["reloads"] in (1, 8) else "reloads must be 1 or 8"

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        args = {
            "x_ptr": operands.x,
            "codes_ptr": operands.codes,
            "scales_ptr": operands.scales,
            "y_ptr": operands.y,
            "n": problem.n,
            "k": problem.k,
            "GROUP": problem.group,
            "RELOADS": config.to_dict()["reloads"],
            "BLOCK_N": BLOCK,
        }
        return [Launch(kernel=gemv_kernel, grid=(triton.cdiv(problem.n, BLOCK),), args=args)]

    def kernels(self) -> tuple[Any, ...]:
        return (gemv_kernel,)


class ToyExpand(Toy):
    """Dequantise, then torch.matmul."""

    name = "toy-expand"

    def plan(self, problem: Problem, config: KernelConfig, operands: Operands) -> list[Step]:
        dense = torch.empty(problem.n, problem.k, dtype=operands.x.dtype)
        args = {
            "codes_ptr": operands.codes,
            "scales_ptr": operands.scales,
            "dense_ptr": dense,
            "n": problem.n,
            "k": problem.k,
            "GROUP": problem.group,
            "BLOCK_N": BLOCK,
        }
        matmul = TorchStep(
            name="torch.matmul",
            run=lambda: torch.matmul(operands.x, dense.t(), out=operands.y),
            read_bytes=dense.nbytes + operands.x.nbytes,
            written_bytes=operands.y.nbytes,
            reads=(dense, operands.x),
            writes=(operands.y,),
        )
        return [Launch(kernel=expand_kernel, grid=(triton.cdiv(problem.n, BLOCK),), args=args), matmul]


def table(traffic: Traffic) -> dict[tuple[str, str, bool], TrafficRow]:
    return {(row.tensor, row.kind, row.modelled): row for row in traffic.rows}


def counts(*steps: Step, **operands: torch.Tensor) -> dict[tuple[str, str], tuple[int, int]]:
    """Asked and unique bytes per tensor and kind of some steps."""
    counters = Counters()
    for name, tensor in operands.items():
        counters.add(name, tensor)
    for step in steps:
        add_arguments(step, counters)
        assert run_counted(step, counters, Problem(n=8, k=8)) == []
    return {
        (region.name, kind): (asked, region.unique_bytes(kind))
        for region in counters.regions
        for kind, asked in region.asked_bytes.items()
        if asked
    }


def copy(source: torch.Tensor, target: torch.Tensor, count: int, stride: int = 1) -> Launch:
    args = {"source_ptr": source, "target_ptr": target, "count": count, "STRIDE": stride, "WIDTH": 16}
    return Launch(kernel=copy_kernel, grid=(1,), args=args)


@pytest.mark.parametrize("reloads", [1, 8])
@pytest.mark.parametrize("shape", ["64x128", "40x100", "1x8"])
def test_reloading_each_word_per_nibble_shows_in_the_codes_alone(shape: str, reloads: int) -> None:
    problem = Problem.parse(shape, group_size=32)
    traffic = measure_traffic(Toy(), problem, ToyConfig(reloads=reloads))
    rows = table(traffic)
    codes = rows["codes", "load", False]
    assert codes.asked_bytes == reloads * problem.code_bytes
    assert codes.unique_bytes == codes.size_bytes == problem.code_bytes
    assert traffic.codes_ratio == reloads
    programs = -(-problem.n // BLOCK)
    assert traffic.x_ratio == programs
    words, per_group = -(-problem.k // 8), problem.n * 2
    assert rows["scales", "load", False].asked_bytes == words * per_group
    assert rows["scales", "load", False].unique_bytes == problem.scale_bytes
    assert rows["y", "store", False].asked_bytes == problem.n * 2
    assert set(rows) == {
        ("x", "load", False),
        ("codes", "load", False),
        ("scales", "load", False),
        ("y", "store", False),
    }
    assert traffic.cached_bytes == traffic.minimum_bytes == problem.total_bytes
    assert traffic.bytes_per_weight == pytest.approx(codes.asked_bytes / (problem.n * problem.k))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_dequantise_then_matmul_moves_four_and_a_half_bytes_per_weight(dtype: Any) -> None:
    problem = Problem.parse("64x256", group_size=64, x_dtype=dtype)
    traffic = measure_traffic(ToyExpand(), problem, ToyConfig())
    rows = table(traffic)
    assert traffic.bytes_per_weight == 4.5
    assert rows["codes", "load", False].bytes_per_weight == 0.5
    assert rows["dense", "store", False].bytes_per_weight == 2.0
    assert rows["dense", "load", True].bytes_per_weight == 2.0
    assert rows["x", "load", True].asked_bytes == 2 * problem.k
    assert rows["y", "store", True].asked_bytes == 2 * problem.n
    assert traffic.modelled_bytes == problem.dense_bytes + 2 * problem.k + 2 * problem.n
    assert traffic.scales_ratio == 8  # loaded once per word, eight words a group


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_every_way_to_reach_memory_is_counted() -> None:
    a, b, lock = torch.ones(80), torch.zeros(16), torch.zeros(1, dtype=torch.int32)
    args = {"a_ptr": a, "b_ptr": b, "lock_ptr": lock, "n": 10, "WIDTH": 16}
    assert counts(Launch(kernel=every_access_kernel, grid=(2,), args=args)) == {
        ("a", "load"): (2 * 4 * (10 + 1 + 10 + 32), 32 * 4),  # masked, scalar, block pointer, descriptor
        ("b", "store"): (2 * 4 * (10 + 1), 10 * 4),
        ("b", "atomic"): (2 * 4 * 10, 10 * 4),
        ("lock", "atomic"): (2 * 4 * 2, 4),
    }


def test_a_stride_leaves_bytes_untouched() -> None:
    source, target = torch.arange(64).half(), torch.zeros(16).half()
    assert counts(copy(source, target, 10, stride=3), x=source, y=target) == {
        ("x", "load"): (20, 20),
        ("y", "store"): (20, 20),
    }
    assert torch.equal(target[:10], source[:30:3])


def test_tensors_that_share_a_storage_are_told_apart() -> None:
    storage = torch.zeros(64)
    assert counts(copy(storage[:32], storage[32:], 16), x=storage[:32], y=storage[32:]) == {
        ("x", "load"): (64, 64),
        ("y", "store"): (64, 64),
    }


def test_a_workspace_keeps_its_first_name_and_its_namesake_gets_a_number() -> None:
    first, second, y = torch.zeros(16), torch.zeros(16), torch.zeros(16)
    found = counts(copy(y, first, 16), copy(first, second, 16), copy(second, y, 4), y=y)
    assert found == {
        ("y", "load"): (64, 64),
        ("y", "store"): (16, 16),
        ("target", "store"): (64, 64),
        ("target", "load"): (64, 64),
        ("target#2", "store"): (64, 64),
        ("target#2", "load"): (16, 16),
    }


@pytest.mark.parametrize(
    "problem", [Problem(n=40, k=100, group_size=32), Problem(n=33, k=100, group_size=-1)]
)
def test_two_runs_give_equal_records(problem: Problem) -> None:
    for variant in (Toy(), VARIANTS["v2"]):
        config = variant.default_config(problem)
        first = measure_traffic(variant, problem, config)
        assert first == measure_traffic(variant, problem, config)
        assert Traffic.model_validate_json(first.model_dump_json(round_trip=True)) == first


def test_an_access_outside_every_tensor_is_refused_before_it_is_made() -> None:
    target = torch.zeros(8)
    with pytest.raises(RoofgapError, match=r"copy_kernel: 8 lanes of a store of 4-byte elements are outside"):
        counts(copy(torch.ones(16), target, 16))
    assert not target.any()
    copy(torch.ones(16), target, 8).run()  # the interpreter is as it was, and counts for nobody
    assert target.all()


def test_an_element_that_begins_inside_a_tensor_and_ends_outside_is_refused() -> None:
    counters, tensor = Counters(), torch.zeros(4, dtype=torch.int32)
    counters.add("codes", tensor)
    last = np.array([tensor.data_ptr() + 12], dtype=np.uint64)
    counters.record("load", last, 4)
    with pytest.raises(RoofgapError, match="8-byte elements are outside"):
        counters.record("load", last, 8)


def test_a_kernel_the_interpreter_cannot_run_is_named() -> None:
    launch = Launch(kernel=assembly_kernel, grid=(1,), args={"x_ptr": torch.ones(8)})
    with pytest.raises(
        RoofgapError, match=r"assembly_kernel: does not run in Triton's interpreter \(inline_asm"
    ):
        counts(launch)


def test_a_kernel_imported_for_a_gpu_is_refused() -> None:
    launch = replace(
        copy(torch.ones(16), torch.ones(16), 16), kernel=triton.runtime.JITFunction(copy_kernel.fn)
    )
    with pytest.raises(RoofgapError, match="TRITON_INTERPRET=1"):
        counts(launch)


def test_a_torch_step_without_tensors_is_listed_by_its_name() -> None:
    step = TorchStep(name="aten::zero_", run=lambda: None, read_bytes=0, written_bytes=64)
    (row,) = run_counted(step, Counters(), Problem(n=8, k=8))
    assert (row.tensor, row.kind, row.asked_bytes, row.unique_bytes) == ("aten::zero_", "store", 64, None)
    assert row.modelled
    assert row.bytes_per_weight == 1.0


def test_a_torch_step_whose_bytes_contradict_its_tensors_is_refused() -> None:
    y = torch.zeros(16)
    step = TorchStep(name="fill", run=y.zero_, read_bytes=0, written_bytes=32, writes=(y,))
    with pytest.raises(RoofgapError, match="step fill: says 32 bytes for its stores, its tensors hold 64"):
        run_counted(step, Counters(), Problem(n=8, k=8))


@pytest.mark.parametrize(
    ("problem", "config", "message"),
    [
        (Problem(n=257, k=1536), ToyConfig(), "--cut"),
        (Problem(n=8, k=8, m=65), ToyConfig(), "Lower M"),
        (Problem(n=8, k=8, m=2), ToyConfig(), "above toy's limit"),
        (Problem(n=8, k=8), ToyConfig(reloads=3), "reloads must be 1 or 8"),
    ],
)
def test_what_cannot_be_counted_is_refused(problem: Problem, config: ToyConfig, message: str) -> None:
    with pytest.raises(RoofgapError, match=message):
        measure_traffic(Toy(), problem, config)


def test_rows_of_x_that_are_far_apart_belong_to_x() -> None:
    problem = Problem(n=32, k=128, m=2, group_size=32)
    variant = VARIANTS["v2"]
    operands = cpu_operands(variant, problem)
    strided = replace(operands, x=torch.zeros(2, 200, dtype=torch.float16)[:, :128])
    traffic = measure_traffic(variant, problem, variant.default_config(problem), strided)
    assert table(traffic)["x", "load", False].size_bytes == 2 * 128 * 2
    assert traffic.x_ratio == 1.0


PROBLEMS = [
    Problem(n=128, k=256, group_size=64),
    Problem(n=97, k=200, m=1, group_size=64, x_dtype="bf16", zero_mode="asym", bias=True),
    Problem(n=72, k=132, m=3, group_size=-1, zero_mode="offset"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_touches_each_byte_of_the_weight_and_of_y(name: str, problem: Problem) -> None:
    variant = VARIANTS[name]
    if (refusal := variant.supports(problem)) is not None:
        pytest.skip(refusal)
    traffic = measure_traffic(variant, problem, variant.default_config(problem))
    touched = {
        row.tensor: row.unique_bytes for row in traffic.rows if row.kind == "load" and not row.modelled
    }
    operands = cpu_operands(variant, problem)
    for tensor in ("code", "scale", "zero"):  # a layout may pad; the padding is nothing to read
        assert touched.get(f"{tensor}s", 0) == getattr(problem, f"{tensor}_bytes"), tensor
    written = [row for row in traffic.rows if row.tensor == "y" and row.kind != "load"]
    assert any((row.unique_bytes or row.asked_bytes) == operands.y.nbytes for row in written)
