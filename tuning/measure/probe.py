"""The stream probe: the time in which a problem's bytes can be read at all, at that size, on this GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median

from roofgap.tuning.measure.bytestream import WORD_BYTES, StreamConfig, prepare_read, random_words
from roofgap.tuning.measure.device import Device
from roofgap.tuning.measure.failure import Failure, MeasureError
from roofgap.tuning.measure.interleaved import measure_interleaved
from roofgap.tuning.measure.op import Prepared
from roofgap.tuning.measure.policy import COLD, MeasurePolicy
from roofgap.tuning.measure.stats import Spread
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Record

LOOP_FROM_BYTES = 2 << 20
MOST_PROGRAMS = 1 << 16
FINALISTS = 4
SCREEN_SAMPLES = 4
FINAL_ROUNDS = 12


class Attainable(Record):
    """Best time of a sweep of kernels which only read the bytes, cold, without arithmetic.

    Attributes:
        read_bytes: codes, scales and zeros of the problem.
        latency_us: median of the best stream; ``p20_us`` and ``p80_us`` beside it.
        config: the stream that was fastest.
        streams: how many were tried.
        beaten_by: label of a kernel that was faster than every stream; ``latency_us`` is then its time.
    """

    read_bytes: int
    latency_us: float
    p20_us: float
    p80_us: float
    config: str
    streams: int
    beaten_by: str | None = None


def stream_configs(words: int, sm_count: int) -> list[StreamConfig]:
    """The sweep for a size: few programs leave SMs idle, very many are bound by how fast they start."""
    once = [
        StreamConfig(kernel="once", warps=warps, loads=loads)
        for warps, loads in product((1, 2, 4, 8), (1, 2, 4, 8))
    ]
    fitting = [c for c in once if sm_count // 2 <= c.programs(words, sm_count) <= MOST_PROGRAMS] or once[:4]
    if words * 4 < LOOP_FROM_BYTES:
        return fitting
    loop = [
        StreamConfig(kernel="loop", warps=warps, loads=loads, programs_per_sm=programs)
        for warps, loads, programs in product((4, 8), (2, 4, 8), (2, 4, 8))
    ]
    tiles = {config: -(-words // (config.block * config.loads)) for config in loop}
    return fitting + [config for config in loop if tiles[config] > config.programs_per_sm * sm_count]


class StreamProbe:
    """Sweeps once per size and remembers. Not for the warm policy: a probe that hits L2 attains nothing.

    Args:
        device: the GPU.
        policy: a cold policy; the probe reads as cold as the kernels it is set beside.
    """

    def __init__(self, device: Device, policy: MeasurePolicy = COLD) -> None:
        self._device, self._policy = device, policy
        self._known: dict[int, Attainable] = {}

    def attainable(self, read_bytes: int) -> Attainable:
        """The attainable time for this many bytes.

        Raises:
            MeasureError: every stream failed.
            RoofgapError: not one copy of the bytes fits into the memory.
        """
        if read_bytes not in self._known:
            self._known[read_bytes] = self._sweep(read_bytes)
        return self._known[read_bytes]

    def beside(self, read_bytes: int, latency_us: float, label: str) -> Attainable:
        """The attainable time beside a kernel's: never slower than the kernel.

        A faster kernel has the probe swept again; the better sweep stays. If the kernel is faster still, its
        time is what is attainable, and ``beaten_by`` says so.
        """
        known = self.attainable(read_bytes)
        if latency_us >= known.latency_us:
            return known
        again = self._sweep(read_bytes)
        best = min(known, again, key=lambda result: result.latency_us)
        if latency_us < best.latency_us:
            best = best.model_copy(update={"latency_us": latency_us, "beaten_by": label})
        self._known[read_bytes] = best
        return best

    def _sweep(self, read_bytes: int) -> Attainable:
        device = self._device
        row = random_words(read_bytes, device.torch_device)
        configs = stream_configs(row.numel(), device.sm_count)
        launches = self._policy.launches(
            read_bytes, 2 * row.numel() * WORD_BYTES, device.l2_bytes, device.free_bytes()
        )
        copies = row.repeat(launches, 1)

        def ready(config: StreamConfig) -> Prepared:
            return prepare_read(config, copies, read_bytes, device, self._policy)

        prepared = {config: ready(config) for config in configs}
        readings = {config: _screen(stream) for config, stream in prepared.items()}
        finalists = {
            config: prepared[config] for config in sorted(readings, key=readings.__getitem__)[:FINALISTS]
        }
        for config in list(finalists):
            others = [replace(config, evict="evict_first")]
            if config.kernel == "once":
                others.append(replace(config, kernel="lane"))
            finalists.update((other, ready(other)) for other in others)
        outcomes = dict(
            zip(finalists, measure_interleaved(list(finalists.values()), FINAL_ROUNDS), strict=True)
        )
        spreads = {
            config: Spread.of(outcome)
            for config, outcome in outcomes.items()
            if not isinstance(outcome, Failure)
        }
        if not spreads:
            reasons = {str(outcome) for outcome in outcomes.values()}
            raise MeasureError(
                Status.ERROR, f"every stream of {read_bytes:,} bytes failed: {'; '.join(reasons)}"
            )
        best = min(spreads, key=lambda config: spreads[config].p50)
        return Attainable(
            read_bytes=read_bytes,
            latency_us=spreads[best].p50,
            p20_us=spreads[best].p20,
            p80_us=spreads[best].p80,
            config=best.key,
            streams=len(configs) + len(finalists) - min(FINALISTS, len(configs)),
        )


def _screen(prepared: Prepared) -> float:
    """A quick reading: the median after one sample that warms up."""
    return median([prepared.sample() for _ in range(1 + SCREEN_SAMPLES)][1:])
