"""The GPU's clocks, power, throttling and other users around a measurement, and what taints a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from roofgap.tuning.trial import Record

SPOILING = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap"}
)
CLOCK_DROP = 0.10


class GpuState(Record):
    """One reading. A field that the driver does not offer is None, and ``unavailable`` says why."""

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None
    foreign_processes: int | None = None
    unavailable: Mapping[str, str] = Field(default_factory=dict)


@dataclass(slots=True)
class Watch:
    """Judges readings against the steady clock of this run.

    The steady clock is the highest SM clock seen after work. Where a tainted measurement was repeated in
    vain, the clock that the GPU really holds becomes the new steady one (``accept``): a GPU that is
    legitimately slow must not discard for ever.
    """

    steady_mhz: float | None = None

    def taints(self, before: GpuState, after: GpuState) -> tuple[str, ...]:
        """Why what ran between two readings cannot be trusted; empty if it can."""
        found = []
        clock = after.sm_clock_mhz
        if clock is not None:
            floor = (1 - CLOCK_DROP) * max(self.steady_mhz or 0.0, before.sm_clock_mhz or 0.0)
            if clock < floor:
                found.append(f"SM clock {clock:.0f} MHz, more than {CLOCK_DROP:.0%} under the steady clock")
            else:
                self.steady_mhz = max(self.steady_mhz or 0.0, clock)
        reasons = SPOILING.intersection(before.throttle or ()) | SPOILING.intersection(after.throttle or ())
        # A power cap without a lower clock changed nothing that was timed.
        if not found:
            reasons -= {"sw_power_cap"}
        found += [f"throttled: {reason}" for reason in sorted(reasons)]
        foreign = max(before.foreign_processes or 0, after.foreign_processes or 0)
        if foreign:
            found.append(f"{foreign} foreign compute process{'es' if foreign > 1 else ''} on the GPU")
        return tuple(found)

    def accept(self, state: GpuState) -> None:
        """Takes the clock of ``state`` as the steady one."""
        if state.sm_clock_mhz is not None:
            self.steady_mhz = state.sm_clock_mhz
