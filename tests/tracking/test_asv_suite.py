"""The suite: its grid, its benchmarks as asv discovers them, and lanes that say n/a instead of failing."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from roofgap.kernels.registry import VARIANTS
from roofgap.kernels.variant import Limits
from roofgap.shapes.manifest import load_manifest
from roofgap.shapes.problem import Problem
from roofgap.tuning import lookup, winners_store
from roofgap.tuning.winner import Provenance, Toolchain, Winner

DISCOVER = """
import json, sys
from asv_runner.discovery import disc_benchmarks
found = []
for one in disc_benchmarks("benchmarks"):
    one.check("benchmarks")
    names = ("name", "type", "unit", "version", "param_names", "rounds")
    found.append({name: getattr(one, name, None) for name in names})
    found[-1]["shape"] = [len(values) for values in one.params]
print(json.dumps({"found": found, "heavy": [name for name in ("torch", "triton", "roofgap") if name in sys.modules]}))
"""


@pytest.fixture(scope="module")
def suite(root: Path) -> ModuleType:
    """The package ``benchmarks``."""
    sys.path.append(str(root / "asv_bench"))
    for name in ("_cells", "_config", "_device", "_quality", "_reading", "_static", "_traffic"):
        importlib.import_module(f"benchmarks.{name}")
    return sys.modules["benchmarks"]


@pytest.fixture(scope="module")
def discovered(root: Path) -> dict[str, Any]:
    """What asv finds, in a process of its own as asv has it."""
    pytest.importorskip("asv_runner", reason="asv is not installed")
    done = subprocess.run(
        [sys.executable, "-c", DISCOVER], cwd=root / "asv_bench", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_registered_variant_and_default_shape_is_tracked(suite: ModuleType) -> None:
    cells = suite._cells
    assert set(VARIANTS) == set(cells.VARIANTS), "write a variant's name as `name = ...` in its class"
    shapes = [
        f"{n}x{k}"
        for model in ("qwen2.5-1.5b", "orch-fusion")
        for n, k in load_manifest(model).distinct_shapes()
    ]
    assert list(cells.SHAPES) == list(dict.fromkeys(shapes))


def test_the_quick_tier_and_more_manifests_change_cells_not_the_grid(
    suite: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = suite._cells
    full = {
        lane: set(getattr(cells, f"{lane}_cells")()) for lane in ("static", "traffic", "quality", "device")
    }
    assert len(full["static"]) == len(cells.VARIANTS) * len(cells.SHAPES) * len(cells.TARGETS)
    monkeypatch.setenv("ROOFGAP_LANE_TIER", "quick")
    for lane, listed in full.items():
        assert set(getattr(cells, f"{lane}_cells")()) < listed
    assert cells.shapes() == cells.SHAPES
    monkeypatch.setenv("ROOFGAP_MANIFESTS", "qwen2.5-7b")
    assert set(cells.shapes()) > set(cells.SHAPES)
    assert cells.shapes()[: len(cells.SHAPES)] == cells.SHAPES


def test_benchmarks_are_explicit_about_version_and_unit(discovered: dict[str, Any]) -> None:
    found = discovered["found"]
    assert discovered["heavy"] == [], "asv imports the suite for every cell"
    lanes = {one["name"].split(".")[0] for one in found}
    assert lanes == {"static", "traffic", "quality", "device", "host", "roofline"}
    for one in found:
        assert one["version"] == "1", f"{one['name']}: an edit would cut its history"
        assert one["unit"] not in (None, "unit"), one["name"]
        assert len(one["shape"]) == len(one["param_names"]), one["name"]
    timed = [one for one in found if one["name"].startswith("device.")]
    assert {one["type"] for one in timed} == {"time"}
    assert {one["rounds"] for one in timed} == {2}


def test_samples_reach_asv_as_samples(suite: ModuleType) -> None:
    pytest.importorskip("asv_runner", reason="asv is not installed")
    from asv_runner.benchmarks import benchmark_types

    def sampled_x() -> list[float]:
        return [3.0, 1.0, 2.0]

    (kind,) = [one for one in benchmark_types if one.__name__ == "SampledBenchmark"]
    assert kind.name_regex.match("sampled_latency_us")
    assert kind("x", sampled_x, [sampled_x]).run() == {"samples": [3.0, 1.0, 2.0], "number": 1}


def test_a_pool_that_breaks_costs_one_request(suite: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    static = suite._static

    class Pool:
        """Works on one request at a time and is of no use once it broke."""

        def __init__(self, workers: int) -> None:
            assert workers == 1
            self.broken = False

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def inspect(self, requests: list[str]) -> list[str]:
            (request,) = requests
            assert not self.broken
            self.broken = request.startswith("breaks")
            if self.broken:
                raise BrokenProcessPool("All workers expired")
            return [f"metrics of {request}"]

    monkeypatch.setattr(static, "need", lambda module, name: Pool)
    names = ["good", "breaks", "fine", "breaks too", "breaks at last"]
    found = dict(static._compile({(name,): name for name in names}))
    assert set(found) == {(name,) for name in names}
    for (name,), result in found.items():
        assert result == (None if name.startswith("breaks") else f"metrics of {name}")
    assert static._read("request", "source", None) == {"failed": "crash: the compiler ended its process"}
    assert static._compile({}) == []


def test_what_a_commit_lacks_is_not_applicable(suite: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for lane, cell in (
        ("_static", ("v99", "256x1024", "sm_86")),
        ("_static", ("v2", "256x1024", "sm_1")),
        ("_traffic", ("v99", "256x1024")),
        ("_quality", ("v99", "64x1536", "fp16 sym")),
    ):
        reading = getattr(suite, lane).readings([cell])[cell]
        assert "this commit has no" in reading["na"]
    monkeypatch.setitem(sys.modules, "roofgap.kernels.registry", None)
    cell = ("v2", "256x1024")
    assert "registry" in suite._traffic.readings([cell])[cell]["na"]


def test_a_failing_cell_leaves_the_others(suite: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [("v2", "64x1536", "fp16 sym"), ("tldot", "64x1536", "fp16 sym")]

    def planted(*args: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(type(VARIANTS["v2"]), "plan", planted)
    readings = suite._quality.readings(cells)
    assert readings[cells[0]] == {"failed": "RuntimeError: planted"}
    error = readings[cells[1]]["metrics"]["relative_error"]
    assert 0 < error < 1e-3
    assert readings == suite._quality.readings(cells), "the lane must repeat exactly"
    with pytest.raises(RuntimeError, match="planted"):
        suite._reading.require(readings, *cells[0])
    with pytest.raises(NotImplementedError, match="tier"):
        suite._reading.require(readings, "v3", "64x1536", "fp16 sym")
    assert math.isnan(suite._reading.metric(readings, cells[1], "no such metric"))


def test_no_gpu_is_a_reason(suite: ModuleType) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    cells = suite._cells.device_cells()
    assert {reading["na"] for reading in suite._device.readings(cells).values()} == {
        "no GPU that torch can use"
    }


def test_cells_use_the_commits_own_winners(
    suite: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variant, problem = VARIANTS["v2"], Problem.parse("256x1024")
    default = variant.default_config(problem)
    tuned = next(config for config in variant.configs(problem) if config != default)
    winner = Winner(
        schema=1,
        identity=lookup.identity_of(variant, problem, "rtx-3060"),
        provenance=Provenance(
            toolchain=Toolchain(driver="1", cuda="1", torch="1", triton="1"),
            source_hash="", space_hash="", date="2026-11-29", run="r", strategy="s", seed=0, trials=1,
        ),
        config=tuned.to_dict(), latency_us=1.0, p20_us=1.0, p80_us=1.0, tie_band=0.0, tie_set=(),
    )  # fmt: skip
    winners_store.save(tmp_path / "winners", winner)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(
        suite._config,
        "use_own_winners",
        lambda: monkeypatch.setenv("ROOFGAP_WINNERS", str(tmp_path / "winners")),
    )
    limits = Limits()
    assert suite._config.own_config(variant, problem, "rtx-3060", limits) == (tuned, "unvalidated")
    assert suite._config.own_config(variant, problem, "a10", limits) == (default, "default")
