"""4-bit tensors as checkpoint files hold them, to and from the canonical weight, exactly.

====================  ==============================  =============================  =====================
format                codes                           zeros                          scales
====================  ==============================  =============================  =====================
``gptq`` (v1)         ``qweight`` int32 [K/8, N]      ``qzeros`` int32 [G, N/8],     ``scales`` [G, N]
                      along K                         along N, zero - 1 stored
``gptq_v2``           the same                        the same, zero stored          the same
``awq`` (gemm)        ``qweight`` int32 [K, N/8]      ``qzeros`` int32 [G, N/8],     ``scales`` [G, N]
                      along N, order 0 2 4 6 1 3 5 7  the same order, zero stored
``compressed-tensors``  ``weight_packed`` int32       ``weight_zero_point`` int32    ``weight_scale`` [N, G]
(pack-quantized)      [N, K/8] along K                [N/8, G] along N
====================  ==============================  =============================  =====================

Everywhere else nibble j of a word is element j, least significant first. compressed-tensors calls its codes and zeros
signed and stores them plus 8, which is what the canonical weight holds. Readers take keyword arguments only: scales and
zeros have been swapped before.
"""

from __future__ import annotations

from typing import Literal

import torch

from roofgap.kernels.formats.bits import pack_nibbles, unpack_nibbles
from roofgap.kernels.formats.weight import SYM_ZERO, QuantizedWeight
from roofgap.shapes.errors import RoofgapError

GptqVersion = Literal["gptq", "gptq_v2"]
Tensors = dict[str, torch.Tensor]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def from_gptq(
    *,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    qzeros: torch.Tensor,
    group_size: int,
    sym: bool,
    version: GptqVersion = "gptq",
    g_idx: torch.Tensor | None = None,
) -> QuantizedWeight:
    """Reads a GPTQ layer.

    A symmetric file's zeros are only checked: all 7 (v1) or all 8 (v2), whatever its label says, since mislabelled
    files are common and the two cannot be confused. An asymmetric v1 file can mean a zero of 16 (15 stored), which no
    4-bit zero holds: such a weight comes back in ``offset`` mode, exactly.

    Raises:
        RoofgapError: activation order (groups that are not consecutive in k), or zeros that contradict ``sym``.
    """
    n = scales.shape[1]
    codes = unpack_nibbles(qweight.T, qweight.shape[0] * 8)
    _refuse_activation_order(g_idx, group_size, codes.shape[1])
    stored = unpack_nibbles(qzeros, n).T
    scales = scales.T.contiguous()
    if sym:
        if not bool((stored == stored.flatten()[0]).all()) or int(stored.flatten()[0]) not in (7, 8):
            raise RoofgapError(
                f"symmetric GPTQ zeros {sorted(set(stored.flatten().tolist()))}",
                "must be all 7 (v1) or all 8 (v2)",
                "read it with sym=False if it is asymmetric",
            )
        return QuantizedWeight(codes=codes.contiguous(), scales=scales, group_size=group_size)
    zeros = stored.to(torch.int32) + (1 if version == "gptq" else 0)
    if bool((zeros > 15).any()):
        base = QuantizedWeight(codes=codes.contiguous(), scales=scales, group_size=group_size)
        return base.with_offsets(zeros)
    return QuantizedWeight(
        codes=codes.contiguous(),
        scales=scales,
        zeros=zeros.to(torch.uint8).contiguous(),
        group_size=group_size,
    )


