"""Reads the GPU's state through NVML. What the driver, a container or MIG withholds becomes a named gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from roofgap.tuning.measure.state import GpuState

T = TypeVar("T")

THROTTLE_BITS = {  # nvml.h, nvmlClocksEventReason*
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class Nvml:
    """One GPU seen through NVML.

    Args:
        uuid: as torch reports it, with or without the ``GPU-`` prefix; NVML's index may differ from CUDA's.
        library: stands in for ``pynvml``.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        self._handle: Any = None
        self._missing = ""
        try:
            if library is None:
                import pynvml

                library = pynvml
            self._nvml = library
            library.nvmlInit()
            self._handle = library.nvmlDeviceGetHandleByUUID(
                uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            )
        except Exception as error:  # an absent library, driver or device is a value here, not an error
            self._missing = f"{type(error).__name__}: {error}"

    def driver(self) -> str | None:
        """Version of the driver, or None."""
        if self._handle is None:
            return None
        version = self._nvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)

    def max_sm_clock_mhz(self) -> float | None:
        """Highest SM clock the GPU allows, or None."""
        return self._ask(
            {}, "max_sm_clock_mhz", lambda n, h: float(n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM))
        )

    def state(self) -> GpuState:
        """One reading of everything; about a millisecond."""
        gaps: dict[str, str] = {}
        return GpuState(
            sm_clock_mhz=self._ask(
                gaps, "sm_clock_mhz", lambda n, h: float(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM))
            ),
            memory_clock_mhz=self._ask(
                gaps, "memory_clock_mhz", lambda n, h: float(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM))
            ),
            power_w=self._ask(gaps, "power_w", lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000),
            temperature_c=self._ask(
                gaps,
                "temperature_c",
                lambda n, h: float(n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
            ),
            throttle=self._ask(gaps, "throttle", lambda n, h: throttle_names(_reasons(n, h))),
            foreign_processes=self._ask(
                gaps,
                "foreign_processes",
                lambda n, h: foreign_count([p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)]),
            ),
            unavailable=gaps,
        )

    def _ask(self, gaps: dict[str, str], name: str, question: Callable[[Any, Any], T]) -> T | None:
        if self._handle is None:
            gaps[name] = self._missing
            return None
        try:
            return question(self._nvml, self._handle)
        except Exception as error:  # pynvml raises one class per unsupported query
            gaps[name] = f"{type(error).__name__}: {error}"
            return None


def _reasons(nvml: Any, handle: Any) -> int:
    """The throttle bits under their name since driver 535, or the older one."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (AttributeError, nvml.NVMLError):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def throttle_names(bits: int) -> tuple[str, ...]:
    """Names of the bits that are set."""
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def foreign_count(pids: list[int]) -> int:
    """Compute processes beside our own.

    We hold a CUDA context, so one entry is ours: under our PID or, in a container, under the host's number.
    """
    return max(len(set(pids)) - 1, 0)
