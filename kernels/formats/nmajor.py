"""N-major rows, K contiguous: one row of the packed weight is one row of the weight."""

from __future__ import annotations

import torch

from roofgap.kernels.formats.bits import pack_nibbles, unpack_nibbles
from roofgap.kernels.formats.layout import Layout, PackedWeight
from roofgap.kernels.formats.weight import DTYPES, QuantizedWeight
from roofgap.shapes.problem import Problem


class NMajor(Layout):
    """Word ``codes[n, r]`` holds eight consecutive k of output n; neighbours in memory are neighbours in k.

    ::

        codes[n, r]   bit 31..28  27..24  ...  7..4    3..0
                      k = 8r+7    8r+6    ...  8r+1    8r        (of output n)

        codes   int32 [N, ceil(K/8)]     nibbles past K are 0
        scales  float [N, G]
        zeros   asym:   int32 [N, ceil(G/8)], nibble j of word c is the zero of group 8c+j; nibbles past G are 0
                offset: float [N, G], dtype of the scales
                sym:    None

    A dot product reads one contiguous run of codes and one of scales.
    """

    name = "nmajor"

    @classmethod
    def pack(cls, weight: QuantizedWeight) -> PackedWeight:
        """Arranges a canonical weight."""
        zeros = weight.zeros
        if zeros is not None and weight.zero_mode == "asym":
            zeros = pack_nibbles(zeros)
        return PackedWeight(
            n=weight.n,
            k=weight.k,
            group_size=weight.group_size,
            zero_mode=weight.zero_mode,
            layout=cls.name,
            codes=pack_nibbles(weight.codes),
            scales=weight.scales.clone(memory_format=torch.contiguous_format),
            zeros=None if zeros is None else zeros.clone(memory_format=torch.contiguous_format),
        )

    @classmethod
    def unpack(cls, packed: PackedWeight) -> QuantizedWeight:
        """Restores the canonical weight."""
        zeros = packed.zeros
        if zeros is not None and packed.zero_mode == "asym":
            zeros = unpack_nibbles(zeros, packed.scales.shape[1]).contiguous()
        return QuantizedWeight(
            codes=unpack_nibbles(packed.codes, packed.k).contiguous(),
            scales=packed.scales,
            zeros=zeros,
            group_size=packed.group_size,
        )

    @classmethod
    def meta(cls, problem: Problem) -> PackedWeight:
        """Shapes and dtypes of a problem's weight, without memory."""
        n, groups, dtype = problem.n, problem.groups, DTYPES[problem.x_dtype]
        zeros = {
            "sym": None,
            "asym": torch.empty(n, -(-groups // 8), dtype=torch.int32, device="meta"),
            "offset": torch.empty(n, groups, dtype=dtype, device="meta"),
        }[problem.zero_mode]
        return PackedWeight(
            n=n,
            k=problem.k,
            group_size=problem.group_size,
            zero_mode=problem.zero_mode,
            layout=cls.name,
            codes=torch.empty(n, -(-problem.k // 8), dtype=torch.int32, device="meta"),
            scales=torch.empty(n, groups, dtype=dtype, device="meta"),
            zeros=zeros,
        )

    @classmethod
    def out_features(cls, codes: torch.Tensor) -> int:
        """N of packed codes."""
        return codes.shape[0]
