"""GPUs that kernels can be compiled for without having one: their limits and their issue width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roofgap.kernels.variant import Limits, max_cluster
from roofgap.shapes.device import DeviceProfile, load_device
from roofgap.shapes.errors import RoofgapError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One compile target.

    An ``sm`` is a streaming multiprocessor (NVIDIA) or a compute unit (AMD); a ``block`` is a Triton program;
    a ``warp`` is a wave on AMD.

    Attributes:
        name: as users type it, e.g. ``"sm_86"``.
        backend: Triton's backend name.
        arch: what Triton's ``GPUTarget`` takes: 86, or ``"gfx942"``.
        warp_size: threads per warp.
        device: the shipped device profile that stands for the target unless another is named; None if there
            is none.
        sm_count: SMs of a typical part, for default configs where no profile is given.
        max_warps: resident warps per SM.
        max_blocks: resident blocks per SM.
        registers: 32-bit registers per SM and per lane of the widest allocation: NVIDIA's register file in
            registers, AMD's in VGPRs per lane per SIMD.
        register_unit: registers are handed out in multiples of this (per warp on NVIDIA, per lane on AMD).
        max_registers: registers one thread can address.
        shared_bytes: shared memory per SM.
        block_shared_bytes: shared memory one block may have.
        reserved_shared_bytes: shared memory the system keeps per block.
        shared_unit: shared memory is handed out in multiples of this.
        schedulers: warp schedulers per SM, each issuing one instruction per clock (AMD: SIMDs).
        issue_lanes: thread-instructions an SM can start per clock. NVIDIA: 4 schedulers x 32 lanes, of any
            kind.
            AMD CDNA: 4 SIMDs x 16 lanes of *vector* instructions; scalar, memory and branch instructions of
            other waves issue beside them.
        int_lanes: lanes per clock of the integer pipe (add, compare, logic, shift), or None where not
            published.
    """

    name: str
    backend: Literal["cuda", "hip"]
    arch: int | str
    warp_size: int
    device: str | None
    sm_count: int
    max_warps: int
    max_blocks: int
    registers: int
    register_unit: int
    max_registers: int
    shared_bytes: int
    block_shared_bytes: int
    reserved_shared_bytes: int
    shared_unit: int
    schedulers: int = 4
    issue_lanes: int = 128
    int_lanes: int | None = None

    def limits(self, device: DeviceProfile | None = None) -> Limits:
        """What a config may use on this target, on one device if given."""
        return Limits(
            sm_count=device.sm_count if device else self.sm_count,
            shared_bytes=self.block_shared_bytes,
            max_warps=1024 // self.warp_size,
            warp_size=self.warp_size,
            max_cluster=max_cluster(int(self.arch) // 10 if self.backend == "cuda" else 0),
        )


def _nvidia(
    arch: int,
    device: str | None,
    *,
    sms: int,
    warps: int,
    blocks: int,
    shared_kib: int,
    int_lanes: int | None = 64,
) -> Target:
    """Compute capabilities and their limits: CUDA C++ Programming Guide, tables "Technical Specifications per
    Compute Capability" and "Throughput of Native Arithmetic Instructions"."""
    return Target(
        name=f"sm_{arch}",
        backend="cuda",
        arch=arch,
        warp_size=32,
        device=device,
        sm_count=sms,
        max_warps=warps,
        max_blocks=blocks,
        registers=64 * 1024,
        register_unit=256,
        max_registers=255,
        shared_bytes=shared_kib * 1024,
        block_shared_bytes=(shared_kib - 1) * 1024,
        reserved_shared_bytes=1024,
        shared_unit=128,
        int_lanes=int_lanes,
    )


def _cdna(arch: str, device: str | None, *, cus: int) -> Target:
    """Limits as LLVM's AMDGPUBaseInfo and the CDNA ISA guides give them: 8 waves per SIMD, 512 VGPRs per lane
    shared by the vector and accumulator files, 64 KiB of LDS, 16 barriers (blocks of more than one wave)."""
    return Target(
        name=arch,
        backend="hip",
        arch=arch,
        warp_size=64,
        device=device,
        sm_count=cus,
        max_warps=32,
        max_blocks=16,
        registers=512,
        register_unit=8,
        max_registers=512,
        shared_bytes=64 * 1024,
        block_shared_bytes=64 * 1024,
        reserved_shared_bytes=0,
        shared_unit=512,
        issue_lanes=64,
    )


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _nvidia(80, "a100-sxm4-80gb", sms=108, warps=64, blocks=32, shared_kib=164),
        _nvidia(86, "rtx-3060", sms=28, warps=48, blocks=16, shared_kib=100),
        _nvidia(89, "rtx-4090", sms=128, warps=48, blocks=24, shared_kib=100),
        _nvidia(90, "h200", sms=132, warps=64, blocks=32, shared_kib=228),
        _nvidia(100, None, sms=148, warps=64, blocks=32, shared_kib=228, int_lanes=None),
        _cdna("gfx942", "mi300x", cus=304),
        _cdna("gfx90a", None, cus=104),
    )
}


def load_target(name: str) -> Target:
    """The target of that name.

    Raises:
        RoofgapError: no such target.
    """
    try:
        return TARGETS[name]
    except KeyError:
        raise RoofgapError(f"target {name!r}", "unknown", f"use one of {', '.join(TARGETS)} or all") from None


def device_for(target: Target, name: str | None = None) -> DeviceProfile | None:
    """The device profile to set a kernel for ``target`` against: the named one, else the target's own, if it
    has one.

    Raises:
        RoofgapError: no such profile, or one of another architecture.
    """
    chosen = name or target.device
    if chosen is None:
        return None
    device = load_device(chosen)
    if device.target.removesuffix("a") != target.name and device.target != target.name:
        raise RoofgapError(
            f"device {device.name}",
            f"is {device.target} and not {target.name}",
            f"inspect for --target {device.target}, or name a {target.name} device",
        )
    return device
