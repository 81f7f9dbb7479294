"""NVML readings and what taints a sample, with a stand-in for the driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from roofgap.tuning.measure.nvml import Nvml, foreign_count, throttle_names
from roofgap.tuning.measure.state import GpuState, Watch


class NotSupportedError(Exception):
    pass


def driver(**overrides: Any) -> SimpleNamespace:
    """A stand-in for pynvml; an override that is an exception is raised by its call."""
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": "handle",
        "nvmlSystemGetDriverVersion": b"580.1",
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetClockInfo": 1755,
        "nvmlDeviceGetPowerUsage": 312_500,
        "nvmlDeviceGetTemperature": 41,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x44,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x20,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=4242)],
        **overrides,
    }

    def call(value: Any) -> Any:
        def answer(*_: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return answer

    constants = {
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVMLError": NotSupportedError,
    }
    return SimpleNamespace(**{name: call(value) for name, value in answers.items()}, **constants)


def test_a_whole_reading() -> None:
    nvml = Nvml("1234", driver())
    state = nvml.state()
    assert state.unavailable == {}
    assert (state.sm_clock_mhz, state.power_w, state.temperature_c) == (1755, 312.5, 41)
    assert state.throttle == ("sw_power_cap", "hw_thermal_slowdown")
    assert state.foreign_processes == 0
    assert nvml.driver() == "580.1"
    assert nvml.max_sm_clock_mhz() == 1980


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetComputeRunningProcesses", "foreign_processes"),
    ],
)
def test_an_unsupported_field_is_a_named_gap(broken: str, field: str) -> None:
    state = Nvml("GPU-1", driver(**{broken: NotSupportedError("Not Supported")})).state()
    assert getattr(state, field) is None
    assert state.unavailable == {field: "NotSupportedError: Not Supported"}
    assert state.sm_clock_mhz == 1755


def test_an_older_driver_names_throttle_reasons_otherwise() -> None:
    old = driver(nvmlDeviceGetCurrentClocksEventReasons=NotSupportedError("Function Not Found"))
    assert Nvml("1", old).state().throttle == ("sw_thermal_slowdown",)


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_no_driver_is_a_value(broken: str) -> None:
    nvml = Nvml("1", driver(**{broken: NotSupportedError("Driver Not Loaded")}))
    state = nvml.state()
    assert state.sm_clock_mhz is None
    assert len(state.unavailable) == 6
    assert set(state.unavailable.values()) == {"NotSupportedError: Driver Not Loaded"}
    assert nvml.driver() is None


@pytest.mark.parametrize(("pids", "count"), [([], 0), ([7], 0), ([7, 7], 0), ([7, 8, 9], 2)])
def test_one_listed_process_is_ours(pids: list[int], count: int) -> None:
    assert foreign_count(pids) == count


def test_throttle_bits() -> None:
    assert throttle_names(0) == ()
    assert throttle_names(0x1 | 0x8 | 0x80) == ("gpu_idle", "hw_slowdown", "hw_power_brake_slowdown")


def state(clock: float | None = 1980.0, *throttle: str, foreign: int | None = 0) -> GpuState:
    return GpuState(sm_clock_mhz=clock, throttle=throttle, foreign_processes=foreign)


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        (state(), state(1580), "SM clock 1580"),
        (state(), state(1980, "hw_thermal_slowdown"), "hw_thermal_slowdown"),
        (state(1980, "sw_thermal_slowdown"), state(), "sw_thermal_slowdown"),
        (state(), state(foreign=2), "2 foreign"),
        (state(1980, "sw_power_cap"), state(1600, "sw_power_cap"), "sw_power_cap"),
    ],
)
def test_taints(before: GpuState, after: GpuState, word: str) -> None:
    assert any(word in taint for taint in Watch().taints(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (state(), state()),
        (state(345, "gpu_idle"), state(1980)),
        (state(), state(1900)),
        (state(1980, "sw_power_cap"), state(1970, "sw_power_cap")),
        (GpuState(), GpuState()),
    ],
)
def test_clean(before: GpuState, after: GpuState) -> None:
    assert Watch().taints(before, after) == ()


def test_the_steady_clock_is_remembered_and_a_legitimately_slow_gpu_is_accepted() -> None:
    watch = Watch()
    assert watch.taints(state(1980), state(1980)) == ()
    assert watch.taints(state(1500), state(1500)), "slower than before, though it did not drop meanwhile"
    assert watch.steady_mhz == 1980
    watch.accept(state(1500))
    assert watch.taints(state(1500), state(1500)) == ()
