"""Round-to-nearest (RTN) quantisation of a dense weight: the least a quantiser can do, and deterministic."""

from __future__ import annotations

import torch

from roofgap.kernels.formats.weight import FLOATS, QuantizedWeight
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem


def quantise(weight: torch.Tensor, group_size: int = 128, *, symmetric: bool = True) -> QuantizedWeight:
    """Quantises [N, K] per group of ``group_size`` along K; scales have the weight's dtype.

    Symmetric: ``s = max|w| / 7``, ``q = round(w / s) + 8``, codes 1..15, so that 0 is exact and signs mirror.
    Asymmetric: ``s = (max - min) / 15`` over the group and 0, ``z = round(-min / s)``, so that 0 is exact as well.
    A group of zeros gets scale 0 and codes equal to its zero. Codes are rounded against the *stored* scale, so that the
    scale's own rounding is corrected for. Any strides are accepted; -1 means one group per row; a K that the group
    size does not divide ends in a shorter group.

    Raises:
        RoofgapError: not a float matrix, NaN or infinite weights, or scales that overflow the weight's dtype.
    """
    if weight.ndim != 2 or weight.dtype not in FLOATS:
        raise RoofgapError(
            f"weight {str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}",
            "must be a fp16, bf16 or fp32 matrix [N, K]",
            "reshape or cast it",
        )
    if not bool(torch.isfinite(weight).all()):
        bad = int((~torch.isfinite(weight)).sum())
        raise RoofgapError(
            f"weight with {bad} NaN or infinite values", "cannot be quantised", "repair it first"
        )
    n, k = weight.shape
    sizes = Problem(n=n, k=k, group_size=group_size)
    padding = sizes.groups * sizes.group - k
    # Zeros in the ragged group's padding change neither max|w| nor the range that includes 0.
    groups = torch.nn.functional.pad(weight.float(), (0, padding)).reshape(n, sizes.groups, sizes.group)
    if symmetric:
        scales = (groups.abs().amax(-1) / 7).to(weight.dtype)
        zeros = torch.full_like(scales, 8, dtype=torch.float32)
    else:
        low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
        scales = ((high - low) / 15).to(weight.dtype)
        zeros = (-low * _reciprocal(scales)).round().clamp(0, 15)
    if not bool(torch.isfinite(scales).all()):
        raise RoofgapError(
            f"weight of range {float(weight.float().abs().max()):.3g}",
            "has scales beyond its own dtype",
            "cast it to fp32 first",
        )
    codes = (groups * _reciprocal(scales)[..., None] + zeros[..., None]).round().clamp(0, 15)
    return QuantizedWeight(
        codes=codes.to(torch.uint8).reshape(n, -1)[:, :k].contiguous(),
        scales=scales,
        zeros=None if symmetric else zeros.to(torch.uint8),
        group_size=group_size,
    )


def _reciprocal(scales: torch.Tensor) -> torch.Tensor:
    """1 / s in fp32, 0 where s is 0."""
    wide = scales.float()
    return torch.where(wide == 0, 0.0, 1 / wide)
