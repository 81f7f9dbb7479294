"""K-packed words, N contiguous: the layout of GPTQ files and of both write-ups that this project measures."""

from __future__ import annotations

import torch

from roofgap.kernels.formats.bits import pack_nibbles, unpack_nibbles
from roofgap.kernels.formats.layout import Layout, PackedWeight
from roofgap.kernels.formats.weight import DTYPES, QuantizedWeight
from roofgap.shapes.problem import Problem


class KPacked(Layout):
    """Word ``codes[r, n]`` holds eight consecutive k of one output n; neighbours in memory are neighbours in n.

    ::

        codes[r, n]   bit 31..28  27..24  ...  7..4    3..0
                      k = 8r+7    8r+6    ...  8r+1    8r        (of output n)

        codes   int32 [ceil(K/8), N]     nibbles past K are 0
        scales  float [G, N]
        zeros   asym:   int32 [G, ceil(N/8)], nibble j of word c is the zero of n = 8c+j; nibbles past N are 0
                offset: float [G, N], dtype of the scales
                sym:    None

    A group size is a multiple of 8 (or covers all of K), so that a word never straddles two groups.
    """

    name = "kpacked"

    @classmethod
    def pack(cls, weight: QuantizedWeight) -> PackedWeight:
        """Arranges a canonical weight."""
        zeros = weight.zeros
        if zeros is not None:
            zeros = pack_nibbles(zeros.T) if weight.zero_mode == "asym" else _transposed(zeros)
        return PackedWeight(
            n=weight.n,
            k=weight.k,
            group_size=weight.group_size,
            zero_mode=weight.zero_mode,
            layout=cls.name,
            codes=_transposed(pack_nibbles(weight.codes)),
            scales=_transposed(weight.scales),
            zeros=zeros,
        )

    @classmethod
    def unpack(cls, packed: PackedWeight) -> QuantizedWeight:
        """Restores the canonical weight."""
        zeros = packed.zeros
        if zeros is not None:
            asym = packed.zero_mode == "asym"
            zeros = _transposed(unpack_nibbles(zeros, packed.n) if asym else zeros)
        return QuantizedWeight(
            codes=unpack_nibbles(packed.codes.T, packed.k).contiguous(),
            scales=_transposed(packed.scales),
            zeros=zeros,
            group_size=packed.group_size,
        )

    @classmethod
    def meta(cls, problem: Problem) -> PackedWeight:
        """Shapes and dtypes of a problem's weight, without memory."""
        groups, dtype = problem.groups, DTYPES[problem.x_dtype]
        zeros = {
            "sym": None,
            "asym": torch.empty(groups, -(-problem.n // 8), dtype=torch.int32, device="meta"),
            "offset": torch.empty(groups, problem.n, dtype=dtype, device="meta"),
        }[problem.zero_mode]
        return PackedWeight(
            n=problem.n,
            k=problem.k,
            group_size=problem.group_size,
            zero_mode=problem.zero_mode,
            layout=cls.name,
            codes=torch.empty(-(-problem.k // 8), problem.n, dtype=torch.int32, device="meta"),
            scales=torch.empty(groups, problem.n, dtype=dtype, device="meta"),
            zeros=zeros,
        )

    @classmethod
    def out_features(cls, codes: torch.Tensor) -> int:
        """N of packed codes."""
        return codes.shape[1]


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with canonical strides, which ``.T.contiguous()`` does not give to an axis of length 1."""
    return tensor.T.clone(memory_format=torch.contiguous_format)
