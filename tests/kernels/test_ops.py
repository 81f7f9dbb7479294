"""The custom ops, the public functions and the layer: what they accept, what they refuse, what they look up."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE

from roofgap.kernels import ops
from roofgap.kernels.api import quantize_weight_int4_grouped, w4a16_gemm
from roofgap.kernels.config import KernelConfig
from roofgap.kernels.formats.kpacked import KPacked
from roofgap.kernels.formats.layout import PackedWeight
from roofgap.kernels.formats.nmajor import NMajor
from roofgap.kernels.inputs import random_bias, random_weight, random_x
from roofgap.kernels.linear import W4Linear
from roofgap.kernels.reference import reference
from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.kernels.source import kernel_functions, source_hash
from roofgap.kernels.tolerance import judge
from roofgap.kernels.variant import Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

PROBLEM = Problem(n=24, k=104, m=3, group_size=32, zero_mode="asym", bias=True)
X = random_x(PROBLEM, 0, DEVICE)
BIAS = random_bias(PROBLEM, 0, DEVICE)
WEIGHT = random_weight(PROBLEM, 0, DEVICE)
PACKED = KPacked.pack(WEIGHT)


def gemm(x: torch.Tensor = X, packed: PackedWeight = PACKED, **changes: Any) -> torch.Tensor:
    return ops.linear(x, replace(packed, **changes), variant="gemm")


def sound(y: torch.Tensor, x: torch.Tensor = X, bias: torch.Tensor | None = None) -> bool:
    ref = reference(x.reshape(-1, PROBLEM.k), WEIGHT, bias)
    return judge(y.reshape(-1, PROBLEM.n), ref, k=PROBLEM.k, rounds_weights=True, split_count=16).passed


def test_the_public_functions_quantise_and_multiply() -> None:
    dense = torch.randn(24, 104, generator=torch.Generator().manual_seed(0)).half().to(DEVICE)
    packed, scales, zeros = quantize_weight_int4_grouped(dense, 32)
    assert (packed.shape, scales.shape, zeros.shape) == ((13, 24), (4, 24), (4, 3))
    assert (packed.dtype, scales.dtype, zeros.dtype) == (torch.int32, torch.float16, torch.int32)
    weight = KPacked.unpack(replace(PACKED, codes=packed, scales=scales, zeros=zeros))
    ref = reference(X, weight)
    y = w4a16_gemm(X, packed, scales, zeros, 32)
    assert judge(y, ref, k=104, rounds_weights=True, split_count=16).passed
    relative = float(
        (y.double() - X.double() @ dense.double().T).norm() / (X.double() @ dense.double().T).norm()
    )
    assert (
        0.03 < relative < 0.15
    )  # four bits lose about a tenth, and something would be wrong if they lost nothing


@pytest.mark.parametrize("mode", ["sym", "asym", "offset"])
def test_the_public_gemm_reads_the_mode_off_the_zeros(mode: str) -> None:
    problem = replace(PROBLEM, zero_mode=mode)  # type: ignore[arg-type]
    weight = random_weight(problem, 3, DEVICE)
    packed = KPacked.pack(weight)
    y = w4a16_gemm(X, packed.codes, packed.scales, packed.zeros, 32, bias=BIAS)
    ref = reference(X, weight, BIAS)
    assert judge(y, ref, k=104, rounds_weights=True, split_count=16).passed


@pytest.mark.parametrize("name", list(VARIANTS))
def test_any_leading_shape_and_stride(name: str) -> None:
    packed = VARIANTS[name].layout.pack(WEIGHT)

    def run(x: torch.Tensor) -> torch.Tensor:
        return ops.linear(x, packed, variant=name, bias=BIAS)

    y = run(X)
    assert sound(y, bias=BIAS)
    assert torch.equal(run(X[0]), run(X[:1])[0])
    assert run(X.reshape(1, 3, 1, 104)).shape == (1, 3, 1, 24)
    assert run(X[:0]).shape == (0, 24)
    assert run(X.reshape(3, 1, 104)[:, :0]).shape == (3, 0, 24)
    wide = torch.full((3, 300), float("nan"), dtype=X.dtype, device=DEVICE)
    wide[:, 7:111] = X
    assert sound(run(wide[:, 7:111]), bias=BIAS)
    assert sound(run(X.T.contiguous().T), bias=BIAS)
    assert sound(run(X[:1].expand(3, 104)), X[:1].expand(3, 104), BIAS)


REFUSALS = {
    "another K": (lambda: gemm(X[:, :80]), "in-features"),
    "K that shares the word count": (lambda: gemm(X[:, :90]), "K=90"),
    "fp32 x": (lambda: gemm(X.float()), "fp16 or bf16"),
    "no K": (lambda: gemm(X[:, :0]), "K of at least 1"),
    "scalar x": (lambda: gemm(X[0, 0]), "fp16 or bf16"),
    "another group size": (lambda: gemm(group_size=64), "group_size=64"),
    "group size 0": (lambda: gemm(group_size=0), "at least 8"),
    "int64 codes": (lambda: gemm(codes=PACKED.codes.long()), "int32"),
    "integer scales": (lambda: gemm(scales=PACKED.scales.int()), "float"),
    "swapped scales and zeros": (lambda: gemm(scales=PACKED.zeros, zeros=PACKED.scales), "scales int32"),
    "zeros dropped": (lambda: gemm(zeros=None), "missing"),
    "zeros with sym": (lambda: gemm(zero_mode="sym"), "given"),
    "unpacked zeros": (lambda: gemm(zeros=PACKED.scales.int()), "zeros int32"),
    "unknown mode": (lambda: gemm(zero_mode="nf4"), "zero_mode"),
    "transposed codes": (lambda: gemm(codes=PACKED.codes.T.contiguous()), "codes int32"),
    "strided codes": (lambda: gemm(codes=PACKED.codes.T.contiguous().T), "contiguous"),
    "another layout": (lambda: gemm(packed=NMajor.pack(WEIGHT)), "nmajor"),
    "bias of another dtype": (
        lambda: ops.linear(X, PACKED, variant="gemm", bias=torch.zeros(24, device=DEVICE)), "bias float32"
    ),
    "bias of another length": (
        lambda: ops.linear(X, PACKED, variant="gemm", bias=torch.zeros(8, device=DEVICE).half()), "N=24"
    ),
    "unknown config field": (lambda: ops.linear(X, PACKED, variant="gemm", config="blok_n=64"), "blok_n"),
    "config that cannot be": (lambda: ops.linear(X, PACKED, variant="gemm", config="block_k=48"), "power of two"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSALS))
def test_operands_that_would_be_misread_are_refused(name: str) -> None:
    call, words = REFUSALS[name]
    with pytest.raises(RoofgapError) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.gpu
def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(RoofgapError, match="share a device"):
        gemm(scales=PACKED.scales.cpu())


def test_rows_past_a_variants_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(get_variant("v2")), "max_m", 2)
    with pytest.raises(RoofgapError, match="M=3 is above"):
        ops.linear(X, PACKED, variant="v2")


@pytest.fixture
def _no_lookup() -> Iterator[None]:
    yield
    ops.set_config_lookup(None)


@pytest.mark.usefixtures("_no_lookup")
def test_an_empty_config_asks_the_lookup_once() -> None:
    asked: list[tuple[str, Problem, torch.device]] = []
    special = get_variant("v2").config_type.parse("block_n=16,block_k=64,num_warps=1")

    def lookup(
        variant: Variant, problem: Problem, device: torch.device, chained: bool
    ) -> KernelConfig | None:
        asked.append((variant.name, problem, device))
        return special if problem.m == 3 else None

    ops.set_config_lookup(lookup)
    for _ in range(2):
        ops.linear(X, PACKED, variant="v2", bias=BIAS)
    assert asked == [("v2", PROBLEM, X.device)]
    variant, one = get_variant("v2"), PROBLEM.with_m(1)
    assert ops.find_config(variant, PROBLEM, X.device) == special
    assert ops.find_config(variant, one, X.device) == variant.default_config(one, ops.limits_of(X.device))
    ops.linear(X, PACKED, variant="v2", config="block_n=32,block_k=64")
    assert len(asked) == 2
    ops.set_config_lookup(None)
    assert ops.find_config(variant, PROBLEM, X.device) != special


@pytest.mark.parametrize("name", list(VARIANTS))
def test_the_fake_knows_shape_and_dtype(name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    packed = VARIANTS[name].layout.pack(WEIGHT)
    tensors = (X.reshape(1, 3, 104).bfloat16(), packed.codes, packed.scales, packed.zeros)
    with FakeTensorMode() as mode:
        args = [mode.from_tensor(tensor) for tensor in tensors if tensor is not None]
        y = ops.op_of(VARIANTS[name])(*args, None, 32, "asym", "")
    assert (y.shape, y.dtype, y.device.type) == ((1, 3, 24), torch.bfloat16, DEVICE.type)


def test_one_graph_serves_many_row_counts() -> None:
    torch.compiler.reset()
    graphs = 0

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    run = torch.compile(lambda x: gemm(x) + 1, backend=count, fullgraph=True, dynamic=True)
    for m in (2, 3, 5):
        x = random_x(PROBLEM.with_m(m), m, DEVICE)
        assert torch.equal(run(x), gemm(x) + 1)
    assert graphs == 1


def test_the_layer_is_a_linear() -> None:
    dense = torch.nn.Linear(104, 24, dtype=torch.float16, device=DEVICE)
    layer = W4Linear.from_linear(dense, 32, symmetric=False)
    weight = KPacked.unpack(layer.packed)
    y = layer(X.reshape(1, 3, 104))
    assert y.shape == (1, 3, 24)
    ref = reference(X, weight, dense.bias.detach())
    assert judge(y.reshape(3, 24), ref, k=104, rounds_weights=True, split_count=16).passed
    twin = W4Linear(random_weight(PROBLEM, 5, DEVICE), torch.zeros_like(dense.bias), variant="gemm")
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(X), layer(X))
    assert "group_size=32, zero_mode=asym, variant=gemm" in repr(layer)
    assert not list(layer.parameters())


def test_the_lookup_is_told_of_dependent_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    def lookup(
        variant: Variant, problem: Problem, device: torch.device, chained: bool
    ) -> KernelConfig | None:
        told.append(chained)
        return None

    ops.set_config_lookup(lookup)
    try:
        for depend in (False, True, True):
            monkeypatch.setattr(ops, "launches_depend", lambda depend=depend: depend)
            ops.linear(X, PACKED, variant="v2", bias=BIAS)
    finally:
        ops.set_config_lookup(None)
    assert told == [False, True]


def test_the_source_hash_ignores_how_a_python_version_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    before, unparse = source_hash(get_variant("v4")), ast.unparse
    monkeypatch.setattr(ast, "unparse", lambda tree: unparse(tree).replace("'", '"'))
    assert source_hash(get_variant("v4")) == before


def test_the_source_hash_covers_helpers_and_nothing_else() -> None:
    names = {function.__name__ for function in kernel_functions(get_variant("gemm"))}
    assert names == {
        "gemm_kernel",
        "weight_of",
        "decode_scaled",
        "dot_rounded",
        "load_scale",
        "load_zero",
        "reduce_kernel",
        "add_splits",
        "finish_row",
        "load_or_zero",
        "finish",
        "silu_product",
    }
    assert len({source_hash(variant) for variant in VARIANTS.values()}) == len(VARIANTS)


HASHES = (
    "from roofgap.kernels import registry, source\n"
    "print([source.source_hash(variant) for variant in registry.VARIANTS.values()])"
)


@pytest.mark.parametrize("interpret", ["0", "1"])
def test_the_source_hash_is_the_same_in_every_process(
    interpret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    out = subprocess.run([sys.executable, "-c", HASHES], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str([source_hash(variant) for variant in VARIANTS.values()])


NO_GPU = """
import torch
from roofgap.kernels.api import quantize_weight_int4_grouped, w4a16_gemm
from roofgap.shapes.errors import RoofgapError
try:
    w4a16_gemm(torch.ones(1, 128).half(), *quantize_weight_int4_grouped(torch.ones(8, 128).half()))
except RoofgapError as error:
    print(error)
"""


def test_cpu_tensors_without_the_interpreter_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    out = subprocess.run([sys.executable, "-c", NO_GPU], capture_output=True, text=True, check=True).stdout
    assert "TRITON_INTERPRET=1" in out
