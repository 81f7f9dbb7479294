"""Checkpoint tensors: exact round trips, the conventions told apart, the ambiguous refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roofgap.kernels.formats.checkpoints import (
    GptqVersion,
    from_awq,
    from_compressed_tensors,
    from_gptq,
    to_awq,
    to_compressed_tensors,
    to_gptq,
)
from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.inputs import random_weight
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

eights = st.integers(1, 6).map(lambda count: 8 * count)
problems = st.builds(
    Problem,
    n=eights,
    k=eights,
    group_size=st.sampled_from((-1, 8, 16, 32, 128)),
    zero_mode=st.sampled_from(("sym", "asym")),
)


def _weight(problem: Problem, least_zero: int = 0) -> QuantizedWeight:
    weight = random_weight(problem, 0)
    return weight if weight.zeros is None else replace(weight, zeros=weight.zeros.clamp_min(least_zero))


@settings(max_examples=40, deadline=None)
@given(problem=problems, version=st.sampled_from(("gptq", "gptq_v2")))
def test_gptq(problem: Problem, version: GptqVersion) -> None:
    weight = _weight(problem, least_zero=1)
    tensors = to_gptq(weight, version)
    sym = problem.zero_mode == "sym"
    assert from_gptq(**tensors, group_size=problem.group_size, sym=sym, version=version).equal(weight)


@settings(max_examples=40, deadline=None)
@given(problem=problems)
def test_awq(problem: Problem) -> None:
    weight = _weight(problem)
    read = from_awq(**to_awq(weight), group_size=problem.group_size)
    assert torch.equal(read.dequantise(torch.float64), weight.dequantise(torch.float64))
    assert torch.equal(read.codes, weight.codes)
    assert weight.zeros is None or read.equal(weight)


@settings(max_examples=40, deadline=None)
@given(problem=problems, n=st.integers(1, 40), k=st.integers(1, 70))
def test_compressed_tensors(problem: Problem, n: int, k: int) -> None:
    weight = _weight(replace(problem, n=n, k=k))
    assert from_compressed_tensors(**to_compressed_tensors(weight), group_size=problem.group_size).equal(
        weight
    )


def test_words_are_where_the_formats_say() -> None:
    codes = (
        torch.arange(8, dtype=torch.uint8).repeat(8, 1).T.contiguous()
    )  # code of output n is n, for every k
    zeros = torch.arange(1, 9, dtype=torch.uint8)[:, None]
    weight = QuantizedWeight(codes=codes, scales=torch.ones(8, 1), zeros=zeros, group_size=8)
    assert to_gptq(weight, "gptq")["qzeros"].tolist() == [[0x76543210]]  # zero - 1
    assert to_gptq(weight, "gptq_v2")["qzeros"].tolist() == [[0x87654321 - (1 << 32)]]
    assert to_gptq(weight)["qweight"][0].tolist()[:3] == [0, 0x11111111, 0x22222222]
    assert to_awq(weight)["qweight"].tolist() == [[0x75316420]] * 8
    assert to_compressed_tensors(weight)["weight_packed"].tolist()[1] == [0x11111111]
    assert to_compressed_tensors(weight)["weight_zero_point"].tolist() == [[0x87654321 - (1 << 32)]]


@pytest.mark.parametrize("label", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("written", ["gptq", "gptq_v2"])
def test_a_mislabelled_symmetric_file_is_read_by_its_data(label: GptqVersion, written: GptqVersion) -> None:
    weight = _weight(Problem(n=8, k=32, group_size=16))
    assert from_gptq(**to_gptq(weight, written), group_size=16, sym=True, version=label).equal(weight)


def test_a_zero_of_sixteen_is_kept_exactly() -> None:
    weight = _weight(Problem(n=8, k=32, group_size=16, zero_mode="asym"), least_zero=1)
    tensors = to_gptq(weight, "gptq")
    tensors["qzeros"] = torch.full_like(tensors["qzeros"], -1)  # 15 stored everywhere
    read = from_gptq(**tensors, group_size=16, sym=False, version="gptq")
    assert read.zero_mode == "offset"
    scales = weight.scales.double()[:, torch.arange(32) // 16]
    assert torch.equal(read.dequantise(torch.float64), scales * (weight.codes.double() - 16))


def test_what_a_format_cannot_hold_is_refused() -> None:
    asym = _weight(Problem(n=8, k=32, group_size=16, zero_mode="asym"), least_zero=1)
    assert asym.zeros is not None
    with pytest.raises(RoofgapError, match="zero of 0"):
        to_gptq(replace(asym, zeros=asym.zeros * 0), "gptq")
    with pytest.raises(RoofgapError, match="all 7"):
        from_gptq(**to_gptq(asym), group_size=16, sym=True, version="gptq")
    with pytest.raises(RoofgapError, match="activation order"):
        tensors = to_gptq(asym)
        tensors["g_idx"] = tensors["g_idx"].flip(0)
        from_gptq(**tensors, group_size=16, sym=False, version="gptq")
    for write in (to_gptq, to_awq, to_compressed_tensors):
        with pytest.raises(RoofgapError, match="offsets"):
            write(asym.with_offsets())
    ragged = _weight(Problem(n=7, k=33, group_size=16))
    for write in (to_gptq, to_awq):
        with pytest.raises(RoofgapError, match="multiple of 8"):
            write(ragged)
