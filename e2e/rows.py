"""One row of the comparison: what was measured, against what the bytes allow, and what that means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from roofgap.e2e.arms import Arm
from roofgap.e2e.reference import Agreement
from roofgap.shapes.accounting import TokenBytes
from roofgap.tuning.results import Cell
from roofgap.tuning.trial import Record

MOST_OF_BANDWIDTH = 1.05
MOST_CV = 0.05
HOST_BOUND_BUSY = 0.9
BANDWIDTH_BOUND = 0.7
CONFIDENCE = 0.95
RESAMPLES = 2000

Status = Literal["ok", "error", "skipped"]
Verdict = Literal["host-bound", "tail-bound", "bandwidth-bound"]


class Row(Record):
    """An arm at a depth. Times are per token, bytes per token unless named otherwise; None is unknown, never zero.

    Attributes:
        arm: its name.
        model: the manifest's name.
        depth: positions in the cache before the first timed token.
        status: ``ok``, ``error`` (a gate or a failure; nothing of its speed is given) or ``skipped``.
        evidence: why it is not ``ok``.
        note: accounting or protocol that differs from the other rows'.
        weights: format of the linears.
        head: format of the head.
        n_gen: timed tokens of a repetition.
        repeats: repetitions.
        tok_s: tokens a second, median of the repetitions by wall clock.
        tok_s_low: lower end of the 95 % bootstrap interval of that median.
        tok_s_high: its upper end.
        ms_per_token: wall clock.
        event_ms: between CUDA events.
        busy_ms: time in which the GPU works.
        host_gap_ms: wall clock less event time between graph replays, or less busy time in eager loops: what the host
            costs.
        cv: standard deviation over mean of the repetitions.
        code_bytes: 4-bit codes or dense values of the linears.
        scale_bytes: scales and zeros of the linears.
        head_bytes: the head as stored.
        kv_bytes: keys and values at the mean context of the timed tokens.
        other_bytes: biases, norms, one row of the embedding.
        bytes_per_token: all of these.
        read_gbps: bytes_per_token times tok_s.
        pct_of_read_bandwidth: of what was measured in this process.
        device_read_gbps: that measurement, the mean of before and after.
        sm_clock_mhz: SM clock at the end of the arm's last repetition.
        ceiling_tok_s: read bandwidth over bytes_per_token.
        published_ceiling_tok_s: the same bandwidth in the first write-up's accounting.
        speedup: tok_s over the best bf16 arm's at this depth.
        speedup_low: lower end of its 95 % bootstrap interval.
        speedup_high: its upper end.
        possible_speedup: that arm's bytes over this one's.
        memory_bytes: tensors of the model and its cache.
        launches_per_token: kernels and copies.
        top1: agreement with the fp32 reference of the same weights, over decided positions.
        logit_error: relative error of the logits.
        perplexity: quality columns are filled in from the quality run, with real weights only.
        delta_nll: paired difference of the negative log-likelihood against the unquantised model, nats.
        delta_nll_se: its standard error.
        kl: mean KL divergence from the unquantised model.
        quality_top1: top-1 agreement with the unquantised model.
        prefill_ms: filling the cache to ``depth``, untimed in tok_s.
        tuned: own kernels' problems with a tuned config, of all, e.g. ``4/5``.
        verdict: what bounds the arm.
    """

    arm: str
    model: str
    depth: int
    status: Status = "ok"
    evidence: str = ""
    note: str = ""
    weights: str = ""
    head: str = ""
    n_gen: int = 0
    repeats: int = 0
    tok_s: float | None = None
    tok_s_low: float | None = None
    tok_s_high: float | None = None
    ms_per_token: float | None = None
    event_ms: float | None = None
    busy_ms: float | None = None
    host_gap_ms: float | None = None
    cv: float | None = None
    code_bytes: float | None = None
    scale_bytes: float | None = None
    head_bytes: float | None = None
    kv_bytes: float | None = None
    other_bytes: float | None = None
    bytes_per_token: float | None = None
    read_gbps: float | None = None
    pct_of_read_bandwidth: float | None = None
    device_read_gbps: float | None = None
    sm_clock_mhz: float | None = None
    ceiling_tok_s: float | None = None
    published_ceiling_tok_s: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    possible_speedup: float | None = None
    memory_bytes: int | None = None
    launches_per_token: float | None = None
    top1: float | None = None
    logit_error: float | None = None
    perplexity: float | None = None
    delta_nll: float | None = None
    delta_nll_se: float | None = None
    kl: float | None = None
    quality_top1: float | None = None
    prefill_ms: float | None = None
    tuned: str | None = None
    verdict: Verdict | None = None

    def cells(self) -> dict[str, Cell]:
        """As a flat record for a result file; what is unknown or empty is left out."""
        return {
            name: value for name, value in self.model_dump(mode="json").items() if value not in (None, "")
        }


def byte_columns(read: TokenBytes) -> dict[str, float]:
    """A token's bytes by term, under the names of `Row`."""
    return {
        "code_bytes": read.codes,
        "scale_bytes": read.scales + read.zeros,
        "head_bytes": read.head,
        "kv_bytes": read.kv,
        "other_bytes": read.biases + read.norms + read.embedding,
        "bytes_per_token": read.total,
    }


