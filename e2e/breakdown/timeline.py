"""Kernel records of a profile: what ran when, which host call launched it, and inside which ranges that call
was made.

Read from the Chrome trace that torch.profiler exports. Its kernels carry the correlation number of the
runtime call that launched them; a graph's kernels all carry that of the graph's launch. Times of host and
device are on one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from roofgap.shapes.errors import RoofgapError

STEP_RANGE = "roofgap.step"
ROLE_RANGE = "roofgap.role."

_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_HOST_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_RANGES = frozenset({"user_annotation", "cpu_op"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel, copy or fill.

    Attributes:
        name: as the profiler has it.
        start_us: when it began.
        end_us: when it ended.
        launch_us: when the host's call began that launched it; None where the profile does not have the call.
        role: of the innermost role range around that call, None outside of any.
    """

    name: str
    start_us: float
    end_us: float
    launch_us: float | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class _Span:
    name: str
    thread: object
    start: float
    end: float


def read_steps(trace: Mapping[str, Any]) -> list[list[Kernel]]:
    """Kernels of each step, in the order in which they started.

    Args:
        trace: a parsed Chrome trace in which every step was launched inside a range called ``roofgap.step``.

    Raises:
        RoofgapError: no step, or steps without kernels: the driver may withhold records from this process.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    calls = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in _HOST_CALLS and "correlation" in event.get("args", {})
    }
    spans = [_span(event) for event in events if event.get("cat") in _RANGES]
    steps = sorted((span for span in spans if span.name == STEP_RANGE), key=lambda span: span.start)
    roles = [span for span in spans if span.name.startswith(ROLE_RANGE)]
    found: list[list[Kernel]] = [[] for _ in steps]
    for event in events:
        if event.get("cat") not in _DEVICE_WORK:
            continue
        call = calls.get(event.get("args", {}).get("correlation"))
        if call is None:
            continue
        launched = _span(call)
        index = next((i for i, step in enumerate(steps) if _holds(step, launched)), None)
        if index is None:
            continue
        start, length = float(event["ts"]), float(event.get("dur", 0.0))
        found[index].append(
            Kernel(
                name=event["name"],
                start_us=start,
                end_us=start + length,
                launch_us=launched.start,
                role=_innermost(roles, launched),
            )
        )
    if not any(found):
        raise RoofgapError(
            f"a profile of {len(steps)} steps",
            "holds no kernel that they launched",
            "check that this process may use CUPTI (profiling counters are often withheld in containers)",
        )
    return [sorted(step, key=lambda kernel: kernel.start_us) for step in found]


def _span(event: Mapping[str, Any]) -> _Span:
    start = float(event["ts"])
    return _Span(
        event["name"], (event.get("pid"), event.get("tid")), start, start + float(event.get("dur", 0.0))
    )


def _holds(outer: _Span, inner: _Span) -> bool:
    return outer.thread == inner.thread and outer.start <= inner.start <= outer.end


def _innermost(roles: Iterable[_Span], call: _Span) -> str | None:
    around = [span for span in roles if _holds(span, call)]
    if not around:
        return None
    return max(around, key=lambda span: span.start).name.removeprefix(ROLE_RANGE)
