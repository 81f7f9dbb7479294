"""A scripted GPU: works run on the CPU when they are replayed, and time is what they say they spend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from roofgap.tuning.measure.device import Work
from roofgap.tuning.measure.state import GpuState, Watch


class ScriptedGraph:
    """Runs its works at replay."""

    def __init__(self, works: Sequence[Work], after_each: Work, nodes: int | None) -> None:
        self._works = tuple(works)
        self._after_each = after_each
        self.nodes = nodes

    def replay(self) -> None:
        """Runs the works in order."""
        for work in self._works:
            work()
            self._after_each()


class ScriptedDevice:
    """Implements ``device.Device`` without a GPU. A work calls ``spend(us)`` to let time pass.

    Args:
        l2_bytes: size of the imaginary L2.
        memory_bytes: imaginary free memory.
        states: readings handed out in turn; the last one for ever.
        work_us: time that every captured work takes on top of what it spends itself.
        late: how many timed calls the host is late for at first.
        noise: multiplies every time read, given the number of the reading.
        counts_nodes: whether the runtime can tell how many nodes a graph holds.
        drops: whether a captured work leaves no node in the graph, as a launch on a foreign stream does.
    """

    name = "Scripted GPU"

    def __init__(
        self,
        *,
        l2_bytes: int = 1 << 20,
        memory_bytes: int = 1 << 34,
        states: Sequence[GpuState] = (GpuState(sm_clock_mhz=1980.0, throttle=(), foreign_processes=0),),
        work_us: float = 0.0,
        late: int = 0,
        noise: Callable[[int], float] = lambda reading: 1.0,
        counts_nodes: bool = True,
        drops: Callable[[Work], bool] = lambda work: False,
    ) -> None:
        self.torch_device = torch.device("cpu")
        self.l2_bytes = l2_bytes
        self.sm_count = 132
        self.read_gbps: float | None = None
        self.watch = Watch()
        self.readings = 0
        self._memory_bytes = memory_bytes
        self._states: Iterator[GpuState] = iter(states)
        self._last_state = states[-1]
        self._work_us = work_us
        self._late = late
        self._noise = noise
        self._counts_nodes = counts_nodes
        self._drops = drops
        self._clock_us = 0.0

    def spend(self, us: float) -> None:
        """Lets device time pass."""
        self._clock_us += us

    def free_bytes(self) -> int:
        """As scripted."""
        return self._memory_bytes

    def capture(self, works: Sequence[Work]) -> ScriptedGraph:
        """Keeps what is not dropped; a dropped work runs at once, as on a foreign stream."""
        kept = []
        for work in works:
            if self._drops(work):
                work()
            else:
                kept.append(work)
        return ScriptedGraph(
            kept, lambda: self.spend(self._work_us), len(kept) if self._counts_nodes else None
        )

    def elapsed_us(self, work: Work, *, queued: bool) -> float | None:
        """What ``work`` spent, times the scripted noise."""
        start = self._clock_us
        work()
        if queued and self._late > 0:
            self._late -= 1
            return None
        self.readings += 1
        return (self._clock_us - start) * self._noise(self.readings)

    def synchronise(self) -> None:
        """Nothing is ever pending."""

    def state(self) -> GpuState:
        """The next scripted reading."""
        return next(self._states, self._last_state)

    def versions(self) -> dict[str, str]:
        """Says that nothing here is real."""
        return {"device": "scripted"}
