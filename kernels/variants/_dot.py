"""The tensor-core product of a tile of activations and a tile of fp32 weights."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def dot_rounded(x, weight, total):
    """``total += x @ round16(weight)``: x [M, K] fp16 or bf16, weight [K, N] fp32, total [M, N] fp32.

    The interpreter's NumPy has no bf16 and would multiply the bits as integers; there the rounded operands are
    widened, which changes no value.
    """
    weight16 = weight.to(x.dtype)
    if INTERPRETED:
        total = tl.dot(x.to(tl.float32), weight16.to(tl.float32), total, input_precision="ieee")
    else:
        total = tl.dot(x, weight16, total)
    return total
