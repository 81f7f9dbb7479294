"""``roofgap bench`` and ``roofgap device measure``: without a GPU, and whole on a scripted one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from roofgap.cli.main import app
from roofgap.kernels import step
from roofgap.kernels.registry import get_variant
from roofgap.shapes.device import load_device
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning import lookup
from roofgap.tuning.measure import bandwidth, cuda, policy, probe, profile
from roofgap.tuning.measure.bytestream import StreamConfig
from roofgap.tuning.measure.failure import MeasureError
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.profiler import ncu_command
from roofgap.tuning.results import read_results
from roofgap.tuning.status import Status

FEW: Any = {"min_launches": 1, "max_launches": 1, "replays": 1, "warmup_window": 1}

runner = CliRunner()


def run(*args: str) -> Any:
    return runner.invoke(app, list(args))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedDevice:
    """A scripted GPU in place of the first one, and sweeps short enough for the interpreter."""
    device = ScriptedDevice(l2_bytes=1 << 10, work_us=4.0)
    device.index, device.read_gbps = 0, 4000.0  # type: ignore[attr-defined]
    device.nvml = SimpleNamespace(max_sm_clock_mhz=lambda: 1980.0)  # type: ignore[attr-defined]
    monkeypatch.setattr(lookup, "install", lambda: None)
    monkeypatch.setattr(bandwidth, "open_device", lambda: device)
    monkeypatch.setattr(cuda, "CudaDevice", lambda index=0: device)
    monkeypatch.setattr(bandwidth, "FLOOR_LAUNCHES", 2)
    monkeypatch.setattr(bandwidth, "WANTED_BYTES", 1 << 10)
    monkeypatch.setattr(bandwidth, "POLICY", MeasurePolicy(**FEW))
    monkeypatch.setattr(policy, "MeasurePolicy", partial(MeasurePolicy, **FEW))
    monkeypatch.setattr(probe, "FINAL_ROUNDS", 2)
    monkeypatch.setattr(probe, "SCREEN_SAMPLES", 1)
    streams = [StreamConfig(kernel="once", warps=4, loads=2)]
    monkeypatch.setattr(probe, "stream_configs", lambda words, sm_count: streams)
    return device


@pytest.mark.skipif("cuda.torch.cuda.is_available()")
@pytest.mark.parametrize(
    "args",
    [
        ("bench", "8960x1536", "--variant", "v2"),
        ("device", "measure"),
        ("bench", "64x64", "--variant=v2", "--profile"),
    ],
)
def test_without_a_gpu_it_says_what_works(args: tuple[str, ...]) -> None:
    result = run(*args)
    assert isinstance(result.exception, RoofgapError)
    assert all(
        word in str(result.exception) for word in ("roofgap inspect", "roofgap traffic", "tune --replay")
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--variant", "v9"), "v9"),
        (("--variant", "v2", "--warm", "--eager"), "exclude one another"),
        (("--variant", "v2", "--m", "1,x"), "whole numbers"),
        (("--variant", "v2", "--m", "0"), "at least 1"),
        (("--variant", "v2", "--dtype", "fp8"), "x_dtype"),
        (("--variant", "v2,v3", "--config", "num_warps=4"), "belongs to one variant"),
        (("--variant", "v2", "--config", "block=4"), "unknown for V2Config"),
        (("--variant", "v2", "--config", "block_n=48"), "v2 "),
        (("--variant", "v2", "--baseline", "cutlass"), "torch or none"),
    ],
)
@pytest.mark.usefixtures("scripted")
def test_bad_input(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    result = run("bench", "32x64", *args, "--out", str(tmp_path / "x.json"))
    assert isinstance(result.exception, RoofgapError), result.output
    assert words in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_bench_from_check_to_file(scripted: ScriptedDevice, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    result = run(
        "bench",
        "32x64",
        "--variant",
        "v2,v3",
        "--m",
        "1,2",
        "--group-size",
        "32",
        "--out",
        str(out),
        "--json",
    )
    assert result.exit_code == 0, result.output
    saved = read_results(out)
    assert json.loads(result.stdout)["rows"] == [dict(row) for row in saved.rows]
    assert [(row["variant"], row["m"]) for row in saved.rows] == [
        (name, m) for m in (1, 2) for name in ("v2", "v3", "torch")
    ]
    row = saved.rows[0]
    assert (row["latency_us"], row["floor_us"], row["probe_us"], row["status"]) == (4.0, 4.0, 4.0, "ok")
    assert (row["roof_gap"], row["attainable_gap"], row["speedup_over_torch"]) == (1.0, 1.0, 1.0)
    assert saved.gpu == "scripted-gpu"
    assert scripted.readings > 0


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("can", [True, False])
def test_a_chain_needs_a_gpu_with_dependent_launches(monkeypatch: pytest.MonkeyPatch, can: bool) -> None:
    monkeypatch.setattr(step, "_device_can_depend", lambda: can)
    args = ("--variant=v2", "--group-size=32", "--baseline=none", "--chained", "--json")
    result = run("bench", "32x64", *args)
    if can:
        (row,) = json.loads(result.stdout)["rows"]
        assert (row["policy"], row["attainable_gap"]) == ("chained-graph-l2x3", 1.0)
    else:
        assert "chained launches on Scripted GPU" in str(result.exception)


@pytest.mark.usefixtures("scripted")
def test_a_config_can_be_compared_with_another() -> None:
    configs = ("block_n=16,block_k=64,num_warps=1", "block_n=32,block_k=64,num_warps=2")
    args = [part for text in configs for part in ("--config", text)]
    result = run(
        "bench", "32x64", "--variant=v2", "--group-size=32", "--baseline=none", *args, "--warm", "--json"
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["config"].split(",")[2] for row in rows] == ["block_n=16", "block_n=32"]
    assert {(row["policy"], row["probe_us"], row["attainable_gap"]) for row in rows} == {
        ("warm-graph", None, None)
    }


@pytest.mark.usefixtures("scripted")
def test_a_wrong_kernel_is_a_row_with_evidence_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = get_variant("v2")
    original = type(variant).plan
    monkeypatch.setattr(
        type(variant), "plan", lambda self, problem, config, ops: original(self, problem, config, ops)[:0]
    )
    result = run("bench", "32x64", "--variant", "v2", "--group-size", "32")
    assert result.exit_code == 1
    assert "wrong" in result.stdout
    assert "torch" in result.stdout
    assert "v2 32x64 M=1" in result.output


def test_ceilings_that_cannot_be_measured_are_one_error(scripted: ScriptedDevice) -> None:
    scripted._drops = lambda work: True
    for args in (("bench", "32x64", "--variant", "v2"), ("device", "measure")):
        result = run(*args)
        assert isinstance(result.exception, RoofgapError)
        assert "repeat it" in result.exception.remedy


@pytest.mark.usefixtures("scripted")
def test_a_probe_that_fails_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise MeasureError(Status.ERROR, "every stream failed")

    monkeypatch.setattr(probe.StreamProbe, "beside", fails)
    result = run("bench", "32x64", "--variant", "v2", "--group-size", "32", "--json")
    row = json.loads(result.stdout)["rows"][0]
    assert (row["status"], row["probe_us"], row["attainable_gap"]) == ("ok", None, None)
    assert "every stream failed" in row["labels"]


def test_ncu_command_is_complete_and_quoted() -> None:
    problem = Problem(n=8960, k=1536, m=2, bias=True)
    variant = get_variant("v2")
    command = ncu_command(variant, problem, variant.default_config(problem))
    for part in ("ncu --profile-from-start off", "8960x1536 --variant v2", "--m 2", "--bias --one-launch"):
        assert part in command
    assert f"--config {variant.default_config(problem).key}" in command


@pytest.mark.usefixtures("scripted")
def test_profile_prints_a_command_per_launch() -> None:
    result = run("bench", "32x64", "--variant", "v2,v3", "--m", "1,2", "--group-size", "32", "--profile")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("ncu ") == 4


PROPERTIES = SimpleNamespace(
    major=9, minor=0, multi_processor_count=132, warp_size=32, max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536, shared_memory_per_multiprocessor=233472,
    shared_memory_per_block_optin=232448,
    L2_cache_size=60 << 20, total_memory=150 << 30,
)  # fmt: skip


def test_an_unknown_gpu_gets_a_profile_from_the_driver() -> None:
    made = profile.queried_profile("NVIDIA X-100/PCIe", PROPERTIES, 1980.0)
    assert made.name == "x-100-pcie"
    assert (made.target, made.compute_capability, made.max_warps_per_sm) == ("sm_90", "9.0", 64)
    assert made.source_of("l2_bytes") == profile.QUERIED
    with pytest.raises(RoofgapError, match="highest clock"):
        profile.queried_profile("NVIDIA X-100", PROPERTIES, None)


def test_measure_keeps_the_specifications(
    scripted: ScriptedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = load_device("h200")
    scripted.name = "NVIDIA H200"
    (tmp_path / "shapes" / "devices").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    result = run("device", "measure", "--json")
    assert result.exit_code == 0, result.output
    written = load_device(tmp_path / "shapes" / "devices" / "h200.json")
    assert written.model_copy(update={"measured": shipped.measured}) == shipped
    assert written.measured is not None
    assert written.measured.provenance == "measured"
    assert written.measured.launch_floor_us == 4.0
    assert written.measured.versions == {"device": "scripted"}
    assert json.loads(result.stdout) == written.model_dump(mode="json")


def test_a_profile_never_lands_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made = load_device("h200")
    user = tmp_path / "data" / "roofgap" / "devices" / "h200.json"
    installed = tmp_path / "site-packages" / "roofgap"
    (installed / "shapes" / "devices").mkdir(parents=True)
    assert profile.default_path(made, installed) == user
    assert profile.default_path(made, tmp_path) == user
    (tmp_path / "shapes" / "devices").mkdir(parents=True)
    assert profile.default_path(made, tmp_path) == tmp_path / "shapes" / "devices" / "h200.json"
