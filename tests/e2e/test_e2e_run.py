"""From device to result file, on a scripted GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from roofgap.e2e import compare as comparison
from roofgap.e2e import run as runs
from roofgap.e2e.arms import choose_arms
from roofgap.e2e.decoder import Decoder
from roofgap.e2e.explain import Inspector
from roofgap.e2e.prepare import Options, Workshop
from roofgap.kernels import ops
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.results import read_results


@pytest.fixture
def device(monkeypatch) -> Any:
    found = ScriptedDevice(l2_bytes=1 << 40)  # wall clock is real here: no bandwidth gate
    monkeypatch.setattr("roofgap.tuning.measure.cuda.CudaDevice", lambda: found)
    monkeypatch.setattr(
        "roofgap.tuning.measure.bandwidth.read_bandwidth", lambda device: SimpleNamespace(gbps=100.0)
    )
    monkeypatch.setattr("roofgap.e2e.turns.MOST_CV", 1e9)
    monkeypatch.setattr("roofgap.e2e.rows.MOST_CV", 1e9)
    yield found
    ops.set_config_lookup(None)


def options(depth: int) -> Options:
    return Options(depth=depth, steps=2, repeats=2, group_size=32, gate_steps=4)


def test_rows_reach_the_file(device, tiny_source, tmp_path) -> None:
    lines: list[str] = []
    out = tmp_path / "h200" / "tiny.json"
    results, rows, warnings = runs.run_on_gpu(
        tiny_source(),
        choose_arms("bf16-eager,bf16-graph,nf4-graph"),
        [options(4), options(9)],
        progress=lines.append,
        out=out,
    )
    assert [(row.arm, row.depth) for row in rows[:2]] == [("bf16-eager", 4), ("bf16-graph", 4)]
    assert {row.depth for row in rows} == {4, 9}
    saved = read_results(out)
    assert saved.rows == results.rows
    assert saved.rows[0]["tok_s"] == rows[0].tok_s
    assert "cpu" in saved.versions
    assert "transformers" in saved.versions
    assert any("could not be profiled" in line for line in lines), "no CUPTI here, and no row lost for it"
    assert not warnings


def test_what_was_measured_survives_a_later_depth(device, tiny_source, tmp_path, monkeypatch) -> None:
    original, calls = comparison.compare, iter((True, False))

    def compare(*args: Any, **given: Any) -> Any:
        if next(calls):
            return original(*args, **given)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(runs, "compare", compare)
    out = tmp_path / "tiny.json"
    _, rows, warnings = runs.run_on_gpu(
        tiny_source(), choose_arms("bf16-graph"), [options(4), options(9)], out=out
    )
    assert [row.depth for row in rows] == [4]
    assert "depth 9 and later were not run: RuntimeError" in warnings[0]
    assert len(read_results(out).rows) == 1


def test_quality_is_scored_through_the_step_that_was_timed(tiny_source, monkeypatch) -> None:
    tokens = torch.randint(128, (260,), generator=torch.Generator().manual_seed(3))
    text = SimpleNamespace(tokens=tokens, bytes_of=lambda first, count: count)
    monkeypatch.setattr("roofgap.e2e.quality.evaluate.load_tokens", lambda source, probe: text)
    source, scripted = tiny_source(), ScriptedDevice()
    ready = Workshop(source, scripted, options(4)).prepare(choose_arms("bf16-graph")[0])
    inspector = Inspector(source, scripted, options(4), quality=True)
    inspector(ready)
    found = inspector._qualities[ready.arm.build]
    assert found["perplexity"] > 1
    assert abs(found["delta_nll"]) < 0.05, "bf16 against fp32 of the same weights"
    assert "note" not in found
    original = Decoder.forced
    monkeypatch.setattr(
        Decoder, "forced", lambda self, step, given: original(self, step, given).roll(1, dims=-1)
    )
    other = Inspector(source, scripted, options(4), quality=True)
    other(ready)
    assert "decode and window path differ" in other._qualities[ready.arm.build]["note"]
