"""Canonical weights, their quantiser and their packed layouts: exact in both directions, or refused by name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roofgap.kernels.formats.bits import pack_nibbles, unpack_nibbles
from roofgap.kernels.formats.kpacked import KPacked
from roofgap.kernels.formats.layout import Layout
from roofgap.kernels.formats.nmajor import NMajor
from roofgap.kernels.formats.quantise import quantise
from roofgap.kernels.formats.registry import LAYOUTS
from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.inputs import random_weight
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

problems = st.builds(
    Problem,
    n=st.integers(1, 40),
    k=st.integers(1, 300),
    group_size=st.sampled_from((-1, 8, 24, 32, 64, 96, 128, 256)),
    x_dtype=st.sampled_from(("fp16", "bf16")),
    zero_mode=st.sampled_from(("sym", "asym", "offset")),
)
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))


@layouts
@settings(max_examples=60, deadline=None)
@given(problem=problems, seed=st.integers(0, 2**31))
def test_round_trip_is_bit_exact(layout: type[Layout], problem: Problem, seed: int) -> None:
    weight = random_weight(problem, seed)
    assert layout.unpack(layout.pack(weight)).equal(weight)


@layouts
@settings(max_examples=30, deadline=None)
@given(problem=problems)
def test_meta_has_the_shapes_and_strides_of_pack(layout: type[Layout], problem: Problem) -> None:
    packed, meta = layout.pack(random_weight(problem, 0)), layout.meta(problem)
    assert layout.out_features(packed.codes) == layout.out_features(meta.codes) == problem.n
    for name in ("codes", "scales", "zeros"):
        real, shape_only = getattr(packed, name), getattr(meta, name)
        if real is None:
            assert shape_only is None
            continue
        assert (real.shape, real.stride(), real.dtype) == (
            shape_only.shape,
            shape_only.stride(),
            shape_only.dtype,
        )
        assert shape_only.device.type == "meta"
        assert real.is_contiguous()


@layouts
def test_bytes_are_what_the_problem_says(layout: type[Layout]) -> None:
    # Whole words everywhere, so that the padding of the two layouts' zeros agrees.
    for mode in ("sym", "asym", "offset"):
        problem = Problem(n=48, k=1024, group_size=128, zero_mode=mode)
        packed = layout.pack(random_weight(problem, 0))
        sizes = [
            0 if t is None else t.numel() * t.element_size()
            for t in (packed.codes, packed.scales, packed.zeros)
        ]
        assert sizes == [problem.code_bytes, problem.scale_bytes, problem.zero_bytes]


def test_kpacked_bits_are_where_the_docstring_draws_them() -> None:
    codes = (torch.arange(3 * 20).reshape(3, 20) % 16).to(torch.uint8)
    zeros = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.uint8)
    weight = QuantizedWeight(codes=codes, scales=torch.ones(3, 2), zeros=zeros, group_size=16)
    packed = KPacked.pack(weight)
    assert packed.codes.shape == (3, 3)
    for n in range(3):
        for k in range(20):
            assert (int(packed.codes[k // 8, n]) >> (4 * (k % 8))) & 15 == int(codes[n, k])
    assert (packed.codes[2] & ~0xFFFF).eq(0).all()  # nibbles past K
    assert packed.zeros is not None
    assert packed.zeros.tolist() == [[0x531], [0x642]]


def test_nmajor_bits_are_where_the_docstring_draws_them() -> None:
    codes = (torch.arange(3 * 20).reshape(3, 20) % 16).to(torch.uint8)
    zeros = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.uint8)
    weight = QuantizedWeight(codes=codes, scales=torch.ones(3, 2), zeros=zeros, group_size=16)
    packed = NMajor.pack(weight)
    for n in range(3):
        for k in range(20):
            assert (int(packed.codes[n, k // 8]) >> (4 * (k % 8))) & 15 == int(codes[n, k])
    assert packed.zeros is not None
    assert packed.zeros.tolist() == [[0x21], [0x43], [0x65]]


@given(st.lists(st.integers(0, 15), min_size=1, max_size=40))
def test_nibbles(codes: list[int]) -> None:
    tensor = torch.tensor(codes, dtype=torch.uint8)
    words = pack_nibbles(tensor)
    assert words.dtype == torch.int32
    assert words.numel() == -(-len(codes) // 8)
    assert unpack_nibbles(words, len(codes)).tolist() == codes


@pytest.mark.parametrize("mode", ["sym", "asym", "offset"])
def test_dequantise_is_the_formula(mode: str) -> None:
    problem = Problem(n=3, k=37, group_size=16, zero_mode=mode)  # type: ignore[arg-type]
    weight = random_weight(problem, 1)
    dense = weight.dequantise(torch.float64)
    for n in range(3):
        for k in range(37):
            q, s = float(weight.codes[n, k]), float(weight.scales[n, k // 16])
            zero = 8.0 if weight.zeros is None else float(weight.zeros[n, k // 16])
            assert float(dense[n, k]) == (s * q + zero if mode == "offset" else s * (q - zero))


def test_offsets_hold_any_zero_exactly() -> None:
    weight = random_weight(Problem(n=4, k=64, group_size=32, zero_mode="asym"), 2)
    assert torch.equal(weight.with_offsets().dequantise(torch.float64), weight.dequantise(torch.float64))
    sixteen = torch.full((4, 2), 16)  # GPTQ v1 stores zero - 1 = 15
    expected = weight.scales.double()[:, torch.arange(64) // 32] * (weight.codes.double() - 16)
    assert torch.equal(weight.with_offsets(sixteen).dequantise(torch.float64), expected)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [32, 96, -1])
def test_rtn_is_within_half_a_step(symmetric: bool, group_size: int) -> None:
    dense = torch.randn(16, 300, generator=torch.Generator().manual_seed(0))
    weight = quantise(dense, group_size, symmetric=symmetric)
    step = weight.scales[:, torch.arange(300) // weight.group]
    # An asymmetric zero is rounded too: the ends of the range may lie up to a whole step away.
    assert ((weight.dequantise() - dense).abs() <= step * (0.5 if symmetric else 1.0) * 1.0001).all()
    middle = (weight.codes > 0) & (weight.codes < 15)
    assert ((weight.dequantise() - dense).abs()[middle] <= step[middle] * 0.5001).all()


@pytest.mark.parametrize("symmetric", [True, False])
def test_rtn_keeps_zeros_exact(symmetric: bool) -> None:
    dense = torch.randn(8, 128, dtype=torch.float16, generator=torch.Generator().manual_seed(0)) + 1
    dense[2, :64] = 0  # a whole group
    dense[:, 70] = 0
    weight = quantise(dense, 64, symmetric=symmetric)
    back = weight.dequantise()
    assert (back[2, :64] == 0).all()
    assert (back[:, 70] == 0).all()
    assert torch.isfinite(back).all()


def test_rtn_reads_any_strides() -> None:
    dense = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    expected = quantise(dense.T.contiguous(), 32)
    assert quantise(dense.T, 32).equal(expected)
    wide = torch.full((48, 200), float("nan"))
    wide[:, 3:67] = dense.T
    assert quantise(wide[:, 3:67], 32).equal(expected)


def test_a_quantised_weight_is_a_fixed_point() -> None:
    first = quantise(torch.randn(8, 256, generator=torch.Generator().manual_seed(3)), 64)
    assert torch.equal(quantise(first.dequantise(), 64).codes, first.codes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: quantise(torch.full((2, 64), float("nan"))), "NaN"),
        (lambda: quantise(torch.full((2, 64), float("inf"))), "infinite"),
        (lambda: quantise(torch.zeros(2, 64, dtype=torch.int32)), "matrix"),
        (lambda: quantise(torch.zeros(64)), "matrix"),
        (lambda: quantise(torch.zeros(2, 64), 12), "multiple of 8"),
        (lambda: quantise(torch.zeros(2, 64), 0), "at least 8"),
        (
            lambda: quantise(
                torch.tensor([[65504.0, -65504.0] * 32]).half(), 64, symmetric=False
            ).dequantise(),
            None,
        ),
        (
            lambda: QuantizedWeight(codes=torch.full((2, 8), 16, dtype=torch.uint8), scales=torch.ones(2, 1)),
            "0..15",
        ),
        (
            lambda: QuantizedWeight(codes=torch.zeros(2, 8, dtype=torch.int32), scales=torch.ones(2, 1)),
            "uint8",
        ),
        (
            lambda: QuantizedWeight(codes=torch.zeros(2, 300, dtype=torch.uint8), scales=torch.ones(2, 1)),
            "[2, 3]",
        ),
        (
            lambda: QuantizedWeight(
                codes=torch.zeros(2, 8, dtype=torch.uint8),
                scales=torch.ones(2, 1),
                zeros=torch.full((2, 1), 16, dtype=torch.uint8),
            ),
            "with_offsets",
        ),
        (
            lambda: QuantizedWeight(
                codes=torch.zeros(2, 8, dtype=torch.uint8),
                scales=torch.ones(2, 1),
                zeros=torch.zeros(2, 1, dtype=torch.float16),
            ),
            "fp32 offsets",
        ),
    ],
)
def test_refusals_name_the_rule(make: object, words: str | None) -> None:
    assert callable(make)
    if words is None:
        make()
        return
    with pytest.raises(RoofgapError) as caught:
        make()
    assert words in str(caught.value)
