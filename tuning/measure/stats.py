"""Statistics of samples: spread, the end of a warm-up, and whether two candidates can be told apart. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom


@dataclass(frozen=True, slots=True)
class Spread:
    """Median with 20th and 80th percentile, in the unit of the samples."""

    p20: float
    p50: float
    p80: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Quantiles by linear interpolation. At least one sample."""
        p20, p50, p80 = np.quantile(np.asarray(samples, dtype=np.float64), (0.2, 0.5, 0.8))
        return cls(float(p20), float(p50), float(p80))


def settled(samples: Sequence[float], window: int, tolerance: float) -> bool:
    """Whether the medians of the last two windows agree: clocks have risen, pages are in place."""
    if len(samples) < 2 * window:
        return False
    earlier = float(np.median(samples[-2 * window : -window]))
    later = float(np.median(samples[-window:]))
    return abs(later - earlier) <= tolerance * later


@dataclass(frozen=True, slots=True)
class Comparison:
    """Median ratio of two candidates' times, a / b, with a confidence interval. Below 1: a is faster."""

    ratio: float
    low: float
    high: float

    @property
    def is_separated(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.high < 1.0 or self.low > 1.0


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free confidence interval of a median, from order statistics.

    The count of values below the true median is Binomial(n, 1/2) (Conover, Practical Nonparametric
    Statistics, section 3.2). Where n is too small for the confidence (fewer than 6 for 95 %) nothing is
    known: -inf, inf.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    rank = int(binom.ppf((1 - confidence) / 2, count, 0.5))
    covered = 1 - 2 * binom.cdf(rank - 1, count, 0.5) if rank > 0 else 0.0
    if covered < confidence:
        return -np.inf, np.inf
    return float(ordered[rank - 1]), float(ordered[count - rank])


def compare(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Comparison:
    """Compares samples taken in turns: sample i of both comes from the same round, so drift cancels.

    Raises:
        ValueError: the lengths differ or are zero.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"paired samples are needed, got {len(a)} and {len(b)}")
    ratios = np.asarray(a, dtype=np.float64) / np.asarray(b, dtype=np.float64)
    low, high = median_interval(ratios.tolist(), confidence)
    return Comparison(float(np.median(ratios)), low, high)


def tied(
    a: Sequence[float], b: Sequence[float], *, resolution: float = 0.005, confidence: float = 0.95
) -> bool:
    """Whether paired samples cannot be told apart, or differ by less than anyone should act on."""
    comparison = compare(a, b, confidence)
    return not comparison.is_separated or abs(comparison.ratio - 1) <= resolution
