"""A measurement: how one is taken, judged and recorded."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from roofgap.tuning.measure.failure import MeasureError
from roofgap.tuning.measure.op import Prepared
from roofgap.tuning.measure.policy import Mode
from roofgap.tuning.measure.state import GpuState
from roofgap.tuning.measure.stats import Spread, settled
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Record

GATE = 1.05


class Measurement(Record):
    """Device time of one launch, every output of it checked.

    Attributes:
        latency_us: median over samples; ``p20_us`` and ``p80_us`` beside it.
        samples: replays that were timed; each is a mean over ``launches``.
        policy: key of the measurement policy.
        read_bytes: bytes of weight one launch must read.
        read_gbps: ``read_bytes / latency_us`` in GB/s (1e9).
        rel_error: largest error of any output against the reference.
        reproducible: whether all launches of all samples gave the same bits.
        labels: ``cache-resident`` (the copies together do not exceed the L2 by the policy's factor), and
            ``tainted: ...`` with each reason that repetition did not cure.
        state: clocks, power, throttling and foreign processes right after the samples.
    """

    latency_us: float = Field(gt=0)
    p20_us: float = Field(gt=0)
    p80_us: float = Field(gt=0)
    samples: int = Field(gt=0)
    mode: Mode
    policy: str
    launches: int = Field(gt=0)
    read_bytes: int
    read_gbps: float
    rel_error: float
    reproducible: bool
    labels: tuple[str, ...] = ()
    state: GpuState

    @property
    def is_tainted(self) -> bool:
        """Whether a reason to distrust the time remained."""
        return any(label.startswith("tainted") for label in self.labels)


def warm_up(prepared: Prepared) -> int:
    """Samples until the time settles; returns how many that took, one where it had settled before.

    Every output is checked already here.

    Raises:
        MeasureError: as ``Prepared.sample``.
    """
    policy, taken = prepared.policy, 0
    while taken < policy.warmup_limit:
        prepared.warmup_us.append(prepared.sample())
        taken += 1
        if settled(prepared.warmup_us, policy.warmup_window, policy.warmup_tolerance):
            break
    return taken


def measure(prepared: Prepared) -> Measurement:
    """Warms up, samples, repeats what was tainted, and refuses what the memory cannot have delivered.

    Raises:
        MeasureError: WRONG (an output), IMPLAUSIBLE (more than 105 % of the read bandwidth).
    """
    device, policy = prepared.device, prepared.policy
    warm_up(prepared)
    taints: tuple[str, ...] = ()
    for _ in range(policy.taint_repeats + 1):
        before = device.state()
        samples = [prepared.sample() for _ in range(policy.replays)]
        after = device.state()
        taints = device.watch.taints(before, after)
        if not taints:
            break
    if taints:
        device.watch.accept(after)
    return summarise(prepared, samples, after, taints)


def summarise(
    prepared: Prepared, samples: Sequence[float], state: GpuState, taints: Sequence[str] = ()
) -> Measurement:
    """The record of samples in microseconds per launch.

    Raises:
        MeasureError: IMPLAUSIBLE, as ``plausible_gbps``.
    """
    spread = Spread.of(samples)
    return Measurement(
        latency_us=spread.p50,
        p20_us=spread.p20,
        p80_us=spread.p80,
        samples=len(samples),
        mode=prepared.policy.mode,
        policy=prepared.policy.key,
        launches=prepared.launches,
        read_bytes=prepared.read_bytes,
        read_gbps=plausible_gbps(prepared, spread.p50),
        rel_error=prepared.rel_error,
        reproducible=prepared.reproducible,
        labels=(*_cache_label(prepared), *(f"tainted: {taint}" for taint in taints)),
        state=state,
    )


def plausible_gbps(prepared: Prepared, latency_us: float) -> float:
    """Bytes per time in GB/s.

    Raises:
        MeasureError: IMPLAUSIBLE; the policy is cold, the copies exceed the L2 by its factor, and the reading
            is above 105 % of the device's read bandwidth.
    """
    device = prepared.device
    read_gbps = prepared.read_bytes / latency_us / 1e3 if latency_us > 0 else float("inf")
    limit = device.read_gbps
    exceeds = prepared.policy.exceeds_cache(prepared.read_bytes, prepared.launches, device.l2_bytes)
    if latency_us <= 0 or (exceeds and limit is not None and read_gbps > GATE * limit):
        raise MeasureError(
            Status.IMPLAUSIBLE,
            f"{prepared.label}: {prepared.read_bytes:,} bytes in {latency_us:.3f} us are {read_gbps:,.0f} "
            f"GB/s, above {GATE:.0%} of the read bandwidth of {limit or 0:,.0f} GB/s",
        )
    return read_gbps


def _cache_label(prepared: Prepared) -> tuple[str, ...]:
    if not prepared.policy.is_cold:
        return ()
    exceeds = prepared.policy.exceeds_cache(prepared.read_bytes, prepared.launches, prepared.device.l2_bytes)
    return () if exceeds else ("cache-resident",)
