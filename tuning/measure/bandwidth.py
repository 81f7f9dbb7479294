"""The ceilings of one GPU, timed: read-only and copy bandwidth, and the launch floor."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from roofgap.kernels.step import Launch, dependent_launches
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure import stream
from roofgap.tuning.measure.bytestream import (
    StreamConfig,
    prepare_copy,
    prepare_read,
    random_words,
)
from roofgap.tuning.measure.cuda import CudaDevice
from roofgap.tuning.measure.device import Device
from roofgap.tuning.measure.failure import MeasureError
from roofgap.tuning.measure.measurement import warm_up
from roofgap.tuning.measure.op import Prepared
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.stats import Spread
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Record

L2_FACTOR = 8
WANTED_BYTES = 2 << 30
FLOOR_LAUNCHES = 512
# The buffer alone exceeds the L2 by far: one launch per sample is cold.
POLICY = MeasurePolicy(min_launches=1, max_launches=1, replays=15)


class Bandwidth(Record):
    """Median over samples of the fastest stream, in GB/s (1e9); the quantiles are of the same samples."""

    gbps: float
    p20_gbps: float
    p80_gbps: float
    moved_bytes: int
    config: str


class LaunchFloor(Record):
    """Time of one empty kernel among many in a CUDA graph."""

    latency_us: float
    p20_us: float
    p80_us: float
    launches: int


def buffer_bytes(device: Device, wanted_bytes: int | None = None) -> int:
    """Bytes of the buffer that is streamed: at least 8 x L2 and, where memory allows, ``wanted_bytes``.

    Raises:
        RoofgapError: the free memory does not hold 8 x L2 three times (source, output, checking).
    """
    least, room = L2_FACTOR * device.l2_bytes, device.free_bytes() // 4
    if room < least:
        raise RoofgapError(
            f"{device.free_bytes():,} free bytes of device memory",
            f"must hold a buffer of {L2_FACTOR} x L2 = {least:,} bytes four times over",
            "free memory on the GPU",
        )
    return min(max(least, wanted_bytes or WANTED_BYTES), room)


def read_bandwidth(device: Device, wanted_bytes: int | None = None) -> Bandwidth:
    """Read-only bandwidth: best of a sweep of streams whose every word is accounted for.

    Raises:
        MeasureError: a stream was not read whole.
        RoofgapError: too little memory.
    """
    words = random_words(buffer_bytes(device, wanted_bytes), device.torch_device)
    configs = [
        *(StreamConfig(kernel="once", warps=w, loads=n) for w, n in product((4, 8), (4, 8))),
        *(
            StreamConfig(kernel="loop", warps=8, loads=n, programs_per_sm=p)
            for n, p in product((4, 8), (4, 8))
        ),
    ]
    size_bytes = words.numel() * words.itemsize
    prepared = ((config, prepare_read(config, words[None], size_bytes, device, POLICY)) for config in configs)
    return _best(prepared, size_bytes)


def copy_bandwidth(device: Device, wanted_bytes: int | None = None) -> Bandwidth:
    """Copy bandwidth, bytes read plus bytes written, by a kernel.

    Raises:
        MeasureError: a copy differs from its source.
        RoofgapError: too little memory.
    """
    words = random_words(buffer_bytes(device, wanted_bytes), device.torch_device)
    configs = [StreamConfig(kernel="copy", warps=w, loads=n) for w, n in product((4, 8), (1, 2, 4))]
    prepared = ((config, prepare_copy(config, words, device, POLICY)) for config in configs)
    return _best(prepared, 2 * words.numel() * words.itemsize)


def _best(prepared: Iterable[tuple[StreamConfig, Prepared]], moved_bytes: int) -> Bandwidth:
    results = []
    for config, stream_op in prepared:
        warm_up(stream_op)
        spread = Spread.of([stream_op.sample() for _ in range(POLICY.replays)])
        results.append(
            Bandwidth(
                gbps=moved_bytes / spread.p50 / 1e3,
                p20_gbps=moved_bytes / spread.p80 / 1e3,
                p80_gbps=moved_bytes / spread.p20 / 1e3,
                moved_bytes=moved_bytes,
                config=config.key,
            )
        )
    return max(results, key=lambda result: result.gbps)


def launch_floor(device: Device, samples: int = 20, *, chained: bool = False) -> LaunchFloor:
    """Times an empty kernel inside a graph, ``chained`` as programmatic dependent launches.

    Raises:
        MeasureError: the graph holds less than all launches, or the host is always late.
    """
    launch = Launch(kernel=stream.empty, grid=(1,), args={}, num_warps=1)
    with dependent_launches(chained):
        launch.run()
        graph = device.capture([launch.run] * FLOOR_LAUNCHES)
    if graph.nodes is not None and graph.nodes < FLOOR_LAUNCHES:
        raise MeasureError(Status.IMPLAUSIBLE, f"{graph.nodes} nodes for {FLOOR_LAUNCHES} empty launches")
    readings = (device.elapsed_us(graph.replay, queued=True) for _ in range(3 * samples))
    times = [reading / FLOOR_LAUNCHES for reading in readings if reading is not None][-samples:]
    if len(times) < samples:
        raise MeasureError(Status.ERROR, "the host queues too slowly to time an empty kernel")
    spread = Spread.of(times)
    return LaunchFloor(latency_us=spread.p50, p20_us=spread.p20, p80_us=spread.p80, launches=FLOOR_LAUNCHES)


def open_device(index: int | None = None) -> CudaDevice:
    """The GPU, with its read bandwidth measured in this process so that the plausibility gate is armed.

    Two leases of one GPU model differ by several per cent, hence no figure from a file.

    Raises:
        RoofgapError: there is no GPU, or too little memory is free.
    """
    device = CudaDevice(index)
    device.read_gbps = read_bandwidth(device).gbps
    return device
