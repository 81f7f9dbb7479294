"""4-bit codes to fp32 with one logic operation and one subtraction per weight, and no conversion.

The bits 0x4B000000 are the float 2^23, whose last mantissa bit is worth 1. Or-ing a code into mantissa bits 4i..4i+3
therefore gives 2^23 + 16^i q exactly, and subtracting 2^23 + 16^i z leaves 16^i (q - z) exactly. The five nibbles 0..4
lie inside the 23-bit mantissa as they are; 5, 6 and 7 become 0, 1 and 2 after one shift by 20 for all three. The
factor 16^i is a power of two that the caller takes back on whatever is shared by more weights: x or the scale.
(The fp16 form of this magic number is from Kim et al. 2022, "Who Says Elephants Can't Run".)
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl

MAGIC = 0x4B000000
"""Goes to kernels as a run-time argument: with both constants known, ptxas splits the and-or into two instructions,
because one LOP3 takes a single immediate."""


@triton.jit
def decode_scaled(
    words,  # int32, nibble NIBBLE wanted
    magic,  # MAGIC
    zero,  # int32 zeros, or fp32 offsets, which are left to the caller
    NIBBLE: tl.constexpr,  # 0..4
    ZERO_MODE: tl.constexpr,
):
    """fp32 ``16^NIBBLE (q - z)``, or ``16^NIBBLE q`` for offsets; exact."""
    raised = ((words & (15 << (4 * NIBBLE))) | magic).to(tl.float32, bitcast=True)
    if ZERO_MODE == "sym":
        value = raised - (8388608.0 + 8.0 * 16**NIBBLE)
    elif ZERO_MODE == "asym":
        value = raised - (8388608 + zero * 16**NIBBLE).to(tl.float32)
    else:
        value = raised - 8388608.0
    return value
