"""The kernel of v4 for one token and a short K, or a part of a long one (``v4.py``): exact integer products
(``_limbs.py``), tile after tile.

A program walks down TILES tiles of 16 rows. Each of its warps owns the same few blocks of 128 k of every tile, so it
copies its activations once and turns them into limbs once, before the first codes have arrived; then it sees one stream
of codes that does not end at a tile. The products of a tile's blocks do not wait for each other. The warps leave their
sums of every tile in shared memory and meet once, at the end.

Tensors are [THREADS], as in ``_v4_kernel.py``.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment, attr-defined, misc, var-annotated"
from __future__ import annotations

import triton
import triton.language as tl

from roofgap.kernels.variants._epilogue import finish
from roofgap.kernels.variants._fragments import checked_zero
from roofgap.kernels.variants._limbs import X_BYTES, scale_and_unit
from roofgap.kernels.variants._staging import (
    ask_half,
    asked_half,
    await_cluster,
    begin_cluster,
    commit,
    meet,
    meet_all,
    meet_cluster,
    read4,
    stage_memory,
    store_half,
    wait,
)
from roofgap.kernels.variants._v4_copies import copy_x, places
from roofgap.kernels.variants._v4_limb_parts import (
    PAIRS,
    add_blocks,
    blocks_limbs,
    copy_blocks,
    may_miss,
    read_sums,
    starts_of,
    write_sums,
)


@triton.constexpr_function
def limb_places(warps, cluster, blocks, depth, tiles, quant_group, zero_mode):
    """Offsets of activations, sums and extras in a program's shared memory, and its size, in bytes.

    Stages come first, [warp][tile under way][block]; then activations [warp][block], sums [tile][warp of the
    cluster][pair][16], and a slot per output for gate's bias, up's bias and residual.
    """
    stage = places(1, 0, quant_group, zero_mode)[3]
    x_at = warps * depth * blocks * stage
    sums_at = x_at + warps * blocks * X_BYTES.value
    extras_at = sums_at + tiles * warps * cluster * PAIRS.value * 16 * 4
    outputs = (tiles * 16 + 32 * warps - 1) // (32 * warps) * (32 * warps)
    return x_at, sums_at, extras_at, extras_at + 3 * outputs * 4


@triton.jit
def copy_activations(
    x_at, x_ptr, k, lane, warp, EVEN_K: tl.constexpr, TAIL: tl.constexpr, BLOCKS: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Starts to copy a warp's blocks of the token."""
    for b in tl.static_range(BLOCKS):
        block = warp + b * WARPS
        inside = (block * 128 < k).to(tl.int32) if may_miss(TAIL, b, BLOCKS) else None
        copy_x(x_at + b * X_BYTES, x_ptr, block, inside, lane, 1, k, 0, 1, EVEN_K)


