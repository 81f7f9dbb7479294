"""What can be chosen about a launch of v4, and what its operands have to be like."""

from __future__ import annotations

from dataclasses import dataclass

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.variant import Operands

STATIC_SHARED = 48 * 1024
"""Bytes that a program may declare (PTX ISA, static shared memory)."""


@dataclass(frozen=True, kw_only=True)
class V4Config(KernelConfig):
    """A warp takes ``tiles`` x 16 rows; ``warps_n`` of the warps lie along N, the others share K block by block.

    ``decode`` is ``limbs`` (one token, short K: exact integer products, tile after tile), ``mma`` (a warp's tiles side
    by side) or ``portable``. ``num_stages`` blocks of 128 k are under way per warp, and ``ahead`` more on their way
    into the L2 (mma alone). ``split_k`` programs share the rows and leave partial sums that a second launch adds in
    order (not limbs). ``cluster`` programs share K and add up within their launch (limbs alone, sm_90 on). ``unroll``
    is for portable alone: blocks per step.
    """

    num_stages: int = 1
    ahead: int = 0
    tiles: int = 1
    unroll: int = 1
    warps_n: int = 1
    split_k: int = 1
    cluster: int = 1
    decode: str = "mma"


def copyable(operands: Operands) -> bool:
    """Whether x and codes come in aligned pieces of 16 bytes, scales and offsets in pairs of 16 bits, as asynchronous
    copies want them; and whether 32 bits can count the words.
    """
    x, codes = operands.x, operands.codes
    floats = [operands.scales] if operands.zeros is None else [operands.scales, operands.zeros]
    aligned = x.storage_offset() % 8 == 0 and (x.shape[0] == 1 or x.stride(0) % 8 == 0)
    aligned &= codes.storage_offset() % 4 == 0
    for one in floats:
        if one.is_floating_point():
            aligned &= one.element_size() == 2 and one.storage_offset() % 2 == 0
    return aligned and codes.numel() < 2**31


def pairs_aligned(operands: Operands) -> bool:
    """Whether bias and residual begin at a multiple of four bytes."""
    extras = (operands.bias, operands.residual)
    return all(one is None or one.storage_offset() % 2 == 0 for one in extras)
