"""The parts of v4's limb kernel: a warp's copies of some blocks, its limbs of them, and their products.

Tensors are [THREADS], as in ``_v4_kernel.py``.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment, attr-defined, misc, var-annotated"
from __future__ import annotations

import triton
import triton.language as tl

from roofgap.kernels.variants._limbs import MAGIC_BITS, X_BYTES, byte_products, code_sums, joined, limbs_of
from roofgap.kernels.variants._staging import (
    in_first,
    meet,
    read1,
    read4,
    read_float,
    read_sum,
    write_sum,
    write_word,
)
from roofgap.kernels.variants._v4_copies import copy_weights, places

PAIRS = tl.constexpr(2)
"""Lanes of a row that hold a part of its sum: limbs 0 and 1, limbs 2 and 3."""


@triton.constexpr_function
def may_miss(tail, block, blocks):
    """Whether K may end before a warp's block: with TAIL the last one of a tile."""
    return tail and block == blocks - 1


@triton.jit
def copy_blocks(
    slot, tile, first_block, codes_ptr, scales_ptr, zeros_ptr, tile_words, groups, n, k, lane, last_k,
    ZERO_MODE: tl.constexpr, QUANT_GROUP: tl.constexpr, EVEN_N: tl.constexpr, TAIL: tl.constexpr,
    BLOCKS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Starts to copy a warp's BLOCKS blocks of a tile from ``first_block`` on, WARPS apart."""
    PLACES: tl.constexpr = places(1, 0, QUANT_GROUP, ZERO_MODE)
    row, quarter = lane // 4, lane % 4
    row_a, row_b, height = row, row + 8, 16
    if not EVEN_N:
        height = tl.minimum(n - tile * 16, 16)
        row_a, row_b = tl.minimum(row_a, height - 1), tl.minimum(row_b, height - 1)
    codes = codes_ptr + tile * tile_words + (row_a * 16 + quarter * 4 + first_block * (height * 16))
    to_b = 128 if EVEN_N else (row_b - row_a) * 16
    scales = scales_ptr + tile * (16 * groups)
    zeros = ()
    if ZERO_MODE == "asym":
        zeros = (zeros_ptr + tile * (2 * groups),)
    elif ZERO_MODE == "offset":
        zeros = (zeros_ptr + tile * (16 * groups),)
    for b in tl.static_range(BLOCKS):
        block = first_block + b * WARPS
        inside = (block * 128 < k).to(tl.int32) if may_miss(TAIL, b, BLOCKS) else None
        copy_weights(
            slot + b * PLACES[3], (codes + b * WARPS * 16 * height,), (to_b,), (scales,), zeros, (height,), block,
            inside, last_k, lane, ZERO_MODE, QUANT_GROUP, EVEN_N, 1, PLACES[1], PLACES[2],
        )  # fmt: skip


@triton.jit
def blocks_limbs(xs, x_at, scale, lane, BLOCKS: tl.constexpr, DTYPE: tl.constexpr):
    """Limbs that a lane multiplies by, eight words per block, of activations xs, four words per block and lane.

    Lane 16 v + 4 u + c makes the limbs of view v that meet word u of quarter c. They change lanes by way of ``x_at``.
    """
    row, quarter = lane // 4, lane % 4
    view, word = lane // 16, lane // 4 % 4
    for b in tl.static_range(BLOCKS):
        made = limbs_of(xs[b], scale, view, DTYPE)
        to = x_at + b * X_BYTES + quarter * 32 + view * 16 + word * 4
        for limb in tl.static_range(4):
            write_word(to + limb * 128, made[limb])
    meet()
    limbs = ()
    for b in tl.static_range(BLOCKS):
        of_block = x_at + b * X_BYTES + row % 4 * 128 + quarter * 32  # columns 4 to 7 repeat the limbs
        limbs += (read4(of_block) + read4(of_block + 16),)
    return limbs


@triton.jit
def starts_of(limbs, unread_at, lane, BLOCKS: tl.constexpr, ZERO_MODE: tl.constexpr):
    """Per block: where the sums of its two columns start, and 16 sum(x) unless the zero is in there already."""
    same = lane * 0
    starts, x_sums, last = (), (), same
    for b in tl.static_range(BLOCKS):
        if ZERO_MODE == "sym":
            of_zero = code_sums((same + -2004318072), (same + 0x08080808), limbs[b])  # code 8: bytes 0x88
            starts += ((MAGIC_BITS - of_zero[0], MAGIC_BITS - of_zero[1]),)
            last += of_zero[0]
        else:
            of_one = code_sums((same + 0x11111111), (same + 0x01010101), limbs[b])
            x_sums += (joined(of_one[0] + MAGIC_BITS, of_one[1] + MAGIC_BITS),)
            starts += ((same + MAGIC_BITS, same + MAGIC_BITS),)
            last += of_one[0]
    # Nobody reads this. Without it the assembler puts the sums above behind the wait for codes.
    write_word(unread_at + lane * 4, last)
    return starts, x_sums


@triton.jit
def add_blocks(
    total, slot, limbs, starts, x_sums, scales_ptr, zeros_ptr, lane, BLOCKS: tl.constexpr, ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,
):  # fmt: skip
    """``total`` of rows r and r + 8 plus their sums over the blocks in a slot, in the limbs' unit."""
    PLACES: tl.constexpr = places(1, 0, QUANT_GROUP, ZERO_MODE)
    row = lane // 4
    words, scales, zeros = (), (), ()
    for b in tl.static_range(BLOCKS):
        at = slot + b * PLACES[3]
        words += ((read4(at + lane * 16), read4(at + 512 + lane * 16)),)
    for b in tl.static_range(BLOCKS):
        at = slot + b * PLACES[3]
        of = at + PLACES[1] + row * 2
        scales += ((read_float(of, scales_ptr), read_float(of + 16, scales_ptr)),)
        if ZERO_MODE == "asym":
            nibbles = at + PLACES[2]
            zeros += (
                (
                    ((read1(nibbles) >> (row * 4)) & 15).to(tl.float32),
                    ((read1(nibbles + 4) >> (row * 4)) & 15).to(tl.float32),
                ),
            )
        elif ZERO_MODE == "offset":
            offsets = at + PLACES[2] + row * 2
            zeros += ((read_float(offsets, zeros_ptr), read_float(offsets + 16, zeros_ptr)),)
    for b in tl.static_range(BLOCKS):
        sums = byte_products(words[b][0], words[b][1], limbs[b], starts[b])
        added = ()
        for half in tl.static_range(2):
            product = joined(sums[2 * half], sums[2 * half + 1])
            if ZERO_MODE == "asym":
                product = tl.fma(x_sums[b], -zeros[b][half], product)
            of_half = tl.fma(product, scales[b][half], total[half])
            if ZERO_MODE == "offset":
                of_half = tl.fma(x_sums[b], zeros[b][half], of_half)
            added += (of_half,)
        total = added
    return total


@triton.jit
def write_sums(at, total, lane, FAR: tl.constexpr):
    """Leaves a warp's sums of 16 rows, [pair][row]; FAR: in the cluster's first program."""
    to = at + lane % 4 * 64 + lane // 4 * 4
    if FAR:
        to = in_first(to)
    write_sum(to, total[0], lane % 4 < PAIRS, FAR)
    write_sum(to + 32, total[1], lane % 4 < PAIRS, FAR)


@triton.jit
def read_sums(at, PARTS: tl.constexpr):
    """fp32 sum of parts 64 bytes apart."""
    parts = ()
    for part in tl.static_range(PARTS):
        parts += (read_sum(at + part * 64),)
    for level in tl.static_range(halvings(PARTS)):
        parts = in_pairs(parts, (PARTS + (1 << level) - 1) >> level)
    return parts[0]


@triton.constexpr_function
def halvings(count):
    """How often ``count`` things are put in pairs until one is left."""
    return (count - 1).bit_length()


@triton.jit
def in_pairs(parts, COUNT: tl.constexpr):
    """Neighbours added: sums that do not wait for each other."""
    sums = ()
    for i in tl.static_range(COUNT // 2):
        sums += (parts[2 * i] + parts[2 * i + 1],)
    if COUNT % 2:
        sums += (parts[COUNT - 1],)
    return sums
