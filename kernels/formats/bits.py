"""Eight 4-bit codes in one 32-bit word, code j in bits 4j..4j+3 (least significant first)."""

from __future__ import annotations

import torch


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Packs the last axis: uint8 [..., L] of 0..15 -> int32 [..., ceil(L / 8)]; missing codes are 0.

    ::

        bit   31..28 27..24 23..20 19..16 15..12 11..8  7..4   3..0
        code  8r+7   8r+6   8r+5   8r+4   8r+3   8r+2   8r+1   8r
    """
    length = codes.shape[-1]
    padded = torch.nn.functional.pad(codes, (0, -length % 8))
    padded = padded.reshape(*padded.shape[:-1], -1, 8)
    words = torch.zeros(padded.shape[:-1], dtype=torch.int32, device=codes.device)
    for j in range(8):
        words |= padded[..., j].to(torch.int32) << (4 * j)
    return words


def unpack_nibbles(words: torch.Tensor, length: int) -> torch.Tensor:
    """The inverse of ``pack_nibbles``: int32 [..., W] -> uint8 [..., length]."""
    codes = torch.stack([((words >> (4 * j)) & 15).to(torch.uint8) for j in range(8)], dim=-1)
    return codes.flatten(-2)[..., :length]
