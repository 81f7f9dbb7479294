"""Everything between a launch and a number, on a scripted GPU: real tensors, scripted time and faults."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import get_args

import pytest
import torch

from roofgap.kernels import step
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure.arena import POISON, Arena, poison_scratch
from roofgap.tuning.measure.device import Work
from roofgap.tuning.measure.failure import Failure, MeasureError, classify
from roofgap.tuning.measure.fake import ScriptedDevice, ScriptedGraph
from roofgap.tuning.measure.interleaved import measure_interleaved
from roofgap.tuning.measure.measurement import measure, warm_up
from roofgap.tuning.measure.op import Instance, Prepared, Verdict, prepare
from roofgap.tuning.measure.policy import MeasurePolicy, Mode
from roofgap.tuning.measure.state import GpuState
from roofgap.tuning.measure.stats import tied
from roofgap.tuning.status import Status

TRUTH = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float16)
READ_BYTES = 4000
FIVE = MeasurePolicy(replays=5)
Body = Callable[[int, torch.Tensor], None]


def check(outputs: torch.Tensor) -> Verdict:
    wrong = (~torch.isclose(outputs.float(), TRUTH.float(), atol=1e-3)).sum().item()
    return Verdict(passed=not wrong, rel_error=0.0, evidence=f"{wrong} values differ" if wrong else "")


def right(_: int, out: torch.Tensor) -> None:
    out.copy_(TRUTH)


def ready(
    device: ScriptedDevice,
    body: Body = right,
    us: float = 2.0,
    policy: MeasurePolicy = FIVE,
    scratch: Sequence[torch.Tensor] = (),
) -> Prepared:
    """Eight launches of ``body`` that take ``us`` each."""

    def build(index: int, out: torch.Tensor) -> Instance:
        def run() -> None:
            device.spend(us)
            body(index, out)

        return Instance(run, tuple(scratch))

    return prepare(
        build,
        label="op",
        device=device,
        policy=policy,
        launches=8,
        read_bytes=READ_BYTES,
        shape=(1, 3),
        dtype=torch.float16,
        check=check,
    )


def small_cache(**options: object) -> ScriptedDevice:
    return ScriptedDevice(l2_bytes=8 * READ_BYTES // 3, **options)  # type: ignore[arg-type]


def failure_of(work: Callable[[], object]) -> Failure:
    with pytest.raises(MeasureError) as caught:
        work()
    return caught.value.failure


def test_a_good_op() -> None:
    measurement = measure(ready(small_cache()))
    assert measurement.latency_us == measurement.p20_us == measurement.p80_us == 2.0
    assert (measurement.samples, measurement.launches, measurement.labels) == (5, 8, ())
    assert measurement.read_gbps == 2.0
    assert measurement.reproducible
    assert measurement.state.sm_clock_mhz == 1980
    assert type(measurement).model_validate_json(measurement.model_dump_json()) == measurement


@pytest.mark.parametrize("mode", ["chained-graph", "warm-graph", "eager"])
def test_other_modes(mode: str) -> None:
    measurement = measure(ready(ScriptedDevice(), policy=MeasurePolicy(mode=mode)))  # type: ignore[arg-type]
    assert measurement.latency_us == 2.0
    assert measurement.labels == (() if mode == "warm-graph" else ("cache-resident",))


@pytest.mark.parametrize("mode", get_args(Mode))
def test_only_a_chained_graph_holds_dependent_launches(mode: Mode) -> None:
    class Asked(ScriptedDevice):
        def capture(self, works: Sequence[Work]) -> ScriptedGraph:
            captured.append(step._dependent.get())
            return super().capture(works)

    def first_launch(index: int, out: torch.Tensor) -> None:
        ran.append(step._dependent.get())
        right(index, out)

    captured: list[bool] = []
    ran: list[bool] = []
    ready(Asked(), first_launch, policy=MeasurePolicy(mode=mode))
    assert ran == [mode == "chained-graph"]
    assert captured == {"eager": [], "chained-graph": [False, True]}.get(
        mode, [False, False]
    )  # poison, then launches
    assert not step._dependent.get()


def first_time_only() -> Body:
    seen: set[int] = set()

    def body(index: int, out: torch.Tensor) -> None:
        if index not in seen or index == 0:
            seen.add(index)
            right(index, out)

    return body


def rarely_wrong() -> Body:
    calls = iter(range(10**6))

    def body(index: int, out: torch.Tensor) -> None:
        right(index, out)
        if next(calls) == 77:
            out[0, 0] = 9.0

    return body


def accumulating(_: int, out: torch.Tensor) -> None:
    out += TRUTH


def half_written(_: int, out: torch.Tensor) -> None:
    out[:, :2] = TRUTH[:, :2]


def last_instance_wrong(index: int, out: torch.Tensor) -> None:
    out.copy_(TRUTH * (2 if index == 7 else 1))


def one_past_the_end(_: int, out: torch.Tensor) -> None:
    out.as_strided((4,), (1,)).copy_(torch.tensor([1.0, -2.0, 3.0, 4.0]))


def one_before_the_start(index: int, out: torch.Tensor) -> None:
    right(index, out)
    out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(0.0)


def not_a_number(_: int, out: torch.Tensor) -> None:
    out.fill_(float("nan"))


def shared_output() -> Body:
    """All instances write the output of the first: the others' are stale."""
    outputs: dict[int, torch.Tensor] = {}

    def body(index: int, out: torch.Tensor) -> None:
        right(index, outputs.setdefault(0, out))

    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (first_time_only(), "still hold the poison"),
        (rarely_wrong(), "values differ"),
        (accumulating, "values differ"),
        (half_written, "values differ"),
        (last_instance_wrong, "values differ"),
        (one_past_the_end, "guard elements"),
        (one_before_the_start, "guard elements"),
        (not_a_number, "values differ"),
        (shared_output(), "still hold the poison"),
    ],
)
def test_every_wrong_output_is_found(body: Body, words: str) -> None:
    failure = failure_of(lambda: measure(ready(small_cache(), body, policy=MeasurePolicy(replays=20))))
    assert failure.status is Status.WRONG
    assert words in failure.evidence


