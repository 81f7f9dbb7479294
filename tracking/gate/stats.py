"""Decides which device cells differ between two commits. Pure: numbers in, decisions out.

Each commit is timed on two *arms*, each with operands of its own in memory: where a weight lies in DRAM and L2 moves a
time by up to a per cent, and stays as it is for as long as the operands do. In every round all four arms are sampled
in random order. With logarithms of times throughout, per cell:

- the *effect* is the median over rounds of the mean of the second commit's arms minus the mean of the first's;
- the *A/A effects* are the median differences between two arms of the same commit. They hold what rounds cannot
  average away. Their variance is pooled over the grid and, where a cell's own is larger, mixed with it in the way of
  a moderated t-statistic (Smyth 2004, "Linear models and empirical Bayes methods", with the prior's degrees of freedom
  fixed to ``PRIOR_DF``);
- two tests must both reject: Wilcoxon's signed-rank test over rounds (is there a difference at all between these four
  arms?) and the t-test against rounds and A/A effects together (is it more than two arms of one commit show?).

The larger of both p-values goes through Benjamini and Hochberg's procedure over the grid. An effect below
``min_effect`` is never reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, expm1, log1p, log2

import numpy as np
from scipy.stats import false_discovery_control, t, wilcoxon

ALPHA = 0.01
MIN_EFFECT = 0.01
POWER = 0.95
PRIOR_DF = 8.0
LEAST_ROUNDS = 8
_CELL_DF = 2  # an A/A effect per commit
_MEDIAN_OVER_MEAN = 1.2533  # standard error of a median over that of a mean, normal samples: sqrt(pi / 2)


@dataclass(frozen=True, slots=True)
class Samples:
    """Times of one cell: [rounds][arms] of each commit, any unit, at least ``LEAST_ROUNDS`` rounds."""

    before: Sequence[Sequence[float]]
    after: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is known of one cell. Effects as ratios minus 1.

    Attributes:
        effect: after / before - 1.
        p_value: adjusted for the grid.
        noise_floor: effect that a cell without a difference stays below with a probability of 1 - alpha.
        smallest_effect: effect that would have been reported with a probability of ``POWER``.
        differs: whether there is a difference.
    """

    effect: float
    p_value: float
    noise_floor: float
    smallest_effect: float
    differs: bool


@dataclass(frozen=True, slots=True)
class _Raw:
    effect: float
    round_error: float
    arm_effects: tuple[float, float]
    rank_p: float


def least_rounds(cells: int, alpha: float = ALPHA) -> int:
    """Rounds without which no difference, however large, could be found in one of so many cells.

    The smallest p-value of a signed-rank test is 2^(1 - rounds).
    """
    return max(LEAST_ROUNDS, ceil(1 + log2(max(1, cells) / alpha)))


def decide(
    cells: Mapping[str, Samples], *, alpha: float = ALPHA, min_effect: float = MIN_EFFECT
) -> dict[str, Decision]:
    """A decision per cell.

    Args:
        cells: samples by cell.
        alpha: share of false findings among all that are reported, at most.
        min_effect: least effect worth reporting, e.g. 0.01 for 1 %.

    Raises:
        ValueError: fewer than ``LEAST_ROUNDS`` rounds, or arms other than two.
    """
    raw = {name: _analyse(samples) for name, samples in cells.items()}
    if not raw:
        return {}
    pool = float(np.mean([_arm_variance(each) for each in raw.values()]))
    errors = {name: _error(each, pool) for name, each in raw.items()}
    df = _CELL_DF + PRIOR_DF
    p_values = [max(each.rank_p, 2 * t.sf(abs(each.effect) / errors[name], df)) for name, each in raw.items()]
    adjusted = false_discovery_control(np.minimum(p_values, 1.0))
    # What one cell needs if it is the only one that differs: Benjamini and Hochberg's strictest step.
    critical, power = t.isf(alpha / len(raw) / 2, df), t.ppf(POWER, df)
    decisions = {}
    for (name, each), p_value in zip(raw.items(), adjusted, strict=True):
        error = errors[name]
        decisions[name] = Decision(
            effect=expm1(each.effect),
            p_value=float(p_value),
            noise_floor=expm1(float(t.isf(alpha / 2, df)) * error),
            smallest_effect=expm1(max(float(critical) * error, log1p(min_effect)) + float(power) * error),
            differs=bool(p_value <= alpha and abs(each.effect) >= log1p(min_effect)),
        )
    return decisions


def _analyse(samples: Samples) -> _Raw:
    before, after = np.log(np.asarray(samples.before)), np.log(np.asarray(samples.after))
    if before.shape != after.shape or before.ndim != 2 or before.shape[1] != 2:
        raise ValueError(f"two arms a commit are needed, got {before.shape} and {after.shape}")
    if len(before) < LEAST_ROUNDS:
        raise ValueError(f"at least {LEAST_ROUNDS} rounds are needed, got {len(before)}")
    differences = after.mean(axis=1) - before.mean(axis=1)
    # Scaled median absolute deviation: one disturbed round must not hide a difference.
    spread = 1.4826 * float(np.median(np.abs(differences - np.median(differences))))
    return _Raw(
        effect=float(np.median(differences)),
        round_error=_MEDIAN_OVER_MEAN * spread / len(differences) ** 0.5,
        arm_effects=tuple(float(np.median(arms[:, 1] - arms[:, 0])) for arms in (before, after)),  # type: ignore[arg-type]
        rank_p=1.0 if np.all(differences == 0) else float(wilcoxon(differences).pvalue),
    )


def _arm_variance(raw: _Raw) -> float:
    """Variance of one arm's level: half that of a difference of two. The effect, a difference of two means of two, has
    the same variance."""
    return sum(effect**2 for effect in raw.arm_effects) / 2 / _CELL_DF


def _error(raw: _Raw, pool: float) -> float:
    """Standard error of a cell's effect."""
    mixed = (_CELL_DF * _arm_variance(raw) + PRIOR_DF * pool) / (_CELL_DF + PRIOR_DF)
    return float((max(pool, mixed) + raw.round_error**2) ** 0.5) or 1e-12
