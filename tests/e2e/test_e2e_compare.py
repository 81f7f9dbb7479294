"""The protocol on a scripted GPU: turns, gates, failures that hide nothing, and a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from roofgap.e2e import compare as comparison
from roofgap.e2e import prepare, turns
from roofgap.e2e.arms import Arm, choose_arms
from roofgap.e2e.busy import Busy, covered_us
from roofgap.e2e.decoder import Decoder
from roofgap.e2e.projections import DecodeLinear
from roofgap.e2e.reference import compare_logits
from roofgap.e2e.swap import Built, build_model
from roofgap.kernels.formats.registry import LAYOUTS
from roofgap.kernels.linear import W4Linear
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.state import GpuState

READ_GBPS = 1.0
PACE_US = 500.0


class Bench:
    """Runs comparisons of a tiny model; every step takes ``PACE_US``, or what ``pace`` says."""

    def __init__(self, source: Any, patch: pytest.MonkeyPatch) -> None:
        self.source, self.patch = source, patch
        self.device = ScriptedDevice(l2_bytes=1 << 10)
        self.pace: Callable[[int], float] = lambda step: PACE_US
        self.steps = 0
        original = Decoder.step

        def step(decoder: Decoder) -> None:
            self.steps += 1
            self.device.spend(self.pace(self.steps))
            original(decoder)

        patch.setattr(Decoder, "step", step)
        patch.setattr(  # the interpreter would take seconds a token; what is tested here is the protocol
            W4Linear,
            "forward",
            lambda self, x, *, residual, swiglu: torch.nn.functional.linear(
                x, self.dense(x.dtype), self.bias
            ),
        )

    def run(self, arms: str, **given: Any) -> comparison.Comparison:
        options = {"depth": 8, "steps": 4, "repeats": 6, "group_size": 32, "gate_steps": 12} | given.pop(
            "options", {}
        )
        return comparison.compare(
            self.source,
            choose_arms(arms),
            self.device,
            prepare.Options(**options),
            **{
                "read_gbps": lambda: READ_GBPS,
                "profile": lambda step: Busy(busy_ms=0.1, launches=3.0),
                "clock": lambda: self.device._clock_us / 1e6,
            }
            | given,
        )


@pytest.fixture
def bench(tiny_source, monkeypatch) -> Bench:
    return Bench(tiny_source(), monkeypatch)


def test_rows_add_up(bench) -> None:
    found = bench.run("bf16-eager,bf16-graph,w4-v3-fused-graph,w4-v3-fused-head-graph")
    rows = {row.arm: row for row in found.rows}
    assert [row.arm for row in found.rows] == [
        "bf16-eager",
        "bf16-graph",
        "w4-v3-fused-graph",
        "w4-v3-fused-head-graph",
    ]
    for row in found.rows:
        assert row.status == "ok", row.evidence
        assert row.tok_s == pytest.approx(1e6 / PACE_US)
        assert row.tok_s_low == pytest.approx(row.tok_s)
        parts = (row.code_bytes, row.scale_bytes, row.head_bytes, row.kv_bytes, row.other_bytes)
        assert sum(parts) == row.bytes_per_token
        assert row.read_gbps == pytest.approx(row.bytes_per_token * row.tok_s / 1e9)
        assert row.pct_of_read_bandwidth == pytest.approx(100 * row.read_gbps / READ_GBPS)
        assert row.ceiling_tok_s == pytest.approx(READ_GBPS * 1e9 / row.bytes_per_token)
        assert row.speedup == pytest.approx(1.0)
        assert row.top1 == 1.0
        assert row.logit_error < 0.05
    assert rows["bf16-eager"].verdict == "host-bound"
    assert rows["bf16-eager"].host_gap_ms == pytest.approx(0.4)
    assert rows["bf16-graph"].host_gap_ms == pytest.approx(0.0)
    best = max(("bf16-eager", "bf16-graph"), key=lambda name: rows[name].tok_s)
    w4 = rows["w4-v3-fused-head-graph"]
    assert w4.possible_speedup == pytest.approx(rows[best].bytes_per_token / w4.bytes_per_token)
    assert w4.possible_speedup > rows["w4-v3-fused-graph"].possible_speedup > 1
    assert not found.warnings


def shifted_by_a_group(*args: Any, **given: Any) -> Built:
    """Builds, then moves the scales of layer 1 by one group, whatever the layout."""
    built = build_model(*args, **given)
    for path, module in built.linears.items():
        if ".layers.1." in path and isinstance(module, DecodeLinear):
            layout = LAYOUTS[module.layout]
            weight = layout.unpack(module.packed)
            moved = replace(weight, scales=weight.scales.roll(1, dims=1))
            module.scales.copy_(layout.pack(moved).scales)
    return built


def test_a_planted_fault_is_refused_before_anything_is_timed(bench, monkeypatch) -> None:
    monkeypatch.setattr(prepare, "build_model", shifted_by_a_group)
    timed: list[str] = []
    original = turns.attempt

    def attempt(entry: turns.Timed, *rest: Any) -> None:
        timed.append(entry.ready.arm.name)
        original(entry, *rest)

    monkeypatch.setattr(turns, "attempt", attempt)
    good, bad = bench.run("bf16-graph,w4-v2-graph").rows
    assert good.status == "ok"
    assert bad.status == "error"
    assert "top-1 agreement" in bad.evidence
    assert bad.tok_s is None
    assert set(timed) == {"bf16-graph"}


def test_the_planted_fault_shows_through_the_kernel(tiny_source, monkeypatch) -> None:
    """The same, through v4 in the interpreter: what is scored is the step that would be timed."""
    options = prepare.Options(depth=4, steps=1, repeats=2, group_size=32, gate_steps=2)
    (arm,) = choose_arms("w4-v4-eager")
    source = tiny_source(vocab=64)
    ready = prepare.Workshop(source, ScriptedDevice(), options).prepare(arm)
    assert ready.agreement is not None
    assert ready.agreement.logit_error < 0.03
    monkeypatch.setattr(prepare, "build_model", shifted_by_a_group)
    with pytest.raises(RoofgapError, match=r"w4-v4-eager: (top-1|logits differ)"):
        prepare.Workshop(source, ScriptedDevice(), options).prepare(arm)


def test_one_failing_arm_hides_no_other(bench, monkeypatch) -> None:
    original = build_model

    def broken(source: Any, build: Any, *rest: Any, **given: Any) -> Built:
        if build.variant == "v3":
            raise RuntimeError("CUDA error: an illegal memory access")
        return original(source, build, *rest, **given)

    monkeypatch.setattr(prepare, "build_model", broken)
    rows = {row.arm: row for row in bench.run("w4-v3-graph,bf16-graph,w4-v2-graph,nf4-graph").rows}
    assert rows["w4-v3-graph"].status == "error"
    assert "illegal memory access" in rows["w4-v3-graph"].evidence
    assert rows["bf16-graph"].status == rows["w4-v2-graph"].status == "ok"
    assert rows["nf4-graph"].status in ("skipped", "ok")


def test_an_arm_that_fails_while_timed_keeps_the_others(bench, monkeypatch) -> None:
    original = Decoder.rewind
    calls = {"left": 40}

    def rewind(decoder: Decoder) -> None:
        if hasattr(decoder.model.model.layers[0].self_attn, "qkv_proj"):
            calls["left"] -= 1
            if calls["left"] < 0 or calls["left"] == 33:
                raise RuntimeError("gone")
        original(decoder)

    monkeypatch.setattr(Decoder, "rewind", rewind)
    joined, plain = bench.run("w4-v3-fused-graph,bf16-graph").rows
    assert (joined.status, plain.status) == ("error", "ok")
    assert "gone" in joined.evidence


@pytest.mark.parametrize(
    ("pace", "read_gbps", "evidence"),
    [
        pytest.param(lambda step: 1e-3, 1.0, "above 105%", id="too-fast"),
        pytest.param(
            lambda step: PACE_US * (1 + (step // 4) % 3), 1.0, "coefficient of variation", id="noisy"
        ),
        pytest.param(lambda step: 0.0, 1.0, "took no time", id="no-work"),
    ],
)
def test_gates_turn_a_row_into_an_error(bench, pace, read_gbps, evidence) -> None:
    bench.pace = pace
    (row,) = bench.run("bf16-graph", read_gbps=lambda: read_gbps).rows
    assert row.status == "error"
    assert evidence in row.evidence
    assert row.tok_s is None


def test_the_bandwidth_gate_spares_what_a_cache_can_hold(bench) -> None:
    bench.pace = lambda step: 1e-3
    bench.device.l2_bytes = 1 << 30
    (row,) = bench.run("bf16-graph").rows
    assert row.status == "ok"
    assert row.pct_of_read_bandwidth > 105


def test_compiling_inside_the_timer_is_an_error(bench, monkeypatch) -> None:
    from triton import knobs

    original = bench.pace

    def pace(step: int) -> Any:
        hook = knobs.runtime.jit_post_compile_hook
        if hook is not None:
            hook(repr="late_kernel")
        return original(step)

    bench.pace = pace
    (row,) = bench.run("bf16-graph").rows
    assert row.status == "error"
    assert "compiled while timed: kernel late_kernel" in row.evidence


def test_a_tainted_round_is_repeated(tiny_source, monkeypatch) -> None:
    bench = Bench(tiny_source(), monkeypatch)
    calm = GpuState(sm_clock_mhz=1980.0, throttle=(), foreign_processes=0)
    hot = GpuState(sm_clock_mhz=900.0, throttle=("hw_thermal_slowdown",), foreign_processes=0)
    readings = iter([calm, calm, hot])  # before, after the repetition, after the round
    monkeypatch.setattr(bench.device, "state", lambda: next(readings, calm))
    (row,) = bench.run("bf16-graph").rows
    assert row.repeats == 6


def test_arms_that_do_not_fit_together_run_in_batches(bench) -> None:
    source, options = bench.source, prepare.Options(group_size=32)
    arms = choose_arms("bf16-eager,bf16-graph,w4-v2-graph,w4-v3-graph")
    dense = 2 * source.manifest.parameters
    together = comparison.batches(source, arms, options, 100 * dense)
    apart = comparison.batches(source, arms, options, int(2.1 * dense))
    names = [[arm.name for arm in batch] for batch in apart]
    assert len(together) == 1
    assert names == [["bf16-eager", "bf16-graph"], ["w4-v2-graph", "w4-v3-graph"]]
    bench.device._memory_bytes = int(2.1 * dense / comparison.MEMORY_SHARE)
    built: dict[Any, Any] = {}
    assert all(
        row.status == "ok" for row in bench.run("bf16-graph,w4-v2-graph,w4-v3-graph", built=built).rows
    )
    assert not built, "models of a batch must be freed before the next"


def test_a_second_depth_uses_the_same_models(bench) -> None:
    built: dict[Any, Any] = {}
    bench.run("bf16-graph,w4-v2-graph", built=built)
    before = dict(built)
    rows = bench.run("bf16-graph,w4-v2-graph", built=built, options={"depth": 20}).rows
    assert all(row.depth == 20 and row.status == "ok" for row in rows)
    assert {build: id(model) for build, model in built.items()} == {
        build: id(model) for build, model in before.items()
    }


def test_drift_of_the_bandwidth_is_said(bench) -> None:
    readings = iter([1.0, 1.1])
    found = bench.run("bf16-graph", read_gbps=lambda: next(readings))
    assert found.read_gbps == (1.0, 1.1)
    assert "read bandwidth was" in found.warnings[0]


def test_inspection_sees_the_live_arm_and_cannot_spoil_the_row(bench) -> None:
    seen: list[tuple[str, dict[str, str]]] = []

    def look(ready: prepare.PreparedArm) -> None:
        assert ready.built is not None
        assert ready.step is not None
        ready.step()
        seen.append((ready.arm.name, ready.built.roles()))
        if ready.arm.name == "bf16-graph":
            raise ValueError("no profiler")

    found = bench.run("bf16-graph,w4-v3-fused-graph", inspect=look)
    assert [name for name, _ in seen] == ["bf16-graph", "w4-v3-fused-graph"]
    assert set(seen[1][1].values()) == {"qkv", "o", "gate_up", "down", "head"}
    assert all(row.status == "ok" for row in found.rows)
    assert "bf16-graph could not be inspected" in found.warnings[0]


def test_generate_is_timed_as_users_run_it(bench, monkeypatch) -> None:
    original = Decoder.generate

    def generate(decoder: Decoder, tokens: torch.Tensor, count: int) -> torch.Tensor:
        bench.device.spend(count * PACE_US)
        return original(decoder, tokens, count)

    monkeypatch.setattr(Decoder, "generate", generate)
    (row,) = bench.run("hf-generate-bf16").rows
    assert row.status == "ok", row.evidence
    assert "as users run it" in row.note
    assert row.top1 is None


def test_slow_arms_get_fewer_tokens() -> None:
    eager, graph = choose_arms("bf16-eager,bf16-graph")
    options = prepare.Options(steps=128, repeats=10)
    assert (options.steps_of(graph), options.repeats_of(graph)) == (128, 10)
    assert (options.steps_of(eager), options.repeats_of(eager)) == (16, 5)
    short = prepare.Options(steps=4, repeats=2)
    assert (short.steps_of(eager), short.repeats_of(eager)) == (4, 2)
    with pytest.raises(RoofgapError):
        prepare.Options(depth=0)


def test_agreement_counts_decided_positions_only() -> None:
    torch.manual_seed(0)
    want = torch.randn(50, 100)
    same = compare_logits(want + 1e-3 * torch.randn_like(want), want)
    assert same.fault is None
    assert same.top1 == 1.0
    assert 0 < same.decided < 50
    swapped = want.clone()
    swapped[10] = want[10].flip(0)
    one = compare_logits(swapped, want)
    assert one.first_flip in (10, None)
    noise = compare_logits(want + 0.3 * torch.randn_like(want), want)
    assert noise.fault is not None
    assert compare_logits(torch.full_like(want, float("nan")), want).fault is not None


def test_overlapping_kernels_are_counted_once() -> None:
    assert covered_us([(0, 10), (5, 12), (20, 30), (21, 22)]) == 22
    assert covered_us([]) == 0


def test_the_name_of_every_arm_is_unique() -> None:
    arms: list[Arm] = choose_arms("all")
    assert len({(arm.build, arm.loop, arm.pdl) for arm in arms}) == len(arms), "two arms are the same thing"
