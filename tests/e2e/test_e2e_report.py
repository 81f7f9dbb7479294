"""Plans, published tables, llama-bench files, and the forms a comparison is printed in."""

from __future__ import annotations

import json

import pytest

from roofgap.e2e.arms import choose_arms
from roofgap.e2e.llama_bench import read_llama_bench
from roofgap.e2e.plan import plan
from roofgap.e2e.published_table import load_published, recompute
from roofgap.e2e.report import jsonl, markdown
from roofgap.e2e.rows import Row, judge, median_ci, ratio_ci, variation
from roofgap.e2e.stream_arm import tensor_bytes
from roofgap.shapes.accounting import WeightFormat, honest
from roofgap.shapes.device import load_device
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import load_manifest


def test_published_table_is_reproduced_digit_for_digit() -> None:
    table = load_published("rtx-3060")
    ours = [row for row in recompute(table) if row.accounting == "published"]
    for printed, row in zip(table.rows, ours, strict=True):
        assert round(row.weight_gb, 3) == printed.printed_weight_gb
        assert round(row.ceiling_tok_s, 1) == printed.printed_ceiling_tok_s
        if printed.tok_s is not None:
            assert row.achieved_gbps is not None
            assert row.pct_of_bandwidth is not None
            assert round(row.achieved_gbps, 1) == printed.printed_gbps
            assert round(row.pct_of_bandwidth, 1) == printed.printed_pct


@pytest.mark.parametrize(
    ("arm", "ceiling", "pct"),
    [("bf16", 102.9, 30.4), ("bitsandbytes NF4", 256.5, 10.0), ("own W4 (v3)", 268.5, 9.5)],
)
def test_published_table_under_the_honest_accounting(arm, ceiling, pct) -> None:
    rows = [row for row in recompute(load_published("rtx-3060")) if row.accounting == "honest"]
    row = next(row for row in rows if row.arm == arm and row.model == "qwen2.5-1.5b")
    assert round(row.ceiling_tok_s, 1) == ceiling
    assert row.pct_of_bandwidth is not None
    assert round(row.pct_of_bandwidth, 1) == pct
    assert row.pct_of_bandwidth == pytest.approx(row.pct_of_ceiling)  # one byte count for both


def test_an_unknown_table_lists_what_there_is() -> None:
    with pytest.raises(RoofgapError, match="rtx-3060"):
        load_published("rtx-3070")


def make_plan(model: str, device: str, arms: str = "all"):
    rows = plan(
        load_manifest(model),
        choose_arms(arms),
        load_device(device),
        depth=512,
        steps=128,
        group_size=128,
        zero_mode="asym",
    )
    return {row.arm: row for row in rows}


def test_the_3060_is_served() -> None:
    rows = make_plan("qwen2.5-1.5b", "rtx-3060")
    assert all(row.fits and row.peak_gb < 12 for row in rows.values())
    assert rows["bf16-graph"].ceiling_tok_s == pytest.approx(104.4, abs=0.1)
    assert rows["w4-v3-graph"].ceiling_tok_s == pytest.approx(278, abs=1)
    assert rows["w4-v3-fused-head-graph"].ceiling_tok_s == pytest.approx(396, abs=1)
    assert rows["w4-v3-fused-graph"].matrix_launches == 4 * 28 + 1
    assert rows["bf16-eager"].bound == "host"
    assert rows["bf16-graph"].bound == "bandwidth"


def test_a_plan_says_what_does_not_fit_and_what_launches_bind() -> None:
    assert not make_plan("qwen2.5-7b", "rtx-3060")["bf16-graph"].fits
    assert make_plan("qwen2.5-7b", "h200")["bf16-graph"].fits
    orch = make_plan("orch-fusion", "h200")
    assert orch["w4-v3-graph"].bound == "launches"
    assert (
        orch["w4-v3-graph"].floor_tok_s
        < orch["w4-v3-fused-graph"].floor_tok_s
        < orch["w4-v3-graph"].ceiling_tok_s
    )


@pytest.mark.parametrize("model", ["qwen2.5-1.5b", "orch-fusion", "qwen2.5-7b"])
def test_the_stream_reads_every_byte_of_a_token(model) -> None:
    manifest, weights = load_manifest(model).fused(), WeightFormat("w4")
    read = honest(manifest, weights, weights, context=577)
    sizes = tensor_bytes(manifest, weights, weights, read)
    assert sum(sizes) == read.total
    assert len(sizes) == 5 * manifest.architecture.layers + 1
    assert min(sizes) > 0