@triton.jit
def v4_limb_kernel(  # noqa: PLR0912, PLR0915
    codes_ptr,  # [N, 16 ceil(K/128)] int32, layout interleaved
    scales_ptr,  # [N, G] fp16 or bf16
    x_ptr,  # [1, K] fp16 or bf16, 16-byte aligned
    out_ptr,  # y [1, N], [1, N / 2] with SWIGLU
    tile_words,  # words of codes per 16 rows
    groups,
    n,
    k,
    zeros_ptr,  # [ceil(N/16), G, 2] int32 | [N, G] | None
    bias_ptr,  # [N] | None, 4-byte aligned
    residual_ptr,  # [1, N] | None, 4-byte aligned
    DTYPE: tl.constexpr,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,  # a multiple of 128
    EVEN_N: tl.constexpr,  # N is a multiple of 16
    EVEN_K: tl.constexpr,  # K is a multiple of 128
    WHOLE: tl.constexpr,  # every program has all its tiles
    TAIL: tl.constexpr,  # some warps have a block less
    TILES: tl.constexpr,  # per program
    DEPTH: tl.constexpr,  # of which this many are under way
    BLOCKS: tl.constexpr,  # per warp and tile
    WARPS: tl.constexpr,  # per program
    CLUSTER: tl.constexpr,  # programs that share K
    SWIGLU: tl.constexpr = False,  # rows are gate|up: every other tile is the up's beside the gate's before it
    PDL: tl.constexpr = False,
):
    """16 TILES rows of the weight; grid (clusters along N,). The first program of a cluster adds up and stores."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    if CLUSTER > 1:
        begin_cluster()
    THREADS: tl.constexpr = 32 * WARPS  # per program
    ALONG_K: tl.constexpr = WARPS * CLUSTER
    HELD: tl.constexpr = TILES // 2 if SWIGLU else TILES  # tiles of y
    EACH: tl.constexpr = (HELD * 16 + THREADS - 1) // THREADS  # outputs per thread
    PLACES: tl.constexpr = places(1, 0, QUANT_GROUP, ZERO_MODE)
    STAGE: tl.constexpr = PLACES[3]
    AT: tl.constexpr = limb_places(WARPS, CLUSTER, BLOCKS, DEPTH, TILES, QUANT_GROUP, ZERO_MODE)
    thread = tl.arange(0, THREADS * CLUSTER)
    lane, warp = thread % 32, thread // 32  # warps count on from one program of a cluster to the next
    own_warp, own_thread = warp % WARPS, thread % THREADS
    owner = thread  # of an output, and of others THREADS apart
    if CLUSTER > 1:
        owner = tl.where(thread < THREADS, thread, TILES * 16)  # none
    quarter = lane % 4
    width = n // 2 if SWIGLU else n  # of y
    first = tl.program_id(0) * HELD
    held = HELD
    if not WHOLE:
        held = tl.minimum(HELD, (width + 15) // 16 - first)
    tiles = 2 * held if SWIGLU else held
    up = width // 16
    last_k = None if EVEN_K else k - 1
    memory = stage_memory(AT[3])
    stages = memory + own_warp * (DEPTH * BLOCKS * STAGE)
    x_at = memory + AT[0] + own_warp * (BLOCKS * X_BYTES)

    if not PDL:
        copy_activations(x_at, x_ptr, k, lane, warp, EVEN_K, TAIL, BLOCKS, ALONG_K)
        commit()
    for t in tl.static_range(DEPTH):
        tile = first + (t // 2 + t % 2 * up if SWIGLU else t)
        if not WHOLE:
            tile = tl.minimum(tile, (n - 1) // 16)  # past the end: copied, and not multiplied
        copy_blocks(
            stages + t * (BLOCKS * STAGE), tile, warp, codes_ptr, scales_ptr, zeros_ptr, tile_words, groups, n, k,
            lane, last_k, ZERO_MODE, QUANT_GROUP, EVEN_N, TAIL, BLOCKS, ALONG_K,
        )  # fmt: skip
        if not PDL:
            commit()
    extras = memory + AT[2] + own_thread * 4
    for i in tl.static_range(EACH):
        offs_n = first * 16 + owner + i * THREADS
        wanted = (owner + i * THREADS < held * 16) & (offs_n < width)
        if bias_ptr is not None:
            ask_half(extras + i * (THREADS * 4), bias_ptr, offs_n, n, wanted)
            if SWIGLU:
                ask_half(extras + (EACH + i) * (THREADS * 4), bias_ptr, offs_n + width, n, wanted)
    if PDL:
        tl.extra.cuda.gdc_wait()
        copy_activations(x_at, x_ptr, k, lane, warp, EVEN_K, TAIL, BLOCKS, ALONG_K)
        commit()
    if residual_ptr is not None:
        for i in tl.static_range(EACH):
            offs_n = first * 16 + owner + i * THREADS
            wanted = (owner + i * THREADS < held * 16) & (offs_n < width)
            ask_half(extras + (2 * EACH + i) * (THREADS * 4), residual_ptr, offs_n, width, wanted)

    wait(0 if PDL else DEPTH)
    xs = ()
    for b in tl.static_range(BLOCKS):
        xs += (read4(x_at + b * X_BYTES + lane // 4 % 4 * 64 + quarter * 16),)
    meet()
    scale, unit = scale_and_unit(xs, BLOCKS, DTYPE)
    limbs = blocks_limbs(xs, x_at, scale, lane, BLOCKS, DTYPE)
    starts, x_sums = starts_of(limbs, memory + AT[1] + warp * (PAIRS * 64), lane, BLOCKS, ZERO_MODE)
    weight = unit * tl.where(quarter == 0, 1.0, 65536.0)  # of a lane's pair of limbs
    zero = checked_zero(thread, THREADS if CLUSTER > 1 else None)
    if CLUSTER > 1:
        await_cluster()
    slot = stages
    for t in tl.range(0, tiles, num_stages=1, loop_unroll_factor=1):
        wait(DEPTH - 1)
        total = add_blocks(
            (zero, zero),
            slot,
            limbs,
            starts,
            x_sums,
            scales_ptr,
            zeros_ptr,
            lane,
            BLOCKS,
            ZERO_MODE,
            QUANT_GROUP,
        )
        if DEPTH < TILES:
            meet()
            ahead = t + DEPTH
            if ahead < tiles:
                copy_blocks(
                    slot, first + (ahead // 2 + ahead % 2 * up if SWIGLU else ahead), warp, codes_ptr, scales_ptr,
                    zeros_ptr, tile_words, groups, n, k, lane, last_k, ZERO_MODE, QUANT_GROUP, EVEN_N, TAIL, BLOCKS,
                    ALONG_K,
                )  # fmt: skip
            commit()
            slot += BLOCKS * STAGE
            slot = tl.where(slot == stages + DEPTH * BLOCKS * STAGE, stages, slot)
        else:
            commit()
            slot += BLOCKS * STAGE
        write_sums(
            memory + AT[1] + (t * ALONG_K + warp) * (PAIRS * 64), (total[0] * weight, total[1] * weight), lane,
            CLUSTER > 1,
        )  # fmt: skip

    if bias_ptr is not None or residual_ptr is not None:
        wait(0)
    if CLUSTER > 1:
        meet_cluster()
    else:
        meet_all()
    for i in tl.static_range(EACH):
        output = owner + i * THREADS
        item = tl.minimum(output // 16, HELD - 1)
        offs_n = (first + item) * 16 + output % 16
        at = memory + AT[1] + output % 16 * 4 + item * ((2 if SWIGLU else 1) * ALONG_K * PAIRS * 64)
        y, y_up, bias, up_bias, residual = read_sums(at, ALONG_K * PAIRS), 0.0, 0.0, 0.0, 0.0
        if SWIGLU:
            y_up = read_sums(at + ALONG_K * PAIRS * 64, ALONG_K * PAIRS)
        slots = extras + i * (THREADS * 4)
        if bias_ptr is not None:
            bias = asked_half(slots, offs_n, bias_ptr)
            if SWIGLU:
                up_bias = asked_half(slots + EACH * (THREADS * 4), offs_n + width, bias_ptr)
        if residual_ptr is not None:
            residual = asked_half(slots + 2 * EACH * (THREADS * 4), offs_n, residual_ptr)
        y = finish(y, y_up, bias, up_bias, residual, SWIGLU)
        y, wanted = y.to(out_ptr.dtype.element_ty), (output < held * 16) & (offs_n < width)
        if CLUSTER > 1:
            store_half(out_ptr + offs_n, y, wanted)
            tl.store(out_ptr, 0.0, mask=n < 0)  # never: without any store Triton cannot plan a cluster
        else:
            tl.store(out_ptr + offs_n, y, mask=wanted)
