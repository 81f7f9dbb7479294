"""How long the GPU works on a token: kernel intervals from the profiler, counted once where they overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

PROFILED_STEPS = 3


@dataclass(frozen=True, slots=True)
class Busy:
    """Per token.

    Attributes:
        busy_ms: time in which at least one kernel or copy runs.
        launches: kernels and copies.
    """

    busy_ms: float
    launches: float


def covered_us(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def profile_steps(step: Callable[[], object], steps: int = PROFILED_STEPS) -> Busy | None:
    """Profiles a few tokens; None where the driver hands out no kernel records (a container may withhold CUPTI)."""
    import torch
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as records:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    intervals = [
        (event.time_range.start, event.time_range.end)
        for event in records.events() or ()
        if event.device_type == DeviceType.CUDA
    ]
    if not intervals:
        return None
    return Busy(busy_ms=covered_us(intervals) / 1e3 / steps, launches=len(intervals) / steps)
