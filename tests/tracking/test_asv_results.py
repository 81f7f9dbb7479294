"""What is written without asv is what asv would have written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roofgap.tracking.asv_results import Series, environment_name, statistics, write_results

MACHINE = {
    "machine": "box",
    "os": "Linux",
    "arch": "x86_64",
    "cpu": "c",
    "num_cpu": "2",
    "ram": "1",
    "gpu": "H200",
}
VERSIONS = {"triton": "3.6.0", "torch": "2.11.0+cu130"}
AXES = [["v1", "v2"], ["8x8", "9x9"]]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def samples() -> list[float]:
    times: list[float] = (12 + np.random.default_rng(0).exponential(0.3, 20)).tolist()
    return times


def write(folder: Path, *series: Series) -> Path:
    return write_results(folder, MACHINE, COMMIT, 1_700_000_000_000, VERSIONS, series)


@pytest.mark.parametrize("count", [8, 9, 20, 21, 40])
def test_statistics_are_asvs(count: int) -> None:
    runner = pytest.importorskip("asv_runner.statistics", reason="asv is not installed")
    values = np.random.default_rng(count).lognormal(2, 0.1, count).tolist()
    _, expected = runner.compute_stats(values, 1)
    assert statistics(values) == pytest.approx(expected)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="eight"):
        statistics([1.0] * 7)


def test_asv_loads_the_file_and_would_write_the_same(tmp_path: Path, samples: list[float]) -> None:
    results = pytest.importorskip("asv.results", reason="asv is not installed")
    environment = pytest.importorskip("asv.environment")
    nan = float("nan")
    path = write(
        tmp_path,
        Series("device.Cold.sampled_latency_us", AXES, [samples, nan, None, samples], 5),
        Series("static.Static.track_registers", AXES, [40, 41.5, nan, None], 5),
    )
    assert environment_name(VERSIONS) == environment.get_env_name(
        "overlay", environment_python(), VERSIONS, {}
    )
    loaded = results.Results.load(str(path), machine_name="box")
    assert path.name == Path(loaded._filename).name
    loaded.save(str(tmp_path / "again"))
    again = json.loads((tmp_path / "again" / "box" / path.name).read_text())
    assert same(json.loads(path.read_text()), again)
    assert (
        loaded.get_result_value(
            "static.Static.track_registers", loaded.get_result_params("static.Static.track_registers")
        )[0]
        == 40
    )


def test_asv_computes_the_same_row_from_the_samples(tmp_path: Path, samples: list[float]) -> None:
    results = pytest.importorskip("asv.results", reason="asv is not installed")
    runner = pytest.importorskip("asv.runner")
    path = write(tmp_path, Series("device.Cold.sampled_latency_us", [["v1"]], [samples], 5))
    ours = json.loads(path.read_text())["results"]["device.Cold.sampled_latency_us"]
    theirs = results.Results(MACHINE, VERSIONS, COMMIT, 1, "3.11", "overlay", {})
    taken = runner.BenchmarkResult(
        result=[0.0], samples=[samples], number=[1], errcode=0, stderr="", profile=None
    )
    benchmark = {"name": "device.Cold.sampled_latency_us", "version": "1", "params": [["'v1'"]]}
    theirs.add_result(benchmark, taken)
    theirs.save(str(tmp_path / "asv"))
    (saved,) = (tmp_path / "asv" / "box").glob("*.json")
    row = json.loads(saved.read_text())["results"]["device.Cold.sampled_latency_us"]
    for index, (mine, other) in enumerate(zip(ours, row, strict=True)):
        if index != 3:  # when it was measured
            assert mine == other


def test_series_of_other_lanes_stay(tmp_path: Path, samples: list[float]) -> None:
    path = write(tmp_path, Series("a.A.track_x", [["v1"]], [1], 5))
    assert write(tmp_path, Series("b.B.track_y", [["v1"]], [samples], 6)) == path
    stored = json.loads(path.read_text())["results"]
    assert set(stored) == {"a.A.track_x", "b.B.track_y"}
    assert stored["a.A.track_x"][0] == [1]
    assert json.loads((tmp_path / "box" / "machine.json").read_text())["gpu"] == "H200"


def environment_python() -> str:
    import sys

    return f"{sys.version_info.major}.{sys.version_info.minor}"


def same(one: Any, other: Any) -> bool:
    """Equality in which NaN equals NaN."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)
