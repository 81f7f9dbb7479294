"""The public functions, in the words the field uses for them."""

from __future__ import annotations

import torch

from roofgap.kernels.formats.kpacked import KPacked
from roofgap.kernels.formats.layout import PackedWeight
from roofgap.kernels.formats.quantise import quantise
from roofgap.kernels.ops import linear
from roofgap.shapes.problem import ZeroMode


def quantize_weight_int4_grouped(
    weight: torch.Tensor, group_size: int = 128
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round-to-nearest, asymmetric, K-packed.

    Args:
        weight: fp16, bf16 or fp32 [N, K] (out features x in features), any strides.
        group_size: weights along K that share a scale; a multiple of 8, or -1 for the whole row.

    Returns:
        ``packed`` int32 [ceil(K/8), N], eight codes along K per word, least significant first; ``scales`` [G, N] in the
        weight's dtype; ``zeros`` int32 [G, ceil(N/8)], eight zeros along N per word, stored as they are (no minus one).
        ``w[n, k] = scales[k // group_size, n] * (code[n, k] - zero[k // group_size, n])``.

    Raises:
        RoofgapError: not a float matrix, or NaN or infinite weights.
    """
    packed = KPacked.pack(quantise(weight, group_size, symmetric=False))
    assert packed.zeros is not None
    return packed.codes, packed.scales, packed.zeros


def w4a16_gemm(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    group_size: int = 128,
    *,
    bias: torch.Tensor | None = None,
    variant: str = "gemm",
) -> torch.Tensor:
    """``x @ dequantise(packed, scales, zeros)^T + bias`` with fp32 accumulation.

    Args:
        x: fp16 or bf16 [..., K]; rows may be further apart than K.
        packed: int32 [ceil(K/8), N].
        scales: float [G, N].
        zeros: int32 [G, ceil(N/8)] packed zeros, float [G, N] offsets (``w = s * q + o``), or None (zero 8 everywhere).
        group_size: as quantised with.
        bias: [N] in x's dtype.
        variant: any registered variant that reads K-packed words.

    Returns:
        [..., N] in x's dtype; empty where x is.

    Raises:
        RoofgapError: operands that do not fit together.
    """
    mode: ZeroMode = "sym" if zeros is None else "offset" if zeros.is_floating_point() else "asym"
    weight = PackedWeight(
        n=packed.shape[1],
        k=x.shape[-1],
        group_size=group_size,
        zero_mode=mode,
        layout=KPacked.name,
        codes=packed,
        scales=scales,
        zeros=zeros,
    )
    return linear(x, weight, variant=variant, bias=bias)
