"""This machine in asv's words: host, GPU, driver, clocks, power limit, toolchain. Needs no asv."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roofgap.tracking.venv import tracked_versions

NONE = "none"
UNAVAILABLE = "unavailable"
GPU_FIELDS = ("gpu", "gpu_driver", "gpu_max_sm_clock_mhz", "gpu_max_memory_clock_mhz", "gpu_power_limit_w")


def describe_host() -> dict[str, str]:
    """What asv itself asks about: name, system, processor, memory."""
    return {
        "machine": platform.node(),
        "os": f"{platform.system()} {platform.release()}",
        "arch": platform.machine(),
        "cpu": _cpu(),
        "num_cpu": str(os.cpu_count() or 0),
        "ram": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    }


def describe_extras() -> dict[str, str]:
    """What decides a time beside the host's own description. asv wants text."""
    return {**describe_gpu(), "cuda": _cuda(), **tracked_versions(["torch", "triton"])}


def describe_gpu(library: Any = None) -> dict[str, str]:
    """The first visible GPU's model and settings by NVML.

    Args:
        library: stands in for ``pynvml``.
    """
    if library is None:
        try:
            import pynvml
        except ImportError:
            return dict.fromkeys(GPU_FIELDS, UNAVAILABLE)
        library = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        missing = (
            getattr(library, "NVMLError_LibraryNotFound", ()),
            getattr(library, "NVMLError_DriverNotLoaded", ()),
        )
        return dict.fromkeys(GPU_FIELDS, NONE if isinstance(error, missing) else UNAVAILABLE)
    try:
        if library.nvmlDeviceGetCount() == 0:
            return dict.fromkeys(GPU_FIELDS, NONE)
        handle = library.nvmlDeviceGetHandleByIndex(0)
        questions: dict[str, Callable[[], Any]] = {
            "gpu": lambda: _text(library.nvmlDeviceGetName(handle)),
            "gpu_driver": lambda: _text(library.nvmlSystemGetDriverVersion()),
            "gpu_max_sm_clock_mhz": lambda: library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM),
            "gpu_max_memory_clock_mhz": lambda: library.nvmlDeviceGetMaxClockInfo(
                handle, library.NVML_CLOCK_MEM
            ),
            "gpu_power_limit_w": lambda: library.nvmlDeviceGetPowerManagementLimit(handle) // 1000,
        }
        return {name: _ask(question, library.NVMLError) for name, question in questions.items()}
    except library.NVMLError:
        return dict.fromkeys(GPU_FIELDS, UNAVAILABLE)
    finally:
        library.nvmlShutdown()


def _ask(question: Callable[[], Any], refusal: type[Exception]) -> str:
    try:
        return str(question())
    except refusal:
        return UNAVAILABLE


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cuda() -> str:
    """``cu130``, ``cpu``, ...: what torch was built for, without importing it.

    Wheels of one build carry it in their version (2.11.0+cu130) or, from the default index, only inside.
    """
    if local := tracked_versions(["torch"])["torch"].partition("+")[2]:
        return local
    torch = importlib.util.find_spec("torch")
    inside = Path(torch.origin).parent / "version.py" if torch and torch.origin else None
    if inside and inside.is_file():
        text = inside.read_text(encoding="utf-8")
        if found := re.search(r"^cuda\b[^=\n]*= *['\"](\d+)\.(\d+)", text, re.MULTILINE):
            return f"cu{found[1]}{found[2]}"
    return UNAVAILABLE


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