def test_a_dirty_workspace_is_poisoned_every_time() -> None:
    scratch = torch.zeros(3, dtype=torch.float32)

    def trusts_zeros(_: int, out: torch.Tensor) -> None:
        out.copy_((scratch + TRUTH).half())

    def zeroes_itself(_: int, out: torch.Tensor) -> None:
        scratch.zero_()
        trusts_zeros(_, out)

    assert failure_of(lambda: ready(small_cache(), trusts_zeros, scratch=[scratch])).status is Status.WRONG
    assert measure(ready(small_cache(), zeroes_itself, scratch=[scratch])).latency_us == 2.0


def test_an_empty_graph_is_seen_by_its_nodes_and_else_by_the_poison() -> None:
    def escapes(work: object) -> bool:
        return getattr(work, "__name__", "") == "run"

    failure = failure_of(lambda: ready(small_cache(drops=escapes)))
    assert failure.status is Status.IMPLAUSIBLE
    assert "0 nodes for 8 launches" in failure.evidence
    prepared = ready(small_cache(drops=escapes, counts_nodes=False))
    assert "still hold the poison" in failure_of(lambda: measure(prepared)).evidence


def test_differing_bits_are_recorded() -> None:
    def atomic_like(index: int, out: torch.Tensor) -> None:
        out.copy_(TRUTH + (0.0005 if index == 3 else 0.0))

    assert not measure(ready(small_cache(), atomic_like)).reproducible


def test_the_gate_is_armed_only_where_the_cache_cannot_explain_it() -> None:
    cold, cached = small_cache(), ScriptedDevice()
    for device in (cold, cached):
        device.read_gbps = 2.0
    assert measure(ready(cold, us=2.0 / 1.04)).read_gbps == pytest.approx(2.08)
    failure = failure_of(lambda: measure(ready(cold, us=2.0 / 1.06)))
    assert failure.status is Status.IMPLAUSIBLE
    assert "above 105% of the read bandwidth of 2 GB/s" in failure.evidence
    assert measure(ready(cached, us=1.0)).labels == ("cache-resident",)


def test_no_time_at_all_is_implausible() -> None:
    assert failure_of(lambda: measure(ready(ScriptedDevice(), us=0.0))).status is Status.IMPLAUSIBLE


def test_a_late_host_repeats_with_fresh_outputs_and_gives_up_in_the_end() -> None:
    assert measure(ready(small_cache(late=5), accumulating_once_per_poison())).latency_us == 2.0
    assert "too slowly" in failure_of(lambda: measure(ready(small_cache(late=10**6)))).evidence


def accumulating_once_per_poison() -> Body:
    """Right on a poisoned output only: a second launch into the same one shows."""

    def body(_: int, out: torch.Tensor) -> None:
        fresh = bool((out.view(torch.int16) == POISON).all())
        out.copy_(TRUTH if fresh else 2 * TRUTH)

    return body


def clocks(*mhz: float) -> list[GpuState]:
    return [GpuState(sm_clock_mhz=value, throttle=(), foreign_processes=0) for value in mhz]


def test_a_tainted_measurement_is_repeated_and_else_reported() -> None:
    once = small_cache(states=clocks(1980, 1400, 1980, 1980))
    assert measure(ready(once)).labels == ()
    # Foreign work never leaves: reported after the repeats, with the reason.
    always = small_cache(states=[GpuState(sm_clock_mhz=1980, throttle=(), foreign_processes=1)])
    measurement = measure(ready(always, policy=MeasurePolicy(replays=2, taint_repeats=2, warmup_window=1)))
    assert measurement.labels == ("tainted: 1 foreign compute process on the GPU",)
    assert measurement.is_tainted
    assert always.readings == 2 + 3 * 2, "two to warm up, then three times two samples"


