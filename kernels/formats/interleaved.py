"""Tiles of 16 rows by 128 weights whose words are, lane by lane, operand fragments of a tensor-core product."""

from __future__ import annotations

import torch

from roofgap.kernels.formats.bits import pack_nibbles, unpack_nibbles
from roofgap.kernels.formats.layout import Layout, PackedWeight
from roofgap.kernels.formats.weight import DTYPES, QuantizedWeight
from roofgap.shapes.problem import Problem

TILE_ROWS = 16
BLOCK_K = 128
BLOCK_WORDS = BLOCK_K // 8


class Interleaved(Layout):
    """A word holds eight consecutive k of one output; 16 rows by 128 k (1 KiB) lie together.

    ::

        word       bit 31..28 27..24 23..20 19..16 15..12 11..8  7..4   3..0
                   k   +7     +3     +5     +1     +6     +2     +4     +0

        memory     [tile of 16 rows][block of 128 k][row in tile][4 c + u],   k = 128 block + 32 u + 8 c + 0..7
        codes      int32 [N, 16 ceil(K/128)] in that order; codes past K are 0
        scales     float [N, G], memory [tile][group][row in tile]
        zeros      asym:   int32 [ceil(N/16), G, 2], nibble j of word h is the zero of row 8h+j of the tile
                   offset: float [N, G], as the scales
                   sym:    None

    Pairs of neighbours in k sit 16 bits apart, so that one AND with 0x000f000f finds two of them where fp16x2 and
    bf16x2 instructions want them. The four words 4c..4c+3 are one 16-byte load of lane 4 (row % 8) + c, and word u
    meets 32 k that the four lanes of a row share: two steps of ``mma.m16n8k16``. Any group that is a multiple of 32
    therefore begins and ends between steps. The last tile has N % 16 rows where that is not 0; nothing is padded but K.
    """

    name = "interleaved"

    @classmethod
    def pack(cls, weight: QuantizedWeight) -> PackedWeight:
        """Arranges a canonical weight."""
        n, k = weight.n, weight.k
        blocks = -(-k // BLOCK_K)
        codes = torch.nn.functional.pad(weight.codes, (0, blocks * BLOCK_K - k))
        # k = 128 b + 32 u + 8 c + 4 h + 2 j + e  ->  [n, b, c, u, (e, j, h)]
        codes = codes.reshape(n, blocks, 4, 4, 2, 2, 2).permute(0, 1, 3, 2, 6, 5, 4)
        words = pack_nibbles(codes.reshape(n, blocks, BLOCK_WORDS, 8)).squeeze(-1)
        zeros = weight.zeros
        if zeros is not None:
            zeros = _pack_zeros(zeros) if weight.zero_mode == "asym" else _to_tiles(zeros)
        return PackedWeight(
            n=n,
            k=k,
            group_size=weight.group_size,
            zero_mode=weight.zero_mode,
            layout=cls.name,
            codes=_to_tiles(words),
            scales=_to_tiles(weight.scales),
            zeros=zeros,
        )

    @classmethod
    def unpack(cls, packed: PackedWeight) -> QuantizedWeight:
        """Restores the canonical weight."""
        n = packed.n
        words = _from_tiles(packed.codes, BLOCK_WORDS)
        codes = unpack_nibbles(words[..., None], 8).reshape(n, -1, 4, 4, 2, 2, 2).permute(0, 1, 3, 2, 6, 5, 4)
        zeros = packed.zeros
        if zeros is not None:
            asym = packed.zero_mode == "asym"
            zeros = (
                unpack_nibbles(zeros, TILE_ROWS).transpose(1, 2).flatten(0, 1)[:n]
                if asym
                else _from_tiles(zeros)
            )
            zeros = zeros.reshape(n, -1).contiguous()
        return QuantizedWeight(
            codes=codes.reshape(n, -1)[:, : packed.k].contiguous(),
            scales=_from_tiles(packed.scales).reshape(n, -1),
            zeros=zeros,
            group_size=packed.group_size,
        )

    @classmethod
    def meta(cls, problem: Problem) -> PackedWeight:
        """Shapes and dtypes of a problem's weight, without memory."""
        n, groups, dtype = problem.n, problem.groups, DTYPES[problem.x_dtype]
        tiles = -(-n // TILE_ROWS)
        zeros = {
            "sym": None,
            "asym": torch.empty(tiles, groups, 2, dtype=torch.int32, device="meta"),
            "offset": torch.empty(n, groups, dtype=dtype, device="meta"),
        }[problem.zero_mode]
        words = -(-problem.k // BLOCK_K) * BLOCK_WORDS
        return PackedWeight(
            n=n,
            k=problem.k,
            group_size=problem.group_size,
            zero_mode=problem.zero_mode,
            layout=cls.name,
            codes=torch.empty(n, words, dtype=torch.int32, device="meta"),
            scales=torch.empty(n, groups, dtype=dtype, device="meta"),
            zeros=zeros,
        )

    @classmethod
    def out_features(cls, codes: torch.Tensor) -> int:
        """N of packed codes."""
        return codes.shape[0]


def _to_tiles(rows: torch.Tensor) -> torch.Tensor:
    """[N, B] or [N, B, W] -> [N, B W] whose memory is [tile][B][row in tile][W]; the last tile may be lower."""
    tiles = [part.transpose(0, 1).reshape(-1) for part in torch.split(rows, TILE_ROWS)]
    return torch.cat(tiles).reshape(rows.shape[0], -1)


def _from_tiles(tiled: torch.Tensor, width: int = 1) -> torch.Tensor:
    """The inverse: [N, B W] -> [N, B, W]."""
    parts = torch.split(tiled, TILE_ROWS)
    rows = [part.reshape(-1, part.shape[0], width).transpose(0, 1) for part in parts]
    return torch.cat(rows).contiguous()


def _pack_zeros(zeros: torch.Tensor) -> torch.Tensor:
    """uint8 [N, G] -> int32 [ceil(N/16), G, 2]."""
    n, groups = zeros.shape
    padded = torch.nn.functional.pad(zeros, (0, 0, 0, -n % TILE_ROWS))
    return pack_nibbles(padded.reshape(-1, TILE_ROWS, groups).transpose(1, 2))
