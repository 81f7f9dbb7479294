"""Policy and statistics: pure functions, no device."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure.policy import CHAINED, COLD, MeasurePolicy, Mode, policy_of
from roofgap.tuning.measure.stats import Spread, compare, median_interval, settled, tied

MIB = 1 << 20


@given(
    read=st.integers(1, 1 << 30),
    l2=st.integers(1 << 10, 1 << 27),
    free=st.integers(1 << 20, 1 << 38),
)
def test_launches_hold_the_cold_rule_or_are_not_called_cold(read: int, l2: int, free: int) -> None:
    held = 2 * read
    if int(free * COLD.memory_fraction) < held:
        with pytest.raises(RoofgapError, match="must fit"):
            COLD.launches(read, held, l2, free)
        return
    launches = COLD.launches(read, held, l2, free)
    assert 1 <= launches <= COLD.max_launches
    assert launches * held <= free * COLD.memory_fraction
    limited = launches == COLD.max_launches or (launches + 1) * held > free * COLD.memory_fraction
    assert limited or launches * read >= 3 * l2
    assert COLD.exceeds_cache(read, launches, l2) == (launches * read >= 3 * l2)


def test_h200_launch_counts() -> None:
    """60 MB of L2: 3 x L2 are 180 MB."""
    l2, free = 60 * 10**6, 140 * 10**9
    assert COLD.launches(256 * 1536 // 2, 2**20, l2, free) == 916
    assert COLD.launches(16384 * 16384 // 2, 2**28, l2, free) == COLD.min_launches


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "hot"},
        {"min_bytes_factor": 0.5},
        {"min_bytes_factor": math.nan},
        {"replays": 0},
        {"memory_fraction": 0},
        {"memory_fraction": 1.5},
        {"max_launches": 4},
        {"warmup_tolerance": math.inf},
        {"taint_repeats": -1},
    ],
)
def test_policy_refuses(fields: dict[str, object]) -> None:
    with pytest.raises(RoofgapError):
        MeasurePolicy(**fields)  # type: ignore[arg-type]


def test_policy_key_names_what_is_measured_and_not_how_often() -> None:
    assert COLD.key == "cold-graph-l2x3" == MeasurePolicy(replays=5).key
    keys = {MeasurePolicy(mode=mode).key for mode in get_args(Mode)}
    assert len(keys | {MeasurePolicy(min_bytes_factor=4).key}) == 1 + len(get_args(Mode)) == 5
    assert {policy_of(key).key for key in keys} == keys
    assert (policy_of(CHAINED.key), CHAINED.is_cold, CHAINED.is_chained) == (CHAINED, True, True)
    with pytest.raises(RoofgapError, match="Use one of cold-graph-l2x3, chained-graph-l2x3"):
        policy_of("cold-graph-l2x4")
    assert len({COLD, MeasurePolicy()}) == 1


def test_spread_is_of_quantiles() -> None:
    assert Spread.of([5, 1, 3, 2, 4]) == Spread(1.8, 3.0, 4.2)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_warm_up_is_over_when_two_windows_agree() -> None:
    falling = [10.0, 8.0, 6.0, 5.0, 4.5, 4.2]
    assert not settled(falling, 3, 0.01)
    assert settled([*falling, *[4.0] * 6], 3, 0.01)
    assert not settled([4.0] * 5, 3, 0.01), "two windows need six samples"
    assert settled([*[4.0] * 5, 40.0], 3, 0.01), "one outlier does not move a median"


def test_median_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = random.Random(7)
    covered = 0
    for _ in range(600):
        low, high = median_interval([rng.lognormvariate(0, 0.3) for _ in range(21)])
        covered += low <= 1.0 <= high
    assert covered / 600 >= 0.94


@pytest.mark.parametrize("count", range(1, 6))
def test_few_samples_separate_nothing(count: int) -> None:
    assert not compare([1.0] * count, [2.0] * count).is_separated
    assert compare([1.0] * 6, [2.0] * 6).is_separated


def test_paired_drift_does_not_hide_a_difference() -> None:
    rng = random.Random(3)
    drift = [1 + 0.2 * i / 20 for i in range(20)]
    slow = [10.2 * d * rng.gauss(1, 0.002) for d in drift]
    fast = [10.0 * d * rng.gauss(1, 0.002) for d in drift]
    assert not tied(fast, slow)
    assert compare(fast, slow).ratio == pytest.approx(10 / 10.2, rel=0.003)


def test_noise_and_irrelevance_are_ties() -> None:
    rng = random.Random(5)
    a, b = ([rng.gauss(10, 0.3) for _ in range(20)] for _ in range(2))
    assert tied(a, b)
    assert tied([10.0] * 20, [10.04] * 20), "0.4 % is below the resolution"
    assert not tied([10.0] * 20, [10.04] * 20, resolution=0.001)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0])])
def test_unpaired_samples_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="paired"):
        compare(a, b)
