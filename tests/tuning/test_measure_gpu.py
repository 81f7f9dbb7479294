"""The real device: graphs, events, NVML, kernels. Its verdicts must agree with the scripted device's."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import get_args

import pytest
import torch

from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.bandwidth import launch_floor, read_bandwidth
from roofgap.tuning.measure.bench import Contender, bench
from roofgap.tuning.measure.bytestream import StreamConfig, prepare_copy, prepare_read, random_words
from roofgap.tuning.measure.cuda import CudaDevice
from roofgap.tuning.measure.device import Device
from roofgap.tuning.measure.failure import Failure, MeasureError, classify
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.gap import Ceilings
from roofgap.tuning.measure.interleaved import measure_interleaved
from roofgap.tuning.measure.measurement import Measurement, measure
from roofgap.tuning.measure.op import Instance, Prepared, Verdict, prepare
from roofgap.tuning.measure.policy import COLD, MeasurePolicy, Mode
from roofgap.tuning.measure.probe import StreamProbe
from roofgap.tuning.measure.workload import Workload, measure_torch, measure_variant
from roofgap.tuning.status import Status

pytestmark = pytest.mark.gpu

FEW = MeasurePolicy(replays=5, taint_repeats=0)
PROBLEM = Problem(n=512, k=1024)
Body = Callable[[int, torch.Tensor, torch.Tensor], object]


@pytest.fixture(scope="module")
def gpu() -> CudaDevice:
    return CudaDevice()


@pytest.fixture(autouse=True)
def _memory_is_given_back() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def ready(device: Device, body: Body, read_bytes: int = 4096, policy: MeasurePolicy = FEW) -> Prepared:
    """Eight launches of ``body(index, truth, out)``."""
    truth = torch.arange(1, 6, dtype=torch.float16, device=device.torch_device)[None]

    def check(outputs: torch.Tensor) -> Verdict:
        wrong = int((~torch.isclose(outputs, truth)).sum())
        return Verdict(passed=wrong == 0, evidence=f"{wrong} values differ")

    def build(index: int, out: torch.Tensor) -> Instance:
        return Instance(lambda: _timed(device, body, index, truth, out))

    return prepare(
        build,
        label="op",
        device=device,
        policy=policy,
        launches=8,
        read_bytes=read_bytes,
        shape=(1, 5),
        dtype=torch.float16,
        check=check,
    )


def _timed(device: Device, body: Body, index: int, truth: torch.Tensor, out: torch.Tensor) -> None:
    if isinstance(device, ScriptedDevice):
        device.spend(2.0)
    body(index, truth, out)


def right(_: int, truth: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(truth, 1, out=out)


def accumulating(_: int, truth: torch.Tensor, out: torch.Tensor) -> None:
    out.add_(truth)


def half_written(_: int, truth: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(truth[:, :2], 1, out=out[:, :2])


def overrun(index: int, truth: torch.Tensor, out: torch.Tensor) -> None:
    right(index, truth, out)
    out.as_strided((1,), (1,), out.storage_offset() + 5).zero_()


def one_wrong(index: int, truth: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(truth, 2 if index == 7 else 1, out=out)


def others_stale(index: int, truth: torch.Tensor, out: torch.Tensor) -> None:
    if index == 0:
        right(index, truth, out)
    else:
        truth.add(1)


@pytest.mark.parametrize("body", [right, accumulating, half_written, overrun, one_wrong, others_stale])
def test_real_and_scripted_device_agree(gpu: CudaDevice, body: Body) -> None:
    def verdict(device: Device) -> str:
        try:
            return "ok" if measure(ready(device, body)).latency_us > 0 else "no time"
        except MeasureError as error:
            return error.failure.evidence

    assert verdict(gpu) == verdict(ScriptedDevice())


def test_a_graph_is_counted(gpu: CudaDevice) -> None:
    out = torch.empty(4, device=gpu.torch_device)
    assert gpu.capture([]).nodes == 0
    assert gpu.capture([lambda: out.fill_(1.0)] * 7).nodes == 7


def test_a_launch_on_a_foreign_stream_leaves_an_empty_graph(gpu: CudaDevice) -> None:
    foreign = torch.cuda.Stream()

    def escaping(index: int, truth: torch.Tensor, out: torch.Tensor) -> None:
        with torch.cuda.stream(foreign):
            right(index, truth, out)

    with pytest.raises(MeasureError, match="0 nodes for 8 launches"):
        ready(gpu, escaping)


def test_without_a_node_count_the_poison_finds_the_empty_graph(
    gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roofgap.tuning.measure.cuda.node_count", lambda graph: None)
    foreign = torch.cuda.Stream()

    def escaping(index: int, truth: torch.Tensor, out: torch.Tensor) -> None:
        with torch.cuda.stream(foreign):
            right(index, truth, out)

    with pytest.raises(MeasureError, match="still hold the poison"):
        measure(ready(gpu, escaping))


def test_an_error_while_capturing_is_the_one_that_is_seen(gpu: CudaDevice) -> None:
    def broken() -> None:
        raise ZeroDivisionError("while capturing")

    with pytest.raises(ZeroDivisionError, match="while capturing"):
        gpu.capture([broken])
    assert measure(ready(gpu, right)).latency_us > 0, "the device works on"


def test_a_late_host_is_noticed(gpu: CudaDevice) -> None:
    assert gpu.elapsed_us(lambda: time.sleep(0.3), queued=True) is None
    elapsed = gpu.elapsed_us(lambda: torch.cuda._sleep(1 << 20), queued=True)
    assert elapsed is not None
    assert elapsed > 100


def test_other_streams_may_be_current(gpu: CudaDevice) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        assert measure(ready(gpu, right)).reproducible


def test_the_gate_refuses_what_memory_cannot_deliver(gpu: CudaDevice) -> None:
    prepared = ready(gpu, right, read_bytes=1 << 30)
    gpu.read_gbps = 4000.0
    try:
        with pytest.raises(MeasureError, match="above 105%") as caught:
            measure(prepared)
    finally:
        gpu.read_gbps = None
    assert caught.value.failure.status is Status.IMPLAUSIBLE


def test_readings_or_named_gaps(gpu: CudaDevice) -> None:
    state = gpu.state()
    for name in (
        "sm_clock_mhz",
        "memory_clock_mhz",
        "power_w",
        "temperature_c",
        "throttle",
        "foreign_processes",
    ):
        assert (getattr(state, name) is None) == (name in state.unavailable)
    assert gpu.versions()["torch"] == torch.__version__


@pytest.mark.parametrize("size_bytes", [64, 200_000, 7_000_064])
@pytest.mark.parametrize(
    "config",
    [
        StreamConfig(kernel="once", warps=1, loads=8),
        StreamConfig(kernel="once", warps=8, loads=1, evict="evict_first"),
        StreamConfig(kernel="loop", warps=4, loads=4, programs_per_sm=2),
    ],
    ids=lambda config: config.key,
)
def test_every_word_is_read(gpu: CudaDevice, config: StreamConfig, size_bytes: int) -> None:
    copies = random_words(size_bytes, gpu.torch_device).repeat(3, 1)
    measure(prepare_read(config, copies, size_bytes, gpu, FEW))
    copies[2, -1] ^= 1
    with pytest.raises(MeasureError, match="not read whole"):
        measure(prepare_read(config, copies, size_bytes, gpu, FEW))


def test_copies_are_compared(gpu: CudaDevice) -> None:
    words = random_words(1 << 20, gpu.torch_device)
    measure(prepare_copy(StreamConfig(kernel="copy", warps=4, loads=2), words, gpu, FEW))


def test_ceilings_and_probe(gpu: CudaDevice) -> None:
    read = read_bandwidth(gpu)
    assert read.moved_bytes >= 8 * gpu.l2_bytes
    assert launch_floor(gpu).latency_us > 0
    prober = StreamProbe(gpu)
    found = prober.attainable(PROBLEM.weight_bytes)
    assert found.streams >= 8
    assert prober.beside(PROBLEM.weight_bytes, found.latency_us / 10, "x").latency_us <= found.latency_us / 10


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_variant_is_measured(gpu: CudaDevice, name: str, mode: Mode) -> None:
    variant = get_variant(name)
    workload = Workload(PROBLEM, gpu)
    refusal = variant.supports(PROBLEM)
    if refusal:
        pytest.skip(refusal)
    policy = replace(FEW, mode=mode)
    if policy.is_chained and torch.cuda.get_device_capability(gpu.torch_device) < (9, 0):
        pytest.skip("needs programmatic dependent launch: sm_90 or later")
    outcome = measure_variant(workload, variant, variant.default_config(PROBLEM), policy)
    assert isinstance(outcome, Measurement), outcome
    if mode in ("cold-graph", "chained-graph"):
        assert outcome.launches * outcome.read_bytes >= 3 * gpu.l2_bytes
        copies = workload.packed(variant.layout, outcome.launches)
        assert len({copy.codes.data_ptr() for copy in copies}) == len(copies) >= outcome.launches


@pytest.mark.parametrize(
    "problem", [PROBLEM, replace(PROBLEM, m=16, bias=True), replace(PROBLEM, x_dtype="bf16")]
)
def test_the_dense_baseline(gpu: CudaDevice, problem: Problem) -> None:
    assert isinstance(measure_torch(Workload(problem, gpu), FEW), Measurement)


def test_out_of_memory_has_a_name(gpu: CudaDevice) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8, device=gpu.torch_device)
    assert classify(caught.value).status is Status.OUT_OF_MEMORY


def test_memory_returns_to_its_baseline(gpu: CudaDevice) -> None:
    variant = get_variant("v2")

    def once() -> int:
        measure_variant(Workload(PROBLEM, gpu), variant, variant.default_config(PROBLEM), FEW)
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    first = once()
    assert max(once() for _ in range(3)) <= 1.05 * first + (1 << 20)


def test_bench_rows(gpu: CudaDevice) -> None:
    gpu.read_gbps = read_bandwidth(gpu).gbps
    try:
        contenders = [
            Contender(get_variant("v2"), get_variant("v2").default_config(PROBLEM)),
            Contender(None, None),
        ]
        rows = bench(Workload(PROBLEM, gpu), contenders, FEW, Ceilings.of(gpu, COLD))
    finally:
        gpu.read_gbps = None
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert all(isinstance(gap := row["attainable_gap"], float) and gap >= 1.0 for row in rows)


def test_interleaved_on_the_device(gpu: CudaDevice) -> None:
    outcomes = measure_interleaved([ready(gpu, right), ready(gpu, right)], 6)
    assert all(not isinstance(outcome, Failure) and len(outcome) == 6 for outcome in outcomes)
