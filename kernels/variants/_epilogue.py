"""What follows a sum before it is stored: bias, then the residual stream or a SwiGLU, all in fp32, rounded once.

    y = sum + bias + residual
    y = silu(gate + bias_gate) * (up + bias_up),   silu(z) = z / (1 + exp(-z))     (Shazeer 2020)

A linear without these rounds its output, a kernel behind it reads that, and rounds again.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def silu_product(gate, up):
    """``silu(gate) * up`` of fp32 values."""
    return gate / (1 + tl.exp(-gate)) * up


@triton.jit
def load_or_zero(ptr, offs, wanted):
    """fp32 values at ``offs``, or 0 where there is no tensor."""
    return 0.0 if ptr is None else tl.load(ptr + offs, mask=wanted, other=0.0).to(tl.float32)


@triton.jit
def finish(y, up, bias, up_bias, residual, SWIGLU: tl.constexpr):
    """fp32 outputs of fp32 sums y. With SWIGLU these are the gate's and ``up`` those beside them, else it is unused."""
    y += bias
    if SWIGLU:
        y = silu_product(y, up + up_bias)
    return y + residual


@triton.jit
def finish_row(y, up, bias_ptr, residual_ptr, row, offs_n, width, SWIGLU: tl.constexpr):
    """``finish`` for columns ``offs_n`` of one token; y has ``width``, its residual begins at ``row``."""
    wanted = offs_n < width
    bias = load_or_zero(bias_ptr, offs_n, wanted)
    up_bias = load_or_zero(bias_ptr, width + offs_n, wanted) if SWIGLU else 0.0
    return finish(y, up, bias, up_bias, load_or_zero(residual_ptr, row + offs_n, wanted), SWIGLU)
