from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from roofgap.cli import main as cli
from roofgap.shapes.device import load_device


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Runs one command line: (exit code, stdout, stderr)."""

    def call(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["roofgap", *line.split()])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return call


def document(run: Any, line: str) -> Any:
    code, out, err = run(f"{line} --json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_first_write_up(run: Any) -> None:
    shown = document(
        run, "roofline qwen2.5-1.5b orch-fusion --accounting published --bandwidth 323.88 --context 2048"
    )
    qwen, orch = (model["arms"] for model in shown["models"])
    assert qwen["bf16"]["rounded"] == {"weights_gb": 3.087, "ceiling_tok_s": 102.9}
    assert qwen["int4"]["rounded"] == {"weights_gb": 0.772, "ceiling_tok_s": 411.8}
    assert qwen["swapped"]["rounded"] == {"weights_gb": 1.263, "ceiling_tok_s": 245}
    assert orch["bf16"]["rounded"] == {"weights_gb": 0.550, "ceiling_tok_s": 539.7}
    assert orch["int4"]["rounded"] == {"weights_gb": 0.137, "ceiling_tok_s": 2158.8}
    assert qwen["bf16"]["weights_bytes"] == 3_087_428_608
    assert (shown["bandwidth_gbps"], shown["bandwidth_source"], shown["context"]) == (323.88, "given", 2048)


def test_published_table_prints_the_digits(run: Any) -> None:
    code, out, _ = run("roofline qwen2.5-1.5b orch-fusion --accounting published --bandwidth 323.88")
    assert code == 0
    for figure in (
        "3.087",
        "102.9",
        "0.772",
        "411.8",
        "1.263",
        " 245 ",
        "0.550",
        "539.7",
        "0.137",
        "2,158.8",
    ):
        assert figure in out, figure


def test_honest_is_the_default(run: Any) -> None:
    shown = document(run, "roofline qwen2.5-1.5b --bandwidth 323.9")
    w4 = shown["models"][0]["arms"]["w4"]
    assert (shown["accounting"], w4["label"]) == ("honest", "w4 g128 asym")
    assert w4["rounded"] == {"weights_gb": 1.148, "ceiling_tok_s": 268.5}
    assert sum(w4["terms_bytes"].values()) == w4["total_bytes"] == w4["weights_bytes"] + w4["kv_bytes"]
    assert f"{w4['speedup_over_bf16']:.2f}" == "2.61"


def test_no_model_means_all(run: Any) -> None:
    assert len(document(run, "roofline --device h200")["models"]) >= 8


def test_device_gives_bandwidth_and_source(run: Any) -> None:
    shown = document(run, "roofline orch-fusion --device rtx-3060")
    assert (shown["device"], shown["bandwidth_gbps"], shown["bandwidth_source"]) == (
        "rtx-3060",
        323.9,
        "measured copy",
    )
    _, out, _ = run("roofline orch-fusion --device rtx-3060")
    assert "323.9 GB/s (measured copy of rtx-3060)" in out


def test_bandwidth_overrides_the_device(run: Any) -> None:
    shown = document(run, "roofline orch-fusion --device h200 --bandwidth 100")
    assert (shown["device"], shown["bandwidth_gbps"], shown["bandwidth_source"]) == ("h200", 100, "given")
    assert "100 GB/s (given)," in run("roofline orch-fusion --device h200 --bandwidth 100")[1]


def test_an_unknown_launch_floor_is_not_zero(run: Any) -> None:
    assert document(run, "roofline orch-fusion --bandwidth 100")["launch_floor_us"] is None
    assert document(run, "roofline orch-fusion --bandwidth 100 --launch-floor-us 0")["launch_floor_us"] == 0
    assert "not known" in run("roofline orch-fusion --bandwidth 100")[1]
    assert "launch floor 0 us" in run("roofline orch-fusion --bandwidth 100 --launch-floor-us 0")[1]


def test_options_reach_the_count(run: Any) -> None:
    line = "roofline qwen2.5-1.5b --bandwidth 100 --weights w4 --group-size 64 --zero-mode sym --head int8"
    shown = document(run, f"{line} --kv-dtype fp8 --context 1000")
    arm = shown["models"][0]["arms"]["w4-head-int8"]
    assert arm["label"] == "w4 g64 sym, head int8"
    assert arm["terms_bytes"]["zeros"] == 0
    assert arm["terms_bytes"]["head"] == 151_936 * 1536 + 4 * 151_936
    assert arm["kv_bytes"] == 14_336 * 1000
    assert list(shown["models"][0]["arms"]) == ["bf16", "w4-head-int8"]


def test_per_matrix_floors(run: Any) -> None:
    line = "roofline qwen2.5-1.5b --bandwidth 4100 --launch-floor-us 0.9 --per-matrix"
    floor = document(run, line)["models"][0]["arms"]["w4"]["floor"]
    rows = {row["role"]: row for row in floor["matrices"]}
    assert list(rows) == ["q", "k", "v", "o", "gate", "up", "down", "head"]
    assert (rows["k"]["floor_us"], rows["k"]["bound"], rows["k"]["count"]) == (0.9, "launch", 28)
    assert rows["down"]["bound"] == "bandwidth"
    assert sum(row["token_us"] for row in rows.values()) == pytest.approx(floor["matrices_us"])
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    fused = document(run, f"{line} --fused")["models"][0]["arms"]["w4"]["floor"]
    assert [row["role"] for row in fused["matrices"]] == ["qkv", "o", "gate_up", "down", "head"]
    assert (floor["launches"], fused["launches"]) == (197, 113)
    code, out, _ = run(line)
    assert code == 0 and "launch-bound %" in out and "gate" in out


def test_output_is_deterministic(run: Any) -> None:
    line = "roofline --device h200 --per-matrix --json"
    assert run(line) == run(line)


def test_batch_curve_of_an_a10(run: Any) -> None:
    shown = document(run, "batch-curve --device a10")
    points = {point["m"]: point for point in shown["points"]}
    assert f"{points[1]['w4a16_speedup']:.2f}" == "3.88"
    assert f"{points[128]['w4a16_speedup']:.1f}" == "1.6"
    assert shown["expand_first_bytes_per_weight"] == 4.5
    assert (round(shown["full_speedup_until_m"], 1), round(shown["break_even_m"], 1)) == (53.7, 208.3)
    by_hand = document(run, "batch-curve --bandwidth 600 --tflops 125 --int8-tops 250")
    assert by_hand["points"] == shown["points"]


def test_batch_curve_table_and_shape(run: Any) -> None:
    code, out, _ = run("batch-curve --device a10 --shape 8960x1536 --m 1,128")
    assert code == 0
    assert "activations of 8960x1536 counted" in out and "break-even" in out and "4.5" in out
    shown = document(run, "batch-curve --bandwidth 600 --tflops 125 --m 1")
    assert shown["points"][0]["w8a8_speedup"] is None


def test_device_list_and_show(run: Any) -> None:
    assert {row["name"] for row in document(run, "device list")} >= {"h200", "rtx-3060", "mi300x"}
    shown = document(run, "device show rtx-3060")
    assert shown["bandwidth"] == {"gbps": 323.9, "source": "measured copy"}
    del shown["bandwidth"]
    assert shown == load_device("rtx-3060").model_dump(mode="json")
    code, out, _ = run("device show rtx-3060")
    assert code == 0 and "product specifications" in out and "323.9 GB/s: measured copy" in out
    assert run("device list")[0] == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("roofline qwen2.5-1.5b", ["--bandwidth", "--device"]),
        ("roofline qwen2.5-1.5b --bandwidth nan", ["bandwidth=nan", "finite"]),
        ("roofline qwen2.5-1.5b --bandwidth 0", ["bandwidth=0"]),
        ("roofline qwen2.5-1.5b --bandwidth -323.88", ["bandwidth=-323.88"]),
        ("roofline qwen2.5-1.5b --bandwidth inf", ["bandwidth=inf"]),
        ("roofline qwen2.5-1.5b --bandwidth fast", ["--bandwidth", "valid number"]),
        ("roofline qwen2.5-1.5b --bandwidth 1 --device nope", ["nope", "h200"]),
        ("roofline qwen2.5-1.5b --device nope", ["nope", "h200", "rtx-3060"]),
        ("roofline qwen2.5-1.6b --bandwidth 1", ["qwen2.5-1.6b", "qwen2.5-1.5b"]),
        ("roofline orch-fusion --bandwidth 1 --context 4097", ["context=4097", "4096"]),
        ("roofline orch-fusion --bandwidth 1 --context -1", ["context=-1"]),
        ("roofline orch-fusion --bandwidth 1 --accounting published --context 4097", ["context=4097"]),
        ("roofline orch-fusion --bandwidth 1 --accounting fair", ["fair", "honest", "published"]),
        (
            "roofline orch-fusion --bandwidth 1 --accounting published --head w4 --fused",
            ["--head", "--fused"],
        ),
        ("roofline orch-fusion --bandwidth 1 --weights w3", ["w3", "nf4"]),
        ("roofline orch-fusion --bandwidth 1 --head w3", ["w3", "w4"]),
        ("roofline orch-fusion --bandwidth 1 --group-size 100", ["group_size=100"]),
        ("roofline orch-fusion --bandwidth 1 --weights bf16 --group-size 128", ["group_size=128"]),
        ("roofline orch-fusion --bandwidth 1 --weights int8 --zero-mode sym", ["zero_mode"]),
        ("roofline orch-fusion --bandwidth 1 --zero-mode half", ["half", "offset"]),
        ("roofline orch-fusion --bandwidth 1 --kv-dtype fp4", ["fp4", "fp8"]),
        ("roofline orch-fusion --bandwidth 1 --launch-floor-us -1", ["launch_floor_us=-1"]),
        ("batch-curve", ["--bandwidth"]),
        ("batch-curve --bandwidth 600", ["--tflops"]),
        ("batch-curve --bandwidth 600 --tflops nan", ["fp16_tflops=nan"]),
        ("batch-curve --device a10 --int8-tops 0", ["int8_tops=0"]),
        ("batch-curve --device a10 --m 1,x", ["1,x"]),
        ("batch-curve --device a10 --m 0", ["m=0"]),
        ("batch-curve --device a10 --shape 0x128", ["n=0"]),
        ("batch-curve --device a10 --shape square", ["square"]),
        ("batch-curve --device a10 --group-size 4", ["group_size=4"]),
        ("device show h2000", ["h2000", "h200"]),
        ("device show absent.json", ["absent.json"]),
    ],
)
def test_bad_input_is_one_error_with_exit_code_2(run: Any, line: str, words: list[str]) -> None:
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert all(word in err for word in words), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "line",
    [
        "roofline --device h200 --per-matrix --json",
        "batch-curve --device a10 --json",
        "device show h200 --json",
    ],
)
def test_nothing_heavy_is_imported(line: str) -> None:
    code = (
        "import sys; from roofgap.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
        "heavy = {'torch', 'triton', 'transformers', 'pandas', 'scipy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
