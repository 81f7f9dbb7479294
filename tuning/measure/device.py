"""What measuring needs of a GPU. ``cuda.CudaDevice`` is real, ``fake.ScriptedDevice`` a script of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from roofgap.tuning.measure.state import GpuState, Watch

if TYPE_CHECKING:
    import torch

Work = Callable[[], object]


class Graph(Protocol):
    """Captured work. ``nodes`` is the number of graph nodes, or None where the runtime cannot tell."""

    nodes: int | None

    def replay(self) -> None:
        """Queues the captured work on the current stream."""


class Device(Protocol):
    """One GPU, or a script of one.

    Attributes:
        name: as the driver calls it.
        torch_device: where tensors are allocated.
        l2_bytes: size of the L2.
        sm_count: streaming multiprocessors.
        read_gbps: read-only bandwidth measured in this process, for the plausibility gate; None before that.
        watch: judges the readings of ``state``.
    """

    name: str
    torch_device: torch.device
    l2_bytes: int
    sm_count: int
    read_gbps: float | None
    watch: Watch

    def free_bytes(self) -> int:
        """Device memory that can still be allocated."""

    def capture(self, works: Sequence[Work]) -> Graph:
        """Captures the works, in order, into one graph without running them."""

    def elapsed_us(self, work: Work, *, queued: bool) -> float | None:
        """Device time between two events around ``work``.

        Args:
            work: what to time.
            queued: hold the device back until the host has queued all of ``work``: no host cost is timed.

        Returns:
            Microseconds, or None where the host was late all the same: prepare again and repeat.
        """

    def synchronise(self) -> None:
        """Waits for everything that was queued and raises what went wrong."""

    def state(self) -> GpuState:
        """Clocks, power, throttling and foreign processes now."""

    def versions(self) -> dict[str, str]:
        """Driver, CUDA, torch, Triton, Python and roofgap."""