def test_warm_up_lasts_until_the_time_settles() -> None:
    device = small_cache(noise=lambda reading: max(1.0, 3.0 - 0.1 * reading))
    assert measure(ready(device)).latency_us == 2.0
    assert device.readings > 20


def test_what_is_warm_stays_warm() -> None:
    prepared = ready(small_cache())
    assert warm_up(prepared) == 6
    assert warm_up(prepared) == 1


def test_interleaving_pairs_samples_under_drift() -> None:
    device = small_cache(noise=lambda reading: 1 + reading / 200)
    pair = [ready(device, us=2.0), ready(device, us=2.1)]
    first, second = measure_interleaved(pair, 20)
    assert not isinstance(first, Failure)
    assert not isinstance(second, Failure)
    assert len(first) == len(second) == 20
    assert not tied(first, second)
    assert max(first) > min(second), "drift exceeds the difference"


def test_interleaving_order_favours_nobody() -> None:
    device, order = small_cache(), []
    counts = [[0] * 3 for _ in range(3)]

    def noted(name: int) -> Body:
        def body(index: int, out: torch.Tensor) -> None:
            if index == 0:
                order.append(name)
            right(index, out)

        return body

    trio = [ready(device, noted(name)) for name in range(3)]
    measure_interleaved(trio, 40)
    timed = order[-120:]
    for start in range(0, 120, 6):
        assert timed[start : start + 3] == timed[start + 3 : start + 6][::-1]
    for place, name in enumerate(timed):
        counts[name][place % 3] += 1
    assert all(5 <= count <= 21 for row in counts for count in row)


def test_a_contender_that_fails_leaves_the_others_running() -> None:
    device = small_cache()
    bad = ready(device, rarely_wrong())
    outcomes = measure_interleaved([ready(device), bad, ready(device)], 15)
    assert isinstance(outcomes[1], Failure)
    assert outcomes[0] == outcomes[2] == (2.0,) * 15
    assert measure_interleaved([], 5) == []


def test_a_tainted_round_is_taken_again() -> None:
    device = small_cache(states=clocks(1980, 1400, 1980))
    outcomes = measure_interleaved([ready(device)], 3)
    assert outcomes == [(2.0, 2.0, 2.0)]
    assert device.readings == 6 + 3 + 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (1, 129), (3, 5)])
def test_arena(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    arena = Arena(4, shape, dtype, torch.device("cpu"))
    assert arena.outputs.shape == (4, *shape)
    pointers = [arena.outputs[i].data_ptr() for i in range(4)]
    assert {(p - pointers[0]) % 256 for p in pointers} == {0}
    assert len(set(pointers)) == 4
    elements = arena.outputs[0].numel()
    assert arena.unwritten() == 4 * elements
    if dtype.is_floating_point and dtype is not torch.float64:
        assert arena.outputs.isnan().all()
    arena.outputs.zero_()
    assert arena.unwritten() == arena.overwritten() == 0
    for index in range(4):
        arena.outputs[index].as_strided((1,), (1,), arena.outputs[index].storage_offset() + elements).zero_()
    assert arena.overwritten() == 4
    arena.poison()
    assert arena.overwritten() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32, torch.uint8, torch.bool])
def test_scratch_of_any_type_is_poisoned(dtype: torch.dtype) -> None:
    scratch = torch.zeros(5, dtype=dtype)
    poison_scratch(scratch)
    assert not (scratch == 0).any()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Status.ILLEGAL_ACCESS),
        (RuntimeError("CUDA error: misaligned address"), Status.ILLEGAL_ACCESS),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), Status.OUT_OF_MEMORY),
        (MemoryError(), Status.OUT_OF_MEMORY),
        (RoofgapError("M=64", "is above the limit", "use gemm"), Status.UNSUPPORTED),
        (MeasureError(Status.WRONG, "2 values differ"), Status.WRONG),
        (ZeroDivisionError("division by zero"), Status.ERROR),
    ],
)
def test_exceptions_have_names(error: Exception, status: Status) -> None:
    failure = classify(error)
    assert failure.status is status
    assert failure.evidence
    assert classify(pickle.loads(pickle.dumps(error))).status is status


def test_triton_errors_have_names() -> None:
    from triton.runtime.errors import OutOfResources, PTXASError

    assert classify(OutOfResources(300_000, 232_448, "shared memory")).status is Status.OUT_OF_RESOURCES
    assert classify(PTXASError("ptxas fatal")).status is Status.COMPILE_ERROR
