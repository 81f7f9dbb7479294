"""Arms timed in turns, so that what drifts hits all of them alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roofgap.e2e.busy import Busy
from roofgap.e2e.prepare import PreparedArm
from roofgap.e2e.rows import MOST_CV, variation
from roofgap.e2e.watch import CompileWatch
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure.device import Device

TAINT_REPEATS = 3


@dataclass(slots=True)
class Timed:
    """Repetitions of one arm, in ms."""

    ready: PreparedArm
    wall_ms: list[float] = field(default_factory=list)
    event_ms: list[float] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)
    busy: Busy | None = None
    fault: str | None = None
    sm_clock_mhz: float | None = None

    @property
    def tok_s(self) -> list[float]:
        """Of each repetition that took any time."""
        return [1e3 * self.ready.steps / ms for ms in self.wall_ms if ms > 0]


def interleave(timed: Sequence[Timed], device: Device, seed: int, clock: Callable[[], float]) -> None:
    """Repetitions in turns: rounds in pairs, a random order and the same backwards, so that drift of clocks hits all
    arms alike. A round that NVML taints is repeated, three times in all. An arm whose repetitions scatter by more than
    5 % gets as many once more, and only these count."""
    order, chance, repeats = list(timed), random.Random(seed), TAINT_REPEATS
    before, turn = device.state(), 0
    while any(entry.fault is None and len(entry.wall_ms) < entry.ready.repeats for entry in timed):
        if turn % 2:
            order.reverse()
        else:
            chance.shuffle(order)
        turn += 1
        active = [e for e in order if e.fault is None and len(e.wall_ms) < e.ready.repeats]
        for entry in active:
            attempt(entry, device, clock)
        after = device.state()
        taints, before = device.watch.taints(before, after), after
        if taints and repeats:
            repeats -= 1
            for entry in active:
                del entry.wall_ms[-1:], entry.event_ms[-1:]
        elif taints:
            device.watch.accept(after)
    for entry in timed:
        if entry.fault is None and variation(entry.wall_ms) > MOST_CV:
            entry.wall_ms.clear()
            entry.event_ms.clear()
            for _ in range(entry.ready.repeats):
                attempt(entry, device, clock)


def attempt(entry: Timed, device: Device, clock: Callable[[], float]) -> None:
    """One repetition: events around it on the device, the wall clock from the first launch to the last result."""
    try:
        entry.ready.reset()
        device.synchronise()
        with CompileWatch() as watch:
            start = clock()
            event_us = device.elapsed_us(entry.ready.run, queued=False)
            wall = clock() - start
        assert event_us is not None
        entry.wall_ms.append(1e3 * wall)
        entry.event_ms.append(event_us / 1e3)
        entry.compiled += watch.found
        entry.sm_clock_mhz = device.state().sm_clock_mhz
    except Exception as error:  # as in preparing: one arm's failure is its own row
        entry.fault = describe(error)


def describe(error: Exception) -> str:
    """An error as the evidence of a row, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, RoofgapError) else f"{type(error).__name__}: {text[:400]}"
