"""A cut keeps what makes a problem awkward: groups, the ragged last one, and tails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from roofgap.shapes.cut import cut_problem
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem


@pytest.mark.parametrize(
    ("shape", "group_size", "expected"),
    [
        ("256x1536", 128, "256x1536"),  # small enough
        ("8x8960", 128, "8x8960"),  # few weights in all
        ("8960x1536", 128, "256x1536"),
        ("1536x8960", 128, "256x1280"),  # 8960 = 256 modulo 512
        ("151936x1536", 64, "256x1536"),
        ("1000x8960", 128, "232x1280"),  # 1000 = 104 modulo 128
        ("4096x4100", 128, "256x1028"),  # ragged last group of 4
        ("4096x4099", -1, "256x1027"),  # whole row, odd K
        ("4096x4096", 8192, "256x1536"),  # a group longer than K is a whole row
        ("4096x4096", 1024, "256x1024"),
    ],
)
def test_known_cuts(shape: str, group_size: int, expected: str) -> None:
    assert cut_problem(Problem.parse(shape, group_size=group_size)).shape == expected


@pytest.mark.parametrize("shape", ["4096x6144", "4096x8960"])
def test_a_group_that_does_not_fit_is_refused(shape: str) -> None:
    with pytest.raises(RoofgapError, match="group_size=2048"):
        cut_problem(Problem.parse(shape, group_size=2048))


@given(
    n=st.integers(1, 200_000),
    k=st.integers(1, 30_000),
    group_size=st.sampled_from([-1, 8, 32, 64, 96, 128, 256, 512, 4096]),
    m=st.integers(0, 8),
)
def test_structure_is_kept(n: int, k: int, group_size: int, m: int) -> None:
    problem = Problem(n=n, k=k, m=m, group_size=group_size, zero_mode="asym", bias=True)
    try:
        cut = cut_problem(problem)
    except RoofgapError:
        assume(False)
    assert cut.n * cut.k <= 256 * 1536
    assert cut == replace(problem, n=cut.n, k=cut.k)
    assert cut_problem(cut) == cut
    if cut.n != n:
        assert cut.n > 128
        assert (n - cut.n) % 128 == 0
    if cut.k != k:
        assert (k - cut.k) % 8 == 0
        assert (cut.groups == 1) == (problem.groups == 1)
        if problem.groups > 1:
            assert cut.group == problem.group
            assert cut.k % cut.group == k % problem.group
