"""What the machine file says about the GPU, with NVML present, partly silent, and absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roofgap.tracking import describe


class NvmlError(Exception):
    pass


class LibraryNotFoundError(NvmlError):
    pass


def nvml(**changes: Any) -> SimpleNamespace:
    """A stand-in for pynvml that knows one GPU."""
    known: dict[str, Any] = {
        "NVMLError": NvmlError,
        "NVMLError_LibraryNotFound": LibraryNotFoundError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: "handle",
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
        "nvmlSystemGetDriverVersion": lambda: "580.95",
        "nvmlDeviceGetMaxClockInfo": lambda handle, clock: {1: 1980, 2: 3201}[clock],
        "nvmlDeviceGetPowerManagementLimit": lambda handle: 700_000,
    }
    return SimpleNamespace(**{**known, **changes})


def refuse(error: type[Exception]) -> Any:
    def call(*args: Any) -> None:
        raise error

    return call


def test_a_gpu_is_described() -> None:
    assert describe.describe_gpu(nvml()) == {
        "gpu": "NVIDIA H200",
        "gpu_driver": "580.95",
        "gpu_max_sm_clock_mhz": "1980",
        "gpu_max_memory_clock_mhz": "3201",
        "gpu_power_limit_w": "700",
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"nvmlInit": refuse(LibraryNotFoundError)}, {"none"}),
        ({"nvmlDeviceGetCount": lambda: 0}, {"none"}),
        ({"nvmlInit": refuse(NvmlError)}, {"unavailable"}),
        ({"nvmlDeviceGetHandleByIndex": refuse(NvmlError)}, {"unavailable"}),
        ({"nvmlDeviceGetMaxClockInfo": refuse(NvmlError)}, {"NVIDIA H200", "580.95", "unavailable", "700"}),
    ],
)
def test_what_nvml_does_not_tell_is_named(changes: dict[str, Any], expected: set[str]) -> None:
    described = describe.describe_gpu(nvml(**changes))
    assert set(described) == set(describe.GPU_FIELDS)
    assert set(described.values()) == expected


@pytest.mark.parametrize(
    ("version", "text", "expected"),
    [
        ("2.11.0+cu130", "", "cu130"),
        ("2.13.0+cpu", "cuda: Optional[str] = None\n", "cpu"),
        ("2.11.0", "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n", "cu130"),
        ("2.11.0", "cuda = '12.8'\n", "cu128"),
        ("2.11.0", "cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", "unavailable"),
    ],
)
def test_cuda_is_told_by_the_version_or_from_inside_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, text: str, expected: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(text)
    found = SimpleNamespace(origin=str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(describe, "tracked_versions", lambda names: dict.fromkeys(names, version))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    assert describe.describe_extras()["cuda"] == expected


def test_cuda_without_torch_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "tracked_versions", lambda names: dict.fromkeys(names, "none"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert describe.describe_extras()["cuda"] == "unavailable"


def test_asv_machine_records_the_gpu_without_asking(tmp_path: Path, root: Path) -> None:
    pytest.importorskip("asv", reason="asv is not installed")
    (tmp_path / "asv.conf.json").write_text((root / "asv.conf.json").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "asv", "machine", "--yes"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    stored = json.loads((tmp_path / ".asv-machine.json").read_text())
    (described,) = (value for value in stored.values() if isinstance(value, dict))
    assert set(described) >= {*describe.GPU_FIELDS, "cuda", "torch", "triton", "cpu"}
    assert all(isinstance(value, str) for value in described.values())
