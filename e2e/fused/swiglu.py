"""SwiGLU behind a gate and an up projection, one launch.

    y[m, i] = silu(gate[m, i]) * up[m, i],   silu(z) = z / (1 + exp(-z))     (Shazeer 2020)

Layout: gate, up [M, I] 16-bit, the halves of one fused gate|up output [M, 2 I] or two tensors; rows may be
further apart than I. y [M, I] contiguous.
Bytes: reads 4 I M, writes 2 I M. fp32 inside, rounded once; unfused it is two kernels and silu(gate) is
rounded between them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import torch
import triton
import triton.language as tl

from roofgap.e2e.fused.launching import refuse_dtype, run
from roofgap.kernels.ints import cdiv
from roofgap.kernels.step import Launch
from roofgap.kernels.variants._epilogue import silu_product
from roofgap.shapes.errors import RoofgapError

BLOCK = 512  # 18 programs for Qwen2.5-1.5B's 8,960: enough to hide the loads, few enough to start at once


@triton.jit
def swiglu_kernel(
    gate_ptr,  # [M, I]
    up_ptr,  # [M, I]
    y_ptr,  # [M, I]
    width,
    stride_gate,
    stride_up,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr = False,
):
    """BLOCK values of a row; grid (M, ceil(I / BLOCK))."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < width
    gate = tl.load(gate_ptr + row * stride_gate + offs, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * stride_up + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * width + offs, silu_product(gate, up).to(y_ptr.dtype.element_ty), mask=mask)


def plan(gate: torch.Tensor, up: torch.Tensor, y: torch.Tensor) -> list[Launch]:
    """The launch that fills ``y``. Meta tensors are legal."""
    rows, width = gate.shape
    args = {
        "gate_ptr": gate,
        "up_ptr": up,
        "y_ptr": y,
        "width": width,
        "stride_gate": gate.stride(0),
        "stride_up": up.stride(0),
        "BLOCK": BLOCK,
    }
    grid = (rows, cdiv(width, BLOCK))
    return [Launch(kernel=swiglu_kernel, grid=grid, args=args, num_warps=4, role="other")]


@torch.library.custom_op("roofgap::swiglu", mutates_args=())
def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    run(plan(gate, up, y), gate.device)
    return y


@_swiglu.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up``, fp16 or bf16 [M, I] each, as views of one tensor or not.

    Raises:
        RoofgapError: other dtypes, or two shapes.
    """
    refuse_dtype("gate", gate)
    refuse_dtype("up", up, gate.dtype)
    if gate.shape != up.shape or gate.ndim != 2:
        raise RoofgapError(
            f"gate {list(gate.shape)} and up {list(up.shape)}", "must both be [M, I]", "reshape them"
        )
    return _swiglu(gate, up)  # type: ignore[no-any-return]
