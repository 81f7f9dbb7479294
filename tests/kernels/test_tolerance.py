"""The tolerance policy: lets correct rounding pass and one wrong nibble, scale or infinity fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from roofgap.kernels.inputs import random_weight, random_x
from roofgap.kernels.reference import Reference, reference, rounded
from roofgap.kernels.tolerance import judge
from roofgap.shapes.problem import Problem

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def _case(dtype: str, k: int = 1536, n: int = 64) -> tuple[torch.Tensor, Reference, Problem]:
    problem = Problem(n=n, k=k, m=2, x_dtype=dtype, zero_mode="asym")  # type: ignore[arg-type]
    x = random_x(problem, 0)
    return x, reference(x, random_weight(problem, 0)), problem


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("k", [8, 300, 8960])
def test_fp32_sums_rounded_once_pass(dtype: str, k: int) -> None:
    x, ref, problem = _case(dtype, k)
    dense = random_weight(problem, 0).dequantise(torch.float32)
    y = rounded(x.float() @ dense.T, DTYPES[dtype])
    verdict = judge(y, ref, k=k)
    assert verdict.passed, verdict.detail
    assert verdict.worst_of_bound > 0.3  # the bound is not an order of magnitude away


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_rounded_weights_pass_only_when_declared(dtype: str) -> None:
    x, ref, problem = _case(dtype)
    dense = rounded(random_weight(problem, 0).dequantise(torch.float32), DTYPES[dtype])
    y = rounded(x.float() @ dense.float().T, DTYPES[dtype])
    assert judge(y, ref, k=problem.k, rounds_weights=True).passed
    assert not judge(y, ref, k=problem.k).passed


def test_sixteen_bit_sums_fail() -> None:
    # What a kernel that accumulates in fp16 gives.
    x, ref, problem = _case("fp16")
    dense = random_weight(problem, 0).dequantise(torch.float16)
    y = torch.zeros(2, problem.n, dtype=torch.float16)
    for k in range(problem.k):
        y += x[:, k : k + 1] * dense[:, k]
    assert not judge(y, ref, k=problem.k, rounds_weights=True).passed


@pytest.mark.parametrize("k", [300, 1536, 8960])
def test_one_wrong_nibble_fails_in_fp16(k: int) -> None:
    x, ref, problem = _case("fp16", k)
    weight = random_weight(problem, 0)
    caught = 0
    rows = range(0, problem.n, 4)
    for n in rows:
        codes = weight.codes.clone()
        codes[n, (97 * n) % k] ^= 8
        dense = type(weight)(
            codes=codes, scales=weight.scales, zeros=weight.zeros, group_size=weight.group_size
        )
        y = (x.double() @ dense.dequantise(torch.float64).T).half()
        caught += not judge(y, ref, k=k).passed
    assert caught >= 0.9 * len(rows)  # the rest meet an activation near 0


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("rounds_weights", [False, True])
def test_one_wrong_scale_fails(dtype: str, rounds_weights: bool) -> None:
    x, ref, problem = _case(dtype)
    weight = random_weight(problem, 0)
    scales = weight.scales.clone()
    scales[7, 3] *= -1
    wrong = type(weight)(codes=weight.codes, scales=scales, zeros=weight.zeros, group_size=weight.group_size)
    y = (x.double() @ wrong.dequantise(torch.float64).T).to(DTYPES[dtype])
    assert not judge(y, ref, k=problem.k, rounds_weights=rounds_weights).passed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_one_bad_output_fails(value: float) -> None:
    _, ref, problem = _case("fp16")
    y = ref.y.half()
    assert judge(y, ref, k=problem.k).passed
    y[1, 5] = value
    assert not judge(y, ref, k=problem.k).passed


def _constant(value: float) -> Reference:
    y = torch.full((1, 4), value, dtype=torch.float64)
    return Reference(
        y=y,
        magnitude=y.abs(),
        code_magnitude=y.abs(),
        energy=y.abs(),
        x_sum=torch.ones(1, 1, dtype=torch.float64),
    )


@pytest.mark.parametrize(
    ("true", "got", "passes"),
    [
        (70_000.0, float("inf"), True),
        (70_000.0, float("-inf"), False),
        (65_000.0, float("inf"), False),
        (float("inf"), float("inf"), True),
        (float("inf"), 65_504.0, False),
        (float("-inf"), float("inf"), False),
        (float("nan"), float("nan"), True),
        (float("nan"), float("inf"), False),
        (1.0, float("nan"), False),
        (0.0, 0.0, True),
        (0.0, 1e-3, False),
    ],
)
def test_infinities_belong_where_the_reference_has_them(true: float, got: float, passes: bool) -> None:
    y = torch.full((1, 4), got, dtype=torch.float16)
    assert judge(y, _constant(true), k=64).passed is passes


@pytest.mark.parametrize(
    ("true", "got", "passes"),
    [
        (float("inf"), float("nan"), True),
        (float("inf"), float("-inf"), True),
        (float("nan"), float("inf"), True),
        (float("inf"), 65_504.0, False),
        (float("nan"), 0.0, False),
        (1.0, float("nan"), False),
        (1.0, float("inf"), False),
        (70_000.0, float("inf"), True),
        (70_000.0, float("nan"), False),
        (70_000.0, float("-inf"), False),
    ],
)
def test_sums_kept_apart_owe_no_kind_of_infinity(true: float, got: float, passes: bool) -> None:
    y = torch.full((1, 4), got, dtype=torch.float16)
    assert judge(y, _constant(true), k=64, factors_zero=True).passed is passes


def test_more_terms_and_splits_allow_more() -> None:
    ref = _constant(1.0)
    y = torch.full((1, 4), 1.0, dtype=torch.float16)
    y[0, 0] = 1 + 2**-10
    bounds = [judge(y, ref, k=k, split_count=s).worst_of_bound for k, s in ((8, 1), (8, 16), (8960, 1))]
    assert bounds[0] > bounds[1] > bounds[2] > 1


def test_sums_kept_apart_are_judged_by_what_they_add() -> None:
    # The outlier meets a weight of exactly 0 (q = z): the product is 0, but 60,000 q - 60,000 z has to cancel.
    problem = Problem(n=4, k=64, group_size=32)
    weight = random_weight(problem, 0)
    codes = weight.codes.clone()
    codes[:, 7] = 8
    weight = replace(weight, codes=codes)
    x = random_x(problem, 0)
    x[0, 7] = 60_000
    ref = reference(x, weight)
    assert bool((ref.code_magnitude >= ref.magnitude).all())
    y = (ref.y + ref.code_magnitude * 2**-23).half()  # two fp32 roundings of the larger partial sum
    assert judge(y, ref, k=64, factors_zero=True).passed
    assert not judge(y, ref, k=64).passed
    assert not judge((ref.y + 0.5).half(), ref, k=64, factors_zero=True).passed
