"""Writes a GPU's measured ceilings into its device profile."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from roofgap.shapes.device import DeviceProfile, Measured, load_device
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure.bandwidth import (
    Bandwidth,
    LaunchFloor,
    copy_bandwidth,
    launch_floor,
    read_bandwidth,
)
from roofgap.tuning.measure.cuda import CudaDevice
from roofgap.tuning.measure.device import Device
from roofgap.tuning.winner import gpu_slug

QUERIED = "queried from the driver through torch and NVML"


def measure_profile(device: CudaDevice) -> DeviceProfile:
    """The shipped profile of this GPU with its ``measured`` part filled anew; the specifications stay.

    A GPU without a shipped profile gets one from what the driver says about it.

    Raises:
        RoofgapError: too little memory is free, or the driver withholds a number that a profile needs.
        MeasureError: a stream was not read whole.
    """
    measured = measure_ceilings(device)
    try:
        profile = load_device(device.name)
    except RoofgapError:
        profile = queried_profile(device.name, device.properties, device.nvml.max_sm_clock_mhz())
    return profile.model_copy(update={"measured": measured})


def measure_ceilings(device: Device) -> Measured:
    """Read and copy bandwidth, launch floor and the clocks they were taken at."""
    read = read_bandwidth(device)
    state = device.state()
    copied, floor = copy_bandwidth(device), launch_floor(device)
    return Measured(
        provenance="measured",
        read_gbps=round(read.gbps, 1),
        copy_gbps=round(copied.gbps, 1),
        launch_floor_us=round(floor.latency_us, 3),
        sm_clock_mhz=state.sm_clock_mhz,
        memory_clock_mhz=state.memory_clock_mhz,
        date=date.today().isoformat(),
        versions=device.versions(),
        method=_method(read, copied, floor),
    )


def _method(read: Bandwidth, copied: Bandwidth, floor: LaunchFloor) -> str:
    return (
        f"roofgap device measure: CUDA graphs, events, medians. Read: xor over {read.moved_bytes:,} bytes "
        f"({read.config}; p20-p80 {read.p20_gbps:,.0f}-{read.p80_gbps:,.0f} GB/s). Copy: own kernel, "
        f"{copied.moved_bytes:,} bytes read and written ({copied.config}; "
        f"{copied.p20_gbps:,.0f}-{copied.p80_gbps:,.0f} GB/s). Floor: {floor.launches} empty kernels "
        f"({floor.p20_us:.3f}-{floor.p80_us:.3f} us)"
    )


def queried_profile(name: str, properties: Any, max_sm_clock_mhz: float | None) -> DeviceProfile:
    """A profile from torch's device properties; what it does not say (TFLOP/s, say) stays None.

    Raises:
        RoofgapError: NVML does not give the highest SM clock.
    """
    if max_sm_clock_mhz is None:
        raise RoofgapError(
            f"GPU {name!r}",
            "NVML does not tell its highest clock",
            "add a profile under shapes/devices by hand",
        )
    numbers: dict[str, float] = {
        "sm_count": properties.multi_processor_count,
        "boost_clock_mhz": max_sm_clock_mhz,
        "warp_size": properties.warp_size,
        "max_warps_per_sm": properties.max_threads_per_multi_processor // properties.warp_size,
        "registers_per_sm": properties.regs_per_multiprocessor,
        "shared_bytes_per_sm": properties.shared_memory_per_multiprocessor,
        "shared_bytes_per_block": properties.shared_memory_per_block_optin,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
    }
    return DeviceProfile.model_validate(
        {
            "name": gpu_slug(name),
            "title": name,
            "aliases": (name,),
            "vendor": "nvidia",
            "target": f"sm_{properties.major}{properties.minor}",
            "compute_capability": f"{properties.major}.{properties.minor}",
            **numbers,
            "sources": {QUERIED: tuple(numbers)},
        }
    )


def default_path(profile: DeviceProfile, folder: Path | None = None) -> Path:
    """Where a profile belongs: ``shapes/devices`` of the working folder if it is there, else the user's data.

    Never an installed package's folder.
    """
    devices = (folder or Path.cwd()) / "shapes" / "devices"
    if not devices.is_dir() or "site-packages" in devices.resolve().parts:
        import platformdirs

        devices = platformdirs.user_data_path("roofgap") / "devices"
    return devices / f"{profile.name}.json"