def median_ci(samples: Sequence[float]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median, seeded."""
    values = np.asarray(samples, dtype=np.float64)
    draws = np.random.default_rng(0).choice(values, size=(RESAMPLES, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def ratio_ci(samples: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of median(samples) / median(base), seeded."""
    random = np.random.default_rng(0)
    medians = [
        np.median(random.choice(np.asarray(values), size=(RESAMPLES, len(values))), axis=1)
        for values in (samples, base)
    ]
    low, high = np.quantile(medians[0] / medians[1], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def variation(samples: Sequence[float]) -> float:
    """Standard deviation over mean; 0 for one sample, infinite where a sample is not positive."""
    values = np.asarray(samples, dtype=np.float64)
    if values.min() <= 0:
        return math.inf
    return float(values.std(ddof=1) / values.mean()) if len(values) > 1 else 0.0


def judge(arm: Arm, ms_per_token: float, busy_ms: float | None, pct_of_read: float) -> Verdict | None:
    """What bounds an arm. None where it cannot be told: eager, and the GPU's share of the time is not known.

    Host-bound: the host launches kernel by kernel and the GPU works less than 90 % of the time. Bandwidth-bound: at
    least 70 % of the read bandwidth. Else tail-bound: kernels too small to fill the GPU, and the gaps between them.
    """
    if arm.is_slow:
        if busy_ms is None:
            return None
        if busy_ms < HOST_BOUND_BUSY * ms_per_token:
            return "host-bound"
    return "bandwidth-bound" if pct_of_read >= 100 * BANDWIDTH_BOUND else "tail-bound"


def speed_columns(
    arm: Arm,
    *,
    wall_ms: Sequence[float],
    event_ms: Sequence[float],
    steps: int,
    read: TokenBytes,
    busy_ms: float | None,
    read_gbps: float,
) -> dict[str, Any]:
    """Speed, bandwidth and verdict from the repetitions' times in ms, each of ``steps`` tokens."""
    per_token = float(np.median(wall_ms)) / steps
    event = float(np.median(event_ms)) / steps
    tok_s = [1e3 * steps / ms for ms in wall_ms]
    low, high = median_ci(tok_s)
    gbps = read.total / per_token / 1e6
    pct = 100 * gbps / read_gbps
    device = busy_ms if arm.is_slow else event
    return {
        "tok_s": float(np.median(tok_s)),
        "tok_s_low": low,
        "tok_s_high": high,
        "ms_per_token": per_token,
        "event_ms": event,
        "busy_ms": busy_ms,
        "host_gap_ms": None if device is None else max(0.0, per_token - device),
        "cv": variation(wall_ms),
        "read_gbps": gbps,
        "pct_of_read_bandwidth": pct,
        "verdict": judge(arm, per_token, busy_ms, pct),
    }


def speed_fault(
    wall_ms: Sequence[float],
    steps: int,
    read: TokenBytes,
    read_gbps: float,
    *,
    exceeds_cache: bool,
    compiled: Sequence[str],
) -> str | None:
    """Why measured times must not become a row, or None. The bandwidth gate holds only where no cache can have served
    the bytes: at least three times the L2."""
    cv = variation(wall_ms)
    if cv == math.inf:
        return "a repetition took no time: it did no work"
    if compiled:
        return f"compiled while timed: {', '.join(compiled[:3])}"
    gbps = read.total * steps / float(np.median(wall_ms)) / 1e6
    if exceeds_cache and gbps > MOST_OF_BANDWIDTH * read_gbps:
        return (
            f"{gbps:,.0f} GB/s is above {MOST_OF_BANDWIDTH:.0%} of the read bandwidth of {read_gbps:,.0f} GB/s: "
            "not all bytes were read"
        )
    if cv > MOST_CV:
        return f"coefficient of variation {cv:.1%} is above {MOST_CV:.0%}: the GPU or the host was disturbed"
    return None


def agreement_columns(agreement: Agreement | None) -> dict[str, Any]:
    """The gate's figures."""
    if agreement is None:
        return {}
    return {"top1": agreement.top1, "logit_error": agreement.logit_error}