@pytest.mark.parametrize(
    ("arm", "busy", "pct", "verdict"),
    [
        ("bf16-eager", 1.0, 10.0, "host-bound"),
        ("bf16-eager", 9.5, 80.0, "bandwidth-bound"),
        ("bf16-eager", None, 10.0, None),
        ("bf16-graph", 5.0, 40.0, "tail-bound"),
        ("bf16-graph", None, 71.0, "bandwidth-bound"),
        ("hf-generate-bf16", 1.0, 2.0, "host-bound"),
    ],
)
def test_verdicts(arm, busy, pct, verdict) -> None:
    assert judge(choose_arms(arm)[0], 10.0, busy, pct) == verdict


def test_intervals() -> None:
    samples = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8]
    low, high = median_ci(samples)
    assert 99 <= low <= 100 <= high <= 101
    assert median_ci(samples) == (low, high), "seeded"
    low, high = ratio_ci([2 * sample for sample in samples], samples)
    assert low < 2 < high
    assert variation([1.0]) == 0
    assert variation([1.0, 1.1]) == pytest.approx(0.0673, abs=1e-3)


LLAMA = {
    "build_commit": "abc1234", "gpu_info": "NVIDIA GeForce RTX 3060", "model_type": "qwen2 1.5B Q4_0",
    "model_size": 1_000_000_000, "n_params": 1543714304, "n_prompt": 0, "n_gen": 128, "n_depth": 512,
    "type_k": "f16", "type_v": "f16", "avg_ts": 150.0, "stddev_ts": 1.0, "samples_ts": [149.0, 150.0, 151.0],
}  # fmt: skip


def test_llama_bench_stands_beside(tmp_path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps([LLAMA | {"n_prompt": 512, "n_gen": 0}, LLAMA]))
    (row,) = read_llama_bench(path, load_manifest("qwen2.5-1.5b"), device_read_gbps=323.9)
    assert (row.arm, row.depth, row.n_gen, row.tok_s) == ("llama.cpp qwen2 1.5B Q4_0", 512, 128, 150.0)
    assert row.bytes_per_token == 1e9 + 28672 * (512 + 64)
    assert row.read_gbps == pytest.approx((1e9 + 28672 * 576) * 150 / 1e9)
    assert row.pct_of_read_bandwidth == pytest.approx(100 * (row.read_gbps or 0) / 323.9)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("not json", "not readable JSON"),
        ("{}", "must be a list of tests"),
        ("[]", "no generation test"),
        (json.dumps([{"n_gen": 128}]), "model_type"),
    ],
)
def test_other_files_are_refused(tmp_path, text, rule) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RoofgapError, match=rule):
        read_llama_bench(tmp_path / "x.json", load_manifest("qwen2.5-1.5b"))


ROWS = [
    Row(
        arm="w4-v3-graph", model="qwen2.5-1.5b", depth=512, weights="w4 g128 asym", head="bf16", n_gen=128, repeats=10,
        tok_s=700.0, tok_s_low=690.0, tok_s_high=710.0, ms_per_token=1 / 0.7, cv=0.01, code_bytes=6e8, scale_bytes=2e7,
        head_bytes=4e8, kv_bytes=1e7, bytes_per_token=1.1e9, read_gbps=770.0, pct_of_read_bandwidth=18.0, speedup=1.8,
        speedup_low=1.7, speedup_high=1.9, possible_speedup=2.6, verdict="tail-bound",
    ),
    Row(arm="nf4-graph", model="qwen2.5-1.5b", depth=512, status="skipped", evidence="bitsandbytes | is not installed"),
]  # fmt: skip


def test_markdown_can_be_pasted() -> None:
    lines = markdown(ROWS).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1, "a bar inside a cell breaks the table"
    assert "1.80 (1.70-1.90) of 2.60" in lines[2]
    assert "skipped: bitsandbytes" in lines[3]


def test_json_lines_speak_llama_bench() -> None:
    first, second = (json.loads(line) for line in jsonl(ROWS).splitlines())
    assert (first["n_gen"], first["n_depth"], first["avg_ts"]) == (128, 512, 700.0)
    assert first["stddev_ts"] == pytest.approx(7.0)
    assert first["avg_ns"] == pytest.approx(128 / 700 * 1e9, rel=1e-6)
    assert first["arm"] == "w4-v3-graph"
    assert second["avg_ts"] is None
    assert second["status"] == "skipped"


def test_cells_are_flat_and_known() -> None:
    cells = ROWS[0].cells()
    assert {
        "arm",
        "model",
        "depth",
        "tok_s",
        "ms_per_token",
        "read_gbps",
        "pct_of_read_bandwidth",
        "status",
    } <= set(cells)
    assert None not in cells.values()
    assert Row.model_validate(cells) == ROWS[0]
