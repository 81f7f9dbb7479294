"""Where a step's time goes, from synthetic timelines: every microsecond is accounted for, once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import fsum
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roofgap.e2e.breakdown.account import Breakdown, break_down
from roofgap.e2e.breakdown.collect import collect, ranges
from roofgap.e2e.breakdown.draw import draw
from roofgap.e2e.breakdown.isolate import isolated_us, role_bytes
from roofgap.e2e.breakdown.roles import ROLES, assign, module_roles, role_by_name
from roofgap.e2e.breakdown.timeline import ROLE_RANGE, STEP_RANGE, Kernel, read_steps
from roofgap.e2e.breakdown.waterfall import CEILING, make_waterfall
from roofgap.shapes.accounting import WeightFormat, honest
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import load_manifest


def kernels(
    *rows: tuple[str, float, float], launch: float | None = 0.0, role: str | None = None
) -> list[Kernel]:
    return [
        Kernel(name=name, start_us=start, end_us=end, launch_us=launch, role=role)
        for name, start, end in rows
    ]


def event(
    cat: str, name: str, ts: float, dur: float, *, tid: int = 1, correlation: int | None = None
) -> dict[str, Any]:
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def a_trace() -> dict[str, Any]:
    """An eager step with ranges, then a replayed graph of two kernels; a kernel outside any step."""
    annotation = "user_annotation"
    return {
        "traceEvents": [
            {"ph": "M", "name": "process_name"},
            event(annotation, STEP_RANGE, 0, 100),
            event(annotation, ROLE_RANGE + "attention", 10, 60),
            event(annotation, ROLE_RANGE + "q", 20, 20),
            event("cuda_driver", "cuLaunchKernelEx", 25, 2, correlation=1),
            event("cuda_runtime", "cudaLaunchKernel", 50, 2, correlation=2),
            event("cuda_runtime", "cudaMemcpyAsync", 80, 2, correlation=3),
            event("gpu_memcpy", "Memcpy DtoD", 200, 1, tid=7, correlation=3),
            event("kernel", "gemv", 150, 10, tid=7, correlation=1),
            event("kernel", "softmax", 170, 5, tid=7, correlation=2),
            event(annotation, STEP_RANGE, 300, 10),
            event("cuda_runtime", "cudaGraphLaunch", 301, 5, correlation=4),
            event("kernel", "gemv", 310, 10, tid=7, correlation=4),
            event("kernel", "softmax", 322, 5, tid=7, correlation=4),
            event(annotation, ROLE_RANGE + "q", 300, 10, tid=2),  # another thread's
            event("cuda_runtime", "cudaLaunchKernel", 400, 2, correlation=5),
            event("kernel", "stray", 410, 5, tid=7, correlation=5),
        ]
    }


def test_a_trace_is_read_by_steps_and_ranges() -> None:
    eager, graph = read_steps(a_trace())
    assert [(kernel.name, kernel.role) for kernel in eager] == [
        ("gemv", "q"),  # the innermost range counts
        ("softmax", "attention"),
        ("Memcpy DtoD", None),
    ]
    assert [(kernel.name, kernel.role, kernel.launch_us) for kernel in graph] == [
        ("gemv", None, 301.0),
        ("softmax", None, 301.0),
    ]
    assert (graph[0].start_us, graph[0].end_us) == (310.0, 320.0)


def test_a_profile_without_kernels_says_why() -> None:
    trace = {"traceEvents": [event("user_annotation", STEP_RANGE, 0, 100)]}
    with pytest.raises(RoofgapError, match="CUPTI"):
        read_steps(trace)


def test_a_replay_takes_the_roles_of_the_eager_step() -> None:
    template = [
        *kernels(("gemv", 0, 1), role="q"),
        *kernels(("softmax", 1, 2), role="attention"),
        *kernels(("gemv", 2, 3), role="o"),
        *kernels(("copy", 3, 4)),
    ]
    step = kernels(("gemv", 0, 1), ("softmax", 1, 2), ("gemv", 2, 3), ("copy", 3, 4))
    found, by_name = assign(step, template)
    assert [kernel.role for kernel in found] == ["q", "attention", "o", "other"]
    assert by_name == 0


def test_kernels_that_the_eager_step_lacks_go_by_their_names() -> None:
    template = [*kernels(("gemv", 0, 1), role="q"), *kernels(("gemv", 1, 2), role="o")]
    step = kernels(("gemv", 0, 1), ("triton_red_rms_norm", 1, 2), ("decode_attention_split_kernel", 2, 3))
    found, by_name = assign(step, template)  # one gemv of two: which one cannot be told
    assert [kernel.role for kernel in found] == ["other", "norms", "attention"]
    assert by_name == 3


def test_names_and_modules_tell_roles() -> None:
    assert role_by_name("pytorch_flash::flash_fwd_splitkv_kernel") == "attention"
    assert role_by_name("add_rms_norm_kernel") == "norms"
    assert role_by_name("swiglu_kernel") == "other"
    paths = ["", "model", "model.layers.0", "model.layers.0.self_attn", "model.layers.0.self_attn.q_proj",
             "model.layers.0.input_layernorm", "model.norm", "lm_head"]  # fmt: skip
    assert module_roles(paths, {"model.layers.0.self_attn.q_proj": "q", "lm_head": "head"}) == {
        "model.layers.0.self_attn": "attention",
        "model.layers.0.input_layernorm": "norms",
        "model.norm": "norms",
        "model.layers.0.self_attn.q_proj": "q",
        "lm_head": "head",
    }


def test_gaps_are_the_hosts_while_the_next_kernel_is_not_launched() -> None:
    first = [
        Kernel(name="a", start_us=10, end_us=20, launch_us=5, role="q"),
        Kernel(name="b", start_us=30, end_us=40, launch_us=15, role="o"),  # queued long before: idle 10
        Kernel(
            name="c", start_us=60, end_us=70, launch_us=55, role="other"
        ),  # launched 15 late, then 5 on its way
    ]
    second = [Kernel(name="a", start_us=100, end_us=110, launch_us=90, role="q")]
    found = break_down([first, second])
    assert (found.host_us, found.idle_us) == (15 + 20, 10 + 5 + 10)
    assert {role.role: role.us for role in found.roles} == {"q": 10, "o": 10, "other": 10}
    assert found.total_us == 90


def test_overlapping_time_is_counted_once() -> None:
    step = kernels(("a", 0, 10), ("b", 4, 12), ("c", 5, 6))
    step = [
        Kernel(**{**vars_of(kernel), "role": role})
        for kernel, role in zip(step, ("q", "k", "v"), strict=True)
    ]
    found = break_down([step, kernels(("a", 20, 30))])
    assert {role.role: role.us for role in found.roles} == {"q": 10, "k": 2, "v": 0}
    assert found.busy_us + found.idle_us + found.host_us == found.total_us == 20


def vars_of(kernel: Kernel) -> dict[str, Any]:
    return {name: getattr(kernel, name) for name in ("name", "start_us", "end_us", "launch_us", "role")}


spans = st.lists(
    st.tuples(
        st.sampled_from(ROLES), st.integers(0, 30), st.integers(0, 40), st.none() | st.integers(-50, 400)
    ),
    min_size=1,
    max_size=12,
)


@given(st.lists(spans, min_size=2, max_size=4))
def test_every_microsecond_has_one_owner(shape: Sequence[Any]) -> None:
    now, steps = 0, []
    for rows in shape:
        step = []
        for role, wait, length, launch in rows:
            now += wait
            step.append(Kernel(name=role, start_us=now, end_us=now + length, launch_us=launch, role=role))
        steps.append(step)
    found = break_down(steps)
    assert found.busy_us + found.idle_us + found.host_us == pytest.approx(found.total_us, abs=1e-6)
    assert found.idle_us >= 0
    assert found.host_us >= 0
    assert found.total_us * found.steps == steps[-1][0].start_us - steps[0][0].start_us


def test_bandwidth_by_role_in_the_model_and_alone() -> None:
    step = [
        Kernel(name="g", start_us=0, end_us=4, role="q"),
        Kernel(name="g", start_us=4, end_us=8, role="q"),
    ]
    found = break_down([step, kernels(("g", 10, 12))], read_bytes={"q": 8e6}, isolated_us={"q": 5.0})
    (role,) = found.roles
    assert (role.launches, role.us) == (2, 8)
    assert role.in_model_gbps == pytest.approx(1000)
    assert role.isolated_gbps == pytest.approx(1600)


@pytest.mark.parametrize("steps", [[], [kernels(("a", 0, 1))], [kernels(("a", 0, 1)), []]])
def test_too_little_to_break_down(steps: list[list[Kernel]]) -> None:
    with pytest.raises(RoofgapError, match="two"):
        break_down(steps)


MANIFEST = load_manifest("qwen2.5-1.5b").fused()
W4, DENSE = WeightFormat("w4"), WeightFormat()
READ = honest(MANIFEST, W4, DENSE, context=512)


def a_breakdown(isolated: bool = True) -> Breakdown:
    now, rows = 1.0, []
    for role, length in (("qkv", 5.0), ("attention", 6.5), ("o", 4.0), ("norms", 3.0), ("gate_up", 11.0),
                         ("other", 2.0), ("down", 9.0), ("head", 130.0)):  # fmt: skip
        rows.append(Kernel(name=role, start_us=now, end_us=now + length, launch_us=0.0, role=role))
        now += length + 0.7
    end = [Kernel(name="qkv", start_us=now + 20, end_us=now + 21, launch_us=now + 12, role="qkv")]
    alone = {"qkv": 4.0, "o": 3.5, "gate_up": 9.0, "down": 8.0, "head": 128.0} if isolated else None
    return break_down([rows, end], read_bytes=role_bytes(MANIFEST, W4, DENSE), isolated_us=alone)


@given(measured=st.floats(1.0, 1e6), gbps=st.floats(10.0, 1e4), isolated=st.booleans())
def test_the_waterfall_sums_to_what_was_measured(measured: float, gbps: float, isolated: bool) -> None:
    found = make_waterfall(measured, gbps, READ, a_breakdown(isolated))
    assert fsum(term.us for term in found.terms) == pytest.approx(measured, rel=1e-12)
    assert found.ceiling_us == pytest.approx(READ.total / gbps / 1e3)


def test_the_waterfall_names_its_causes() -> None:
    broken = a_breakdown()
    found = {term.name: term.us for term in make_waterfall(250.0, 4000.0, READ, broken).terms}
    linears = (READ.codes + READ.scales + READ.zeros + READ.biases + READ.head) / 4e6
    assert found["tails"] == pytest.approx(152.5 - linears)
    assert found["in-model loss"] == pytest.approx(159.0 - 152.5)
    assert found["attention"] == pytest.approx(6.5 - READ.kv / 4e6)
    assert found["host"] == pytest.approx(12.7)
    assert found["gaps"] == pytest.approx(7 * 0.7 + 8)
    assert found["unprofiled"] == pytest.approx(250.0 - broken.total_us)
    assert tuple(list(found)[: len(CEILING)]) == CEILING
    together = {term.name: term.us for term in make_waterfall(250.0, 4000.0, READ, a_breakdown(False)).terms}
    assert together["tails"] == pytest.approx(159.0 - linears)
    assert together["in-model loss"] == pytest.approx(0)


def test_the_waterfall_answers_in_a_sentence() -> None:
    found = make_waterfall(1000.0, 4000.0, READ, a_breakdown())
    assert found.summary.startswith(f"1,000.0 tok/s is {found.attained:.1%} of the")
    assert "host 13 us (1%)" in found.summary
    assert found.without("host") == pytest.approx(1e6 / (1000.0 - 12.7))


def test_a_time_that_was_not_measured_is_refused() -> None:
    for measured, gbps in ((0.0, 100.0), (10.0, -1.0)):
        with pytest.raises(RoofgapError, match="positive"):
            make_waterfall(measured, gbps, READ, a_breakdown())


def test_role_bytes_are_the_accounts_terms() -> None:
    found = role_bytes(MANIFEST, W4, DENSE, kv_bytes=READ.kv, norm_bytes=READ.norms)
    assert sum(found.values()) == pytest.approx(READ.total - READ.embedding)
    assert set(found) == {"qkv", "o", "gate_up", "down", "head", "attention", "norms"}


def test_equal_problems_are_measured_alone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from roofgap.kernels.registry import get_variant
    from roofgap.shapes.problem import Problem
    from roofgap.tuning.measure.fake import ScriptedDevice
    from roofgap.tuning.measure.workload import Workload

    made = []
    kept = Workload.__init__

    def noted(self: Workload, problem: Problem, device: Any) -> None:
        made.append(problem)
        kept(self, problem, device)

    monkeypatch.setattr(Workload, "__init__", noted)
    small, large = Problem(n=8, k=64, group_size=32), Problem(n=16, k=64, group_size=32)
    pairs: Any = [
        (SimpleNamespace(role=role, count=count), problem)
        for role, count, problem in (("k", 5, small), ("v", 5, small), ("o", 2, large), ("down", 1, large))
    ]
    device = ScriptedDevice(l2_bytes=64, work_us=3.0)
    own = get_variant("v2")
    found = isolated_us(pairs, {"k": None, "v": None, "o": own}, device)
    assert found == {"k": 15.0, "v": 15.0, "o": 6.0}
    assert made == [small, large]


def test_figures_are_drawn_twice_alike(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    broken = a_breakdown()
    found = make_waterfall(250.0, 4000.0, READ, broken)
    first, second, image = (
        draw(found, broken, tmp_path / name, title="w4") for name in ("a.svg", "b.svg", "c.png")
    )
    assert first.read_bytes() == second.read_bytes()
    assert "in-model loss" in first.read_text()
    assert image.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg", "c.png"]
    with pytest.raises(RoofgapError, match=r"\.svg or \.png"):
        draw(found, broken, tmp_path / "d.pdf", title="w4")


def test_ranges_nest_as_the_modules_do(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict(
        {"self_attn": torch.nn.Sequential(torch.nn.Linear(2, 2)), "norm": torch.nn.LayerNorm(2)}
    )
    wrapped = torch.nn.ModuleDict({"layer": model})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as records:
        with ranges(wrapped, {"layer.self_attn.0": "q"}):
            model["norm"](model["self_attn"](torch.ones(1, 2)))
        model["norm"](torch.ones(1, 2))  # after the ranges are gone
    records.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = [
        each
        for each in events
        if str(each["name"]).startswith(ROLE_RANGE) and each.get("cat") == "user_annotation"
    ]
    assert [each["name"].removeprefix(ROLE_RANGE) for each in found] == ["attention", "q", "norms"]
    outer, inner, _ = found
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


@pytest.mark.gpu
def test_a_graphs_kernels_are_told_apart() -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    from roofgap.e2e.decoder import Decoder
    from roofgap.e2e.swap import find_linears, role_of
    from roofgap.tuning.measure.cuda import CudaDevice

    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda().eval().requires_grad_(False)
    decoder = Decoder(model, 64)
    decoder.prefill(torch.zeros((1, 8), dtype=torch.int64, device="cuda"))
    graph = decoder.capture(CudaDevice())
    found = collect(
        graph.replay,
        decoder.rewind,
        model=model,
        linears={path: role_of(path) for path in find_linears(model)},
        eager_step=decoder.step,
    )
    counts = {role.role: role.launches for role in found.roles}
    assert set(counts) == {"q", "k", "v", "o", "gate", "up", "down", "head", "attention", "norms", "other"}
    assert found.by_name <= 0.2 * found.launches


@pytest.mark.gpu
def test_matrices_are_measured_alone() -> None:
    from roofgap.kernels.registry import get_variant
    from roofgap.tuning.measure.cuda import CudaDevice

    problems = [pair for pair in MANIFEST.problems(x_dtype="bf16") if pair[0].role in ("o", "qkv")]
    found = isolated_us(problems, {"o": get_variant("v2"), "qkv": None}, CudaDevice())
    assert set(found) == {"o", "qkv"}
    assert all(us > 28 for us in found.values())  # 28 layers of at least a launch each
