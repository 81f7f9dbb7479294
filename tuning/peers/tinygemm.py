"""tinygemm: torch's ``_weight_int4pack_mm``, raw, bf16 only."""

from __future__ import annotations

import torch

from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.reference import Reference, reference
from roofgap.shapes.problem import Problem
from roofgap.tuning.peers.peer import Packed, Peer, Tuned

INNER_K_TILES = 8
GROUPS = (32, 64, 128, 256)


class TinyGemm(Peer):
    """w = (q - 8) * s + z, s and z bf16, interleaved as [K/g, N, 2]; the codes in tensor-core order.

    Arithmetic (aten/native/cuda/int4mm.cu): codes to bf16 exactly, one bf16 fma per weight, bf16 tensor cores with fp32
    sums. So one rounding per weight and one of the output, which is ``rounds_weights`` of the tolerance in bf16.
    """

    name = "tinygemm"
    dtypes = ("bf16",)

    def refuses(self, problem: Problem) -> str | None:
        """Shapes that its packing does not take."""
        n, k = problem.n, problem.k
        if problem.group_size not in GROUPS or k % problem.group_size or k % 128 or n % 8:
            return "tinygemm takes N in multiples of 8, K of 128 and of the group, groups of 32 to 256"
        return None

    def pack(self, weight: QuantizedWeight, dtype: torch.dtype) -> Packed:
        """z is the offset of code 8; scales and z are rounded to bf16."""
        bytes_of_two = (weight.codes[:, ::2] << 4) | weight.codes[:, 1::2]
        wide = weight.with_offsets()
        assert wide.zeros is not None
        pairs = torch.stack([wide.scales.T, (wide.zeros + 8 * wide.scales).T], dim=-1)
        return Packed(
            n=weight.n,
            k=weight.k,
            group_size=weight.group_size,
            dtype=dtype,
            read={
                "codes": torch._convert_weight_to_int4pack(bytes_of_two.contiguous(), INNER_K_TILES),
                "scales_zeros": pairs.to(torch.bfloat16).contiguous(),
            },
        )

    def run(self, x: torch.Tensor, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns a new tensor: the op has no ``out``."""
        codes, pairs = packed.read["codes"], packed.read["scales_zeros"]
        return torch._weight_int4pack_mm(x, codes, packed.group_size, pairs)

    def reference(self, x: torch.Tensor, weight: QuantizedWeight, packed: Packed, tuned: Tuned) -> Reference:
        """With the scales and zeros as they were stored."""
        pairs = packed.read["scales_zeros"].float()
        scales, zeros = pairs[..., 0].T.contiguous(), pairs[..., 1].T
        stored = QuantizedWeight(
            codes=weight.codes, scales=scales, zeros=zeros - 8 * scales, group_size=weight.group_size
        )
        return reference(x, stored)