def to_gptq(weight: QuantizedWeight, version: GptqVersion = "gptq") -> Tensors:
    """Writes a GPTQ layer, ``g_idx`` included.

    Raises:
        RoofgapError: offsets, sizes that are not whole words, or a zero of 0 in v1 (it would be stored as -1).
    """
    _refuse_offsets(weight, "GPTQ")
    _refuse_partial_words(weight, "GPTQ", n=True, k=True)
    zeros = _zeros_of(weight)
    if version == "gptq":
        if bool((zeros == 0).any()):
            raise RoofgapError(
                "a zero of 0",
                "cannot be stored as zero - 1 by GPTQ v1",
                "write gptq_v2, which stores it as it is",
            )
        zeros = zeros - 1
    return {
        "qweight": pack_nibbles(weight.codes).T.contiguous(),
        "qzeros": pack_nibbles(zeros.T).contiguous(),
        "scales": weight.scales.T.contiguous(),
        "g_idx": (torch.arange(weight.k, device=weight.codes.device) // weight.group).to(torch.int32),
    }


def from_awq(
    *, qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor, group_size: int
) -> QuantizedWeight:
    """Reads an AWQ layer of version ``gemm``."""
    return QuantizedWeight(
        codes=_awq_columns(qweight).T.contiguous(),
        scales=scales.T.contiguous(),
        zeros=_awq_columns(qzeros).T.contiguous(),
        group_size=group_size,
    )


def to_awq(weight: QuantizedWeight) -> Tensors:
    """Writes an AWQ layer of version ``gemm``; a symmetric weight gets zeros of 8.

    Raises:
        RoofgapError: offsets, or an N that is not whole words.
    """
    _refuse_offsets(weight, "AWQ")
    _refuse_partial_words(weight, "AWQ", n=True, k=False)
    return {
        "qweight": _awq_words(weight.codes.T),
        "qzeros": _awq_words(_zeros_of(weight).T),
        "scales": weight.scales.T.contiguous(),
    }


def from_compressed_tensors(
    *,
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_shape: torch.Tensor,
    weight_zero_point: torch.Tensor | None = None,
    weight_g_idx: torch.Tensor | None = None,
    group_size: int,
) -> QuantizedWeight:
    """Reads a pack-quantized layer of compressed-tensors; no zero point means symmetric.

    Raises:
        RoofgapError: activation order.
    """
    n, k = (int(size) for size in weight_shape)
    _refuse_activation_order(weight_g_idx, group_size, k)
    zeros = None if weight_zero_point is None else unpack_nibbles(weight_zero_point.T, n).T.contiguous()
    return QuantizedWeight(
        codes=unpack_nibbles(weight_packed, k).contiguous(),
        scales=weight_scale.contiguous(),
        zeros=zeros,
        group_size=group_size,
    )


def to_compressed_tensors(weight: QuantizedWeight) -> Tensors:
    """Writes a pack-quantized layer; any N and K.

    Raises:
        RoofgapError: offsets.
    """
    _refuse_offsets(weight, "compressed-tensors")
    tensors = {
        "weight_packed": pack_nibbles(weight.codes),
        "weight_scale": weight.scales.contiguous(),
        "weight_shape": torch.tensor([weight.n, weight.k], dtype=torch.int64),
    }
    if weight.zeros is not None:
        tensors["weight_zero_point"] = pack_nibbles(weight.zeros.T).T.contiguous()
    return tensors


def _zeros_of(weight: QuantizedWeight) -> torch.Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full(weight.scales.shape, SYM_ZERO, dtype=torch.uint8, device=weight.codes.device)


def _awq_words(codes: torch.Tensor) -> torch.Tensor:
    """uint8 [R, N] -> int32 [R, N/8]; nibble i of a word is column ``_AWQ_ORDER[i]`` of its eight."""
    return pack_nibbles(codes.reshape(codes.shape[0], -1, 8)[:, :, list(_AWQ_ORDER)].flatten(1))


def _awq_columns(words: torch.Tensor) -> torch.Tensor:
    """int32 [R, N/8] -> uint8 [R, N]."""
    nibbles = unpack_nibbles(words, words.shape[1] * 8).reshape(words.shape[0], -1, 8)
    return nibbles[:, :, [_AWQ_ORDER.index(column) for column in range(8)]].flatten(1)


def _refuse_activation_order(g_idx: torch.Tensor | None, group_size: int, k: int) -> None:
    group = k if group_size == -1 else group_size
    if g_idx is not None and not torch.equal(g_idx.long().cpu(), torch.arange(k) // group):
        raise RoofgapError(
            "g_idx of a checkpoint quantised with activation order",
            "puts groups out of order along k, which no layout here holds",
            "quantise with desc_act=False, or permute the weight's inputs and x once",
        )


def _refuse_offsets(weight: QuantizedWeight, name: str) -> None:
    if weight.zero_mode == "offset":
        raise RoofgapError("a weight with float offsets", f"has no place in {name} files", "use sym or asym")


def _refuse_partial_words(weight: QuantizedWeight, name: str, *, n: bool, k: bool) -> None:
    for size, letter, matters in ((weight.n, "N", n), (weight.k, "K", k)):
        if matters and size % 8:
            raise RoofgapError(
                f"{letter}={size}", f"must be a multiple of 8 in {name} files", "pad the weight"
            )
