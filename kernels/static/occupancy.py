"""How many warps of a kernel fit on an SM at once, and which resource stops the next block."""

from __future__ import annotations

from dataclasses import dataclass

from roofgap.kernels.static.targets import Target

_SGPRS, _SGPR_UNIT = 800, 16  # per SIMD


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Attributes:
    blocks: resident blocks per SM; 0 if one alone does not fit.
    warps: resident warps per SM.
    fraction: warps over the SM's maximum.
    limit: ``warps``, ``blocks``, ``registers`` or ``shared``: what is exhausted first.
    """

    blocks: int
    warps: int
    fraction: float
    limit: str


def estimate(
    target: Target, num_warps: int, registers: int, shared_bytes: int, scalar_registers: int = 0
) -> Occupancy:
    """Theoretical occupancy of a block of ``num_warps`` warps.

    NVIDIA: the CUDA Occupancy Calculator's rules: registers are allocated per warp in units of 256 out of a
        quarter
    of the register file per scheduler, shared memory per block in units of 128 bytes plus 1 KiB for the
    system.
    AMD: waves per SIMD from the VGPRs and from the 800 SGPRs in units of 16 (LLVM, AMDGPUBaseInfo), LDS in
        units of
    512 bytes.

    Args:
        target: the GPU.
        num_warps: warps per block.
        registers: per thread; on AMD the vector and accumulator registers together.
        shared_bytes: per block.
        scalar_registers: per wave, AMD only.
    """
    if target.backend == "cuda":
        per_warp = _round_up(max(registers, 1) * target.warp_size, target.register_unit)
        per_scheduler = target.registers // target.schedulers // per_warp
    else:
        per_scheduler = min(
            target.registers // _round_up(max(registers, 1), target.register_unit),
            _SGPRS // _round_up(max(scalar_registers, 1), _SGPR_UNIT),
        )
    per_scheduler = min(per_scheduler, target.max_warps // target.schedulers)
    block_shared = _round_up(shared_bytes + target.reserved_shared_bytes, target.shared_unit)
    fits = shared_bytes <= target.block_shared_bytes and registers <= target.max_registers
    blocks_by = {
        "warps": target.max_warps // num_warps,
        "blocks": target.max_blocks if num_warps > 1 or target.backend == "cuda" else target.max_warps,
        "registers": per_scheduler * target.schedulers // num_warps,
        "shared": target.shared_bytes // block_shared if block_shared else target.max_blocks,
    }
    limit = min(blocks_by, key=lambda name: blocks_by[name])  # the first of equals, in the order above
    if shared_bytes > target.block_shared_bytes:
        limit = "shared"
    blocks = blocks_by[limit] if fits else 0
    warps = blocks * num_warps
    return Occupancy(blocks=blocks, warps=warps, fraction=warps / target.max_warps, limit=limit)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
