"""What a warp of v4 copies into shared memory per block of 128 k, and where it lies there.

codes     [TILES][rows r, rows r + 8][lane] of 16 bytes
x         [rows] of 128, ``x_stride`` bytes apart
scales    [TILES][PARTS][16]            PARTS: 1, or 4 runs of 32 k where groups may end within a block
zeros     [TILES][PARTS][2] int32 (asym) or as scales (offset)
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

from roofgap.kernels.variants._staging import copy_async, prefetch, write_half


@triton.constexpr_function
def parts_of(quant_group):
    """Runs of k per block that may belong to different groups."""
    return 1 if quant_group % 128 == 0 else 4


@triton.constexpr_function
def x_stride(rows):
    """Bytes between tokens: rows of x 64 bytes apart in the banks."""
    return 256 if rows == 1 else 320


@triton.constexpr_function
def places(tiles, x_rows, quant_group, zero_mode):
    """Offsets of x, scales and zeros in a stage, and its size, in bytes."""
    x_at = 1024 * tiles
    scales_at = x_at + x_rows * x_stride(x_rows)
    zeros_at = scales_at + tiles * parts_of(quant_group) * 32
    size = zeros_at + tiles * parts_of(quant_group) * {"sym": 0, "asym": 8, "offset": 32}[zero_mode]
    return x_at, scales_at, zeros_at, (size + 15) // 16 * 16


@triton.jit
def copy_codes(to, at, to_b, inside, lane, TILES: tl.constexpr):
    """A block's words of all tiles."""
    read_bytes = None if inside is None else inside * 16
    for t in tl.static_range(TILES):
        copy_async(to + t * 1024 + lane * 16, at[t], read_bytes, None, 16)
        copy_async(to + (t * 1024 + 512) + lane * 16, at[t] + to_b[t], read_bytes, None, 16)


@triton.jit
def copy_x(to, x_ptr, block, inside, lane, m, k, stride_xm, X_ROWS: tl.constexpr, EVEN_K: tl.constexpr):
    """A block's activations, 0 from k on."""
    for i in tl.static_range((X_ROWS * 16 + 31) // 32):
        token = (lane + 32 * i) // 16
        k_start = block * 128 + lane % 16 * 8
        source = x_ptr + k_start
        if X_ROWS > 1:
            source += token.to(tl.int64) * stride_xm
        if EVEN_K:
            left = None if inside is None else inside * 16
        else:
            left = tl.maximum(tl.minimum((k - k_start) * 2, 16), 0)
            left = left if inside is None else left * inside
        copy_async(to + token * x_stride(X_ROWS) + lane % 16 * 16, source, left, token < m, 16, True)


@triton.jit
def group_at(k, last_k, QUANT_GROUP: tl.constexpr):
    """The group of k, or of the last k there is: a block may end behind it."""
    return (k if last_k is None else tl.minimum(k, last_k)) // QUANT_GROUP


@triton.jit
def copy_scales(
    to,
    at,
    heights,
    block,
    inside,
    last_k,
    lane,
    QUANT_GROUP: tl.constexpr,
    TILES: tl.constexpr,
    EVEN_N: tl.constexpr,
):
    """16 values per tile and run of k in one group; rows that a ragged tile does not have repeat its last one."""
    PARTS: tl.constexpr = parts_of(QUANT_GROUP)
    read_bytes = None if inside is None else inside * 4
    for t in tl.static_range(TILES):
        first_k = block * 128 + lane // 8 * 32 if PARTS > 1 else block * 128
        group = group_at(first_k, last_k, QUANT_GROUP)
        wanted = None if PARTS == 4 else lane < 8
        if not EVEN_N:
            wanted = (lane < 8 * PARTS) & (heights[t] == 16)
        source = at[t] + group * heights[t] + lane % 8 * 2
        copy_async(to + t * (PARTS * 32) + lane * 4, source, read_bytes, wanted, 4)
        if not EVEN_N:
            # Rows of an odd height lie on odd addresses, where nothing is copied asynchronously.
            for i in tl.static_range((PARTS + 1) // 2):
                place = lane + 32 * i
                row = tl.minimum(place % 16, heights[t] - 1)
                of_place = group_at(block * 128 + place // 16 * 32, last_k, QUANT_GROUP)
                ragged = (heights[t] < 16) & (place < PARTS * 16)
                read = ragged if inside is None else ragged & (inside != 0)
                value = tl.load(at[t] + of_place * heights[t] + row, mask=read, other=0)
                bits = value.to(tl.int16, bitcast=True).to(tl.int32)
                write_half(to + t * (PARTS * 32) + place * 2, bits, ragged)


@triton.jit
def copy_zeros(to, at, block, inside, last_k, lane, QUANT_GROUP: tl.constexpr, TILES: tl.constexpr):
    """Two words of eight zeros per tile and run of k in one group."""
    PARTS: tl.constexpr = parts_of(QUANT_GROUP)
    read_bytes = None if inside is None else inside * 4
    for t in tl.static_range(TILES):
        group = group_at(block * 128 + lane // 2 * 32, last_k, QUANT_GROUP)
        source = at[t] + group * 2 + lane % 2
        copy_async(to + t * (PARTS * 8) + lane * 4, source, read_bytes, lane < PARTS * 2, 4)


@triton.jit
def copy_weights(
    slot, codes_at, to_b, scales_at, zeros_at, heights, block, inside, last_k, lane, ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr, EVEN_N: tl.constexpr, TILES: tl.constexpr, SCALES_AT: tl.constexpr,
    ZEROS_AT: tl.constexpr,
):  # fmt: skip
    """A block's codes, scales and zeros; zeros where ``inside`` is 0. ``last_k`` is None where K is whole blocks."""
    copy_codes(slot, codes_at, to_b, inside, lane, TILES)
    copy_scales(slot + SCALES_AT, scales_at, heights, block, inside, last_k, lane, QUANT_GROUP, TILES, EVEN_N)
    if ZERO_MODE == "asym":
        copy_zeros(slot + ZEROS_AT, zeros_at, block, inside, last_k, lane, QUANT_GROUP, TILES)
    elif ZERO_MODE == "offset":
        copy_scales(
            slot + ZEROS_AT, zeros_at, heights, block, inside, last_k, lane, QUANT_GROUP, TILES, EVEN_N
        )


@triton.jit
def next_codes(codes_at, heights, WARPS_K: tl.constexpr, TILES: tl.constexpr):
    """Pointers to the codes of a warp's next block."""
    moved = ()
    for t in tl.static_range(TILES):
        moved += (codes_at[t] + WARPS_K * 16 * heights[t],)
    return moved


@triton.jit
def prefetch_codes(
    tiles_at, heights, block, k_end, lane, WARPS_K: tl.constexpr, TILES: tl.constexpr, BLOCKS: tl.constexpr
):
    """Has the L2 fetch the codes of a warp's next BLOCKS (1, 2 or 4) blocks, a line of 128 bytes per lane."""
    ahead = block + lane // 8 * WARPS_K
    wanted = (ahead * 128 < k_end) & (lane < 8 * BLOCKS)
    for t in tl.static_range(TILES):
        prefetch(
            tiles_at[t] + ahead * (16 * heights[t]) + lane % 8 * 32, wanted & (lane % 8 * 2 < heights[t])
        )
