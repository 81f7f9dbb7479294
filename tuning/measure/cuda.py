"""A CUDA GPU through torch: graphs, events and memory."""

from __future__ import annotations

import ctypes
import platform
from collections import deque
from collections.abc import Sequence
from importlib.metadata import version
from statistics import median
from time import perf_counter

import torch

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure.device import Work
from roofgap.tuning.measure.nvml import Nvml
from roofgap.tuning.measure.state import GpuState, Watch

LEAST_LEAD_CYCLES = 1 << 19  # about 0.25 ms
MOST_LEAD_CYCLES = 1 << 28  # about 0.15 s
CYCLES_PER_S = 2e9  # no GPU's SM clock is far above it


class CudaGraph:
    """A captured graph that can be asked what it holds."""

    def __init__(self, graph: torch.cuda.CUDAGraph, works: Sequence[Work]) -> None:
        self._graph = graph
        self._works = works  # keeps every tensor that the graph reads alive
        self.nodes = node_count(graph)

    def replay(self) -> None:
        """Queues the captured work on the current stream."""
        self._graph.replay()


def node_count(graph: torch.cuda.CUDAGraph) -> int | None:
    """Nodes of a captured graph, from the driver; None where there is no libcuda (HIP)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_size_t()
    failed = driver.cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count))
    return None if failed else count.value


class CudaDevice:
    """One GPU of this process. Implements ``device.Device``.

    Args:
        index: CUDA's index; the current device by default.

    Raises:
        RoofgapError: torch sees no GPU.
    """

    def __init__(self, index: int | None = None) -> None:
        if not torch.cuda.is_available():
            raise RoofgapError(
                "timing",
                "needs a GPU that torch can use, and there is none",
                "use `roofgap inspect`, `roofgap traffic` or `roofgap tune --replay`, which need no GPU",
            )
        self.index = torch.cuda.current_device() if index is None else index
        torch.cuda.set_device(self.index)
        properties = torch.cuda.get_device_properties(self.index)
        self.properties = properties
        self.name: str = properties.name
        self.l2_bytes: int = properties.L2_cache_size
        self.sm_count: int = properties.multi_processor_count
        self.torch_device = torch.device("cuda", self.index)
        self.read_gbps: float | None = None
        self.watch = Watch()
        self.nvml = Nvml(str(properties.uuid))
        self._stream: torch.cuda.Stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._host_s: deque[float] = deque(maxlen=15)  # what queueing the latest works cost the host
        self._late_in_a_row = 0

    def free_bytes(self) -> int:
        """Device memory that can still be allocated, torch's own cache included."""
        free, _ = torch.cuda.mem_get_info(self.index)
        cached = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        return int(free + cached)

    def capture(self, works: Sequence[Work]) -> CudaGraph:
        """Captures on a side stream.

        ``torch.cuda.graph`` is not used: it empties torch's memory cache at every capture, which makes a
        sweep pay for cudaMalloc at every config.
        """
        graph = torch.cuda.CUDAGraph(keep_graph=True)  # keep_graph: the nodes can be counted
        self._stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.synchronize(self.index)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for work in works:
                    work()
            except BaseException:
                _abandon(graph)
                raise
            graph.capture_end()
        captured = CudaGraph(graph, works)
        graph.instantiate()
        torch.cuda.current_stream().wait_stream(self._stream)
        return captured

    def elapsed_us(self, work: Work, *, queued: bool) -> float | None:
        """Events around ``work``; a spinning kernel ahead of them where host cost must stay outside."""
        start, end = (_timing_event() for _ in range(2))
        if queued:
            torch.cuda._sleep(self._lead_cycles())  # type: ignore[no-untyped-call]
        start.record()
        begun = perf_counter()
        work()
        self._host_s.append(perf_counter() - begun)
        end.record()
        late = queued and bool(start.query())  # type: ignore[no-untyped-call]
        end.synchronize()
        self._late_in_a_row = self._late_in_a_row + 1 if late else 0
        return None if late else float(start.elapsed_time(end)) * 1e3

    def _lead_cycles(self) -> int:
        """How long to spin: twice what queueing takes, doubled per late attempt.

        Taken from the median of the latest works: the first replay of a graph uploads it and costs the host many times
        more, and a lead that only grew would have a sweep spend most of its time spinning.
        """
        usual = int(2 * median(self._host_s or (0.0,)) * CYCLES_PER_S)
        return min(max(usual, LEAST_LEAD_CYCLES) << self._late_in_a_row, MOST_LEAD_CYCLES)

    def synchronise(self) -> None:
        """Waits for the whole device."""
        torch.cuda.synchronize(self.index)

    def state(self) -> GpuState:
        """Through NVML."""
        return self.nvml.state()

    def versions(self) -> dict[str, str]:
        """Driver, CUDA, torch, Triton, Python and roofgap."""
        import triton

        return {
            "driver": self.nvml.driver() or "unavailable",
            "cuda": torch.version.cuda or "unavailable",
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
            "roofgap": version("roofgap"),
        }


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """Ends a capture whose work raised; the capture's own complaint would hide the cause."""
    try:
        graph.capture_end()
    except RuntimeError:
        return
