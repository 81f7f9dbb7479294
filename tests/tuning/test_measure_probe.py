"""Streams, probe and ceilings: kernels in the interpreter, time from a script."""

from __future__ import annotations

from functools import reduce
from operator import xor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure import bandwidth, probe
from roofgap.tuning.measure.bytestream import StreamConfig, prepare_copy, prepare_read, random_words, xor_last
from roofgap.tuning.measure.failure import MeasureError
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.measurement import measure
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.probe import StreamProbe, stream_configs
from roofgap.tuning.status import Status

POLICY = MeasurePolicy(replays=2, min_launches=2, warmup_window=1)
CPU = torch.device("cpu")
SIZE = 1024


@pytest.fixture
def short_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams and two final rounds: the interpreter is slow."""
    streams = [StreamConfig(kernel="once", warps=warps, loads=1) for warps in (1, 2)]
    monkeypatch.setattr(probe, "stream_configs", lambda words, sm_count: streams)
    monkeypatch.setattr(probe, "FINAL_ROUNDS", 2)
    monkeypatch.setattr(probe, "SCREEN_SAMPLES", 1)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40))
def test_xor_last(values: list[int]) -> None:
    assert int(xor_last(torch.tensor(values, dtype=torch.int32))) == reduce(xor, values)


def test_words_are_padded_and_never_look_like_poison() -> None:
    words = random_words(1000, CPU)
    assert words.numel() == 256
    assert words.min() >= 0
    assert words.max() < 1 << 30
    assert torch.equal(words, random_words(1000, CPU))


@pytest.mark.parametrize("size_bytes", [64, 2048, 6_080])
@pytest.mark.parametrize(
    "config",
    [
        StreamConfig(kernel="once", warps=1, loads=2),
        StreamConfig(kernel="once", warps=2, loads=1, evict="evict_first"),
        StreamConfig(kernel="lane", warps=1, loads=2),
        StreamConfig(kernel="loop", warps=1, loads=2, programs_per_sm=1),
    ],
    ids=lambda config: config.key,
)
def test_every_word_is_read(config: StreamConfig, size_bytes: int) -> None:
    device = ScriptedDevice(work_us=1.0)
    device.sm_count = 3
    copies = random_words(size_bytes, CPU).repeat(2, 1)
    assert measure(prepare_read(config, copies, size_bytes, device, POLICY)).latency_us == 1.0
    copies[1, 0 if config.kernel == "lane" else -1] ^= 1 << 7
    with pytest.raises(MeasureError, match="not read whole"):
        measure(prepare_read(config, copies, size_bytes, device, POLICY))


def test_a_copy_is_compared() -> None:
    device = ScriptedDevice(work_us=1.0)
    words = random_words(9000, CPU)
    config = StreamConfig(kernel="copy", warps=1, loads=2)
    assert measure(prepare_copy(config, words, device, POLICY)).latency_us == 1.0


@pytest.mark.parametrize("mib", [0.2, 1.2, 7, 28, 120, 135, 640])
def test_the_sweep_is_rich_at_every_size(mib: float) -> None:
    words = int(mib * 2**20) // 64 * 16
    configs = stream_configs(words, 132)
    assert len(set(configs)) == len(configs) >= 6
    assert {config.kernel for config in configs} == ({"once"} if mib < 2 else {"once", "loop"})
    for config in configs:
        programs = config.programs(words, 132)
        assert 66 <= programs <= 1 << 16
        assert config.kernel == "once" or programs * config.block * config.loads < words, "a loop must loop"


def test_a_tiny_size_has_streams_too() -> None:
    assert stream_configs(16, 132)


@pytest.mark.usefixtures("short_sweep")
def test_the_probe_takes_the_best_and_remembers() -> None:
    device = ScriptedDevice(l2_bytes=300, work_us=1.0)
    prober = StreamProbe(device, POLICY)
    found = prober.attainable(SIZE)
    assert (found.latency_us, found.read_bytes, found.beaten_by) == (1.0, SIZE, None)
    readings = device.readings
    assert prober.attainable(SIZE) is found
    assert device.readings == readings


@pytest.mark.usefixtures("short_sweep")
def test_the_probe_is_never_slower_than_a_kernel() -> None:
    device = ScriptedDevice(l2_bytes=300, work_us=1.0)
    prober = StreamProbe(device, POLICY)
    assert prober.beside(SIZE, 1.5, "v2").latency_us == 1.0
    readings = device.readings
    beaten = prober.beside(SIZE, 0.9, "v4")
    assert device.readings > readings, "swept again before it gives in"
    assert (beaten.latency_us, beaten.beaten_by) == (0.9, "v4")
    assert prober.attainable(SIZE) == beaten


@pytest.mark.usefixtures("short_sweep")
def test_a_second_sweep_that_is_faster_wins() -> None:
    device = ScriptedDevice(l2_bytes=300, work_us=1.0)
    prober = StreamProbe(device, POLICY)
    prober.attainable(SIZE)
    device._work_us = 0.5
    again = prober.beside(SIZE, 0.9, "v4")
    assert (again.latency_us, again.beaten_by) == (0.5, None)


@pytest.mark.usefixtures("short_sweep")
def test_a_probe_faster_than_the_memory_is_no_probe() -> None:
    device = ScriptedDevice(l2_bytes=300, work_us=1.0)
    device.read_gbps = 0.9
    with pytest.raises(MeasureError, match="every stream of 1,024 bytes failed"):
        StreamProbe(device, POLICY).attainable(SIZE)


def test_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bandwidth, "POLICY", MeasurePolicy(min_launches=1, max_launches=1, replays=1, warmup_window=1)
    )
    device = ScriptedDevice(l2_bytes=64, work_us=2.0)
    read = bandwidth.read_bandwidth(device, wanted_bytes=SIZE)
    assert (read.moved_bytes, read.gbps) == (SIZE, pytest.approx(0.512))
    copied = bandwidth.copy_bandwidth(device, wanted_bytes=SIZE)
    assert (copied.moved_bytes, copied.gbps) == (2 * SIZE, pytest.approx(1.024))
    monkeypatch.setattr(bandwidth, "FLOOR_LAUNCHES", 16)
    floor = bandwidth.launch_floor(device)
    assert (floor.latency_us, floor.launches) == (2.0, 16)


def test_the_buffer_exceeds_the_cache_or_is_refused() -> None:
    roomy = ScriptedDevice(l2_bytes=60 << 20, memory_bytes=140 << 30)
    assert bandwidth.buffer_bytes(roomy) == 2 << 30
    large_cache = ScriptedDevice(l2_bytes=512 << 20, memory_bytes=140 << 30)
    assert bandwidth.buffer_bytes(large_cache) == 4 << 30
    with pytest.raises(RoofgapError, match="8 x L2"):
        bandwidth.buffer_bytes(ScriptedDevice(l2_bytes=60 << 20, memory_bytes=1 << 30))


def test_an_empty_floor_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "FLOOR_LAUNCHES", 16)
    with pytest.raises(MeasureError) as caught:
        bandwidth.launch_floor(ScriptedDevice(work_us=1.0, drops=lambda work: True))
    assert caught.value.failure.status is Status.IMPLAUSIBLE
