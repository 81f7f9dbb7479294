"""RMSNorm with the residual add in front of it, one launch.

    r = round16(x + residual)                                   (r = residual where there is no x)
    y[m, h] = weight[h] * r[m, h] / sqrt(mean_h(r^2) + eps)     (Zhang and Sennrich 2019)

Layout: x, residual, y, r [M, H] 16-bit, rows contiguous; weight [H].
Bytes: reads 4 H M + 2 H, writes 4 H M. Unfused it is two kernels at least, and r goes to memory and back
between them.

A program owns a row: H of a decoder (576 to 8,192) fits in its registers, so the row is read once. The sum is
rounded to 16 bits before it is normalised because it is this rounded value that the next layer adds to.
Everything from there to y is fp32 and rounded once; transformers also rounds the normalised value before it
multiplies by the weight.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import torch
import triton
import triton.language as tl

from roofgap.e2e.fused.launching import refuse_dtype, run
from roofgap.kernels.ints import next_power_of_2
from roofgap.kernels.step import Launch
from roofgap.shapes.errors import RoofgapError


@triton.jit
def add_rms_norm_kernel(
    x_ptr,  # [M, H] or None
    residual_ptr,  # [M, H]
    weight_ptr,  # [H]
    y_ptr,  # [M, H]
    sum_ptr,  # [M, H]; not written without x
    hidden,
    eps,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr = False,
):
    """One row; grid (M,)."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) * hidden
    offs = tl.arange(0, BLOCK)
    mask = offs < hidden
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    value = tl.load(residual_ptr + row + offs, mask=mask, other=0.0)
    if x_ptr is not None:
        x = tl.load(x_ptr + row + offs, mask=mask, other=0.0)
        value = (x.to(tl.float32) + value.to(tl.float32)).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row + offs, value, mask=mask)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / hidden + eps)
    tl.store(y_ptr + row + offs, (wide * scale * weight).to(y_ptr.dtype.element_ty), mask=mask)


def plan(
    x: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    total: torch.Tensor,
    eps: float,
) -> list[Launch]:
    """The launch that fills ``y`` and, where there is an x, ``total``. Meta tensors are legal."""
    rows, hidden = residual.shape
    block = next_power_of_2(hidden)
    args = {
        "x_ptr": x,
        "residual_ptr": residual,
        "weight_ptr": weight,
        "y_ptr": y,
        "sum_ptr": total,
        "hidden": hidden,
        "eps": eps,
        "BLOCK": block,
    }
    warps = min(16, max(4, block // 512))
    return [Launch(kernel=add_rms_norm_kernel, grid=(rows,), args=args, num_warps=warps, role="norm")]


@torch.library.custom_op("roofgap::add_rms_norm", mutates_args=())
def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    y, total = torch.empty_like(residual), torch.empty_like(residual)
    run(plan(x, residual, weight, y, total, eps), residual.device)
    return y, total


@_add_rms_norm.register_fake
def _(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(residual), torch.empty_like(residual)


@torch.library.custom_op("roofgap::rms_norm", mutates_args=())
def _rms_norm(residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y = torch.empty_like(residual)
    run(plan(None, residual, weight, y, residual, eps), residual.device)
    return y


@_rms_norm.register_fake
def _(residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(residual)


def add_rms_norm(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds and normalises.

    Args:
        x: fp16 or bf16 [M, H], what the previous block returned; None before the first block.
        residual: [M, H], the stream it is added to.
        weight: [H].
        eps: added to the mean square.

    Returns:
        The normalised sum [M, H] and the sum itself, which is ``residual`` where x is None.

    Raises:
        RoofgapError: other dtypes or shapes.
    """
    refuse_dtype("residual", residual)
    for name, tensor, shape in (("x", x, residual.shape), ("weight", weight, residual.shape[-1:])):
        if tensor is None:
            continue
        refuse_dtype(name, tensor, residual.dtype)
        if tensor.shape != shape:
            raise RoofgapError(f"{name} {list(tensor.shape)}", f"must be {list(shape)}", "correct its shape")
    residual = residual.contiguous()
    if x is None:
        return _rms_norm(residual, weight, eps), residual
    normed, total = _add_rms_norm(x.contiguous(), residual, weight, eps)
    return normed, total
