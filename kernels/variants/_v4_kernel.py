"""The tensor-core kernel of v4 (``v4.py`` says what it computes, and how).

Tensors are [THREADS]: Triton gives element i to thread i, which ``checked_zero`` checks at run time. A warp works on
what its own lanes have copied (``_v4_copies.py``), so the warps meet once, to add up.

A small matrix takes two microseconds, of which its bytes are a quarter. The rest is latency: hence few instructions
before the first copy and after the last product, one trip to memory (bias and residual included), and a short loop body
instead of an unrolled one, because code is fetched too.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment, attr-defined, var-annotated"
from __future__ import annotations

import triton
import triton.language as tl

from roofgap.kernels.variants._epilogue import finish, load_or_zero
from roofgap.kernels.variants._fragments import (
    BF16_RAISED,
    add_warps,
    checked_zero,
    products,
    scale_of,
    x_sums,
)
from roofgap.kernels.variants._staging import (
    ask_half,
    asked_half,
    commit,
    meet,
    read1,
    read4,
    read_float,
    stage_memory,
    wait,
)
from roofgap.kernels.variants._v4_copies import (
    copy_weights,
    copy_x,
    next_codes,
    parts_of,
    places,
    prefetch_codes,
    x_stride,
)


@triton.jit
def scaled_sum(
    product, acc, x_sum, scales, zeros, i: tl.constexpr, group: tl.constexpr, ZERO_MODE: tl.constexpr,
    RAISED: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """``acc`` plus a group's share of sum i: row r or r + 8, of TOKENS tokens each."""
    of: tl.constexpr = 2 * group + i // TOKENS
    x = x_sum[i % TOKENS]
    if ZERO_MODE == "sym":
        product = tl.fma(x, -8.0 - RAISED, product)
    elif ZERO_MODE == "asym":
        product = tl.fma(x, -zeros[of], product)
    elif ZERO_MODE == "offset":
        if RAISED != 0.0:
            product = tl.fma(x, -RAISED, product)
        acc = tl.fma(x, zeros[of], acc)
    return tl.fma(product, scales[of], acc)


@triton.jit
def v4_kernel(  # noqa: PLR0912, PLR0915
    # In the order of need: the first 48 bytes of parameters come with one fetch.
    codes_ptr,  # [N, 16 ceil(K/128)] int32, layout interleaved
    scales_ptr,  # [N, G] fp16 or bf16
    x_ptr,  # [M, K] fp16 or bf16, rows of 16-byte aligned memory
    out_ptr,  # y [M, N], [M, N / 2] with SWIGLU, or fp32 sums [splits, M, N]
    tile_words,  # words of codes per 16 rows
    groups,
    slice_blocks,  # blocks of 128 k per program, a multiple of WARPS_K
    n,
    k,
    m,
    zeros_ptr,  # [ceil(N/16), G, 2] int32 | [N, G] | None
    bias_ptr,  # [N] | None
    residual_ptr,  # [M, N] | None
    stride_xm,
    stride_split,
    stride_rm,
    stride_om,
    DTYPE: tl.constexpr,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,  # a multiple of 32
    EVEN_N: tl.constexpr,  # N is a multiple of 16
    EVEN_K: tl.constexpr,  # K is a multiple of 128
    WHOLE: tl.constexpr,  # every program has all its tiles
    TAIL: tl.constexpr,  # a warp may have fewer than STAGES blocks
    EARLY: tl.constexpr,  # one token; bias and residual are fetched beside the weight
    TOKENS: tl.constexpr,  # 1, or 8 for any number of them
    X_ROWS: tl.constexpr,  # the least power of two of tokens
    SPLIT: tl.constexpr,  # programs share K
    DEEP: tl.constexpr,  # a warp takes more than STAGES blocks
    TILES: tl.constexpr,
    WARPS_N: tl.constexpr,
    WARPS_K: tl.constexpr,
    STAGES: tl.constexpr,  # blocks under way per warp
    AHEAD: tl.constexpr,  # blocks beyond those that the L2 is asked for, a multiple of 4
    SWIGLU: tl.constexpr = False,  # rows are gate|up: half of a warp's tiles are the gate's, half the up's beside them
    PDL: tl.constexpr = False,
):
    """16 TILES WARPS_N rows of the weight, all tokens, over a slice of K; grid (programs along N, splits)."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    WARPS: tl.constexpr = WARPS_N * WARPS_K
    THREADS: tl.constexpr = 32 * WARPS
    GROUP: tl.constexpr = 32 * WARPS_K
    HELD: tl.constexpr = TILES // 2 if SWIGLU else TILES  # tiles of y per warp
    SUMS: tl.constexpr = 2 if TOKENS == 1 else 4  # per tile and lane
    PARTS: tl.constexpr = parts_of(QUANT_GROUP)
    PLACES: tl.constexpr = places(TILES, X_ROWS, QUANT_GROUP, ZERO_MODE)
    X_AT: tl.constexpr = PLACES[0]
    SCALES_AT: tl.constexpr = PLACES[1]
    ZEROS_AT: tl.constexpr = PLACES[2]
    STAGE: tl.constexpr = PLACES[3]
    RAISED: tl.constexpr = 0.0 if DTYPE == "fp16" else BF16_RAISED
    thread = tl.arange(0, THREADS)
    lane, warp = thread % 32, thread // 32
    row, quarter = lane // 4, lane % 4
    width = n // 2 if SWIGLU else n  # of y
    first_tile = tl.program_id(0) * (HELD * WARPS_N)
    first_block = warp % WARPS_K
    k_end, blocks = k, slice_blocks
    last_k = None if EVEN_K else k - 1
    if SPLIT:
        first_block += tl.program_id(1) * slice_blocks
        k_end = tl.minimum((tl.program_id(1) + 1) * (slice_blocks * 128), k)
        blocks = tl.cdiv(k_end, 128) - tl.program_id(1) * slice_blocks
    memory = stage_memory(STAGE * STAGES * WARPS + (THREADS * 4 * (TILES + HELD) if EARLY else 0))
    stages = memory + warp * (STAGE * STAGES)

    codes_at, to_b, scales_at, zeros_at, heights, tiles_at = (), (), (), (), (), ()
    for t in tl.static_range(TILES):
        tile = first_tile + warp // WARPS_K * HELD + t % HELD
        if not WHOLE:
            tile = tl.minimum(
                tile, (width - 1) // 16
            )  # past the end the last one is computed again, and not stored
        if t >= HELD:
            tile += width // 16
        row_a, row_b, height = row, row + 8, 16
        if not EVEN_N:
            height = tl.minimum(n - tile * 16, 16)
            row_a, row_b = tl.minimum(row_a, height - 1), tl.minimum(row_b, height - 1)
        tiles_at += (codes_ptr + tile * tile_words,)
        codes_at += (tiles_at[t] + (row_a * 16 + quarter * 4 + first_block * (height * 16)),)
        to_b += (128 if EVEN_N else (row_b - row_a) * 16,)
        scales_at += (scales_ptr + tile * (16 * groups),)
        if ZERO_MODE == "asym":
            zeros_at += (zeros_ptr + tile * (2 * groups),)
        elif ZERO_MODE == "offset":
            zeros_at += (zeros_ptr + tile * (16 * groups),)
        heights += (height,)

    stage_count = tl.minimum(tl.cdiv(slice_blocks, WARPS_K), STAGES)  # STAGES; a constant would be unrolled
    # Weights first, which no kernel before this one has written.
    block, slot = first_block, stages
    for _ in tl.range(0, stage_count, num_stages=1):
        inside = (block * 128 < k_end).to(tl.int32) if TAIL else None
        copy_weights(
            slot, codes_at, to_b, scales_at, zeros_at, heights, block, inside, last_k, lane, ZERO_MODE, QUANT_GROUP,
            EVEN_N, TILES, SCALES_AT, ZEROS_AT,
        )  # fmt: skip
        if not PDL:
            copy_x(slot + X_AT, x_ptr, block, inside, lane, m, k, stride_xm, X_ROWS, EVEN_K)
            commit()
        codes_at = next_codes(codes_at, heights, WARPS_K, TILES)
        block += WARPS_K
        slot += STAGE
    for i in tl.static_range(AHEAD // 4):
        prefetch_codes(tiles_at, heights, block + 4 * i * WARPS_K, k_end, lane, WARPS_K, TILES, 4)
    owner = thread % GROUP
    first_row = (first_tile + thread // GROUP * HELD) * 16 + owner % 16
    extras = memory + STAGE * STAGES * WARPS + thread * 4
    if EARLY and bias_ptr is not None:
        for t in tl.static_range(TILES):
            offs_n = first_row + t % HELD * 16
            wanted = (owner < 16) & (offs_n < width)
            ask_half(extras + t * (THREADS * 4), bias_ptr, offs_n + (width if t >= HELD else 0), n, wanted)
    if PDL:
        tl.extra.cuda.gdc_wait()
        block, slot = first_block, stages
        for _ in tl.range(0, stage_count, num_stages=1):
            inside = (block * 128 < k_end).to(tl.int32) if TAIL else None
            copy_x(slot + X_AT, x_ptr, block, inside, lane, m, k, stride_xm, X_ROWS, EVEN_K)
            commit()
            block += WARPS_K
            slot += STAGE
    if EARLY and residual_ptr is not None:
        for t in tl.static_range(HELD):
            offs_n = first_row + t * 16
            wanted = (owner < 16) & (offs_n < width)
            ask_half(extras + (TILES + t) * (THREADS * 4), residual_ptr, offs_n, width, wanted)
    total = (checked_zero(thread),) * (SUMS * TILES)
    slot = stages
    for _ in tl.range(0, tl.cdiv(blocks, WARPS_K), num_stages=1):
        wait(STAGES - 1)
        words, x, scales, zeros = (), (), (), ()
        # Scales first: they are used last, and what is read last holds up the copies into the same memory.
        for t in tl.static_range(TILES):
            for part in tl.static_range(PARTS):
                at = slot + (SCALES_AT + (t * PARTS + part) * 32) + row * 2
                scales += (read_float(at, scales_ptr), read_float(at + 16, scales_ptr))
                if ZERO_MODE == "asym":
                    nibbles = slot + (ZEROS_AT + (t * PARTS + part) * 8)
                    zeros += (
                        ((read1(nibbles) >> (row * 4)) & 15).to(tl.float32) + RAISED,
                        ((read1(nibbles + 4) >> (row * 4)) & 15).to(tl.float32) + RAISED,
                    )
                elif ZERO_MODE == "offset":
                    offsets = slot + (ZEROS_AT + (t * PARTS + part) * 32) + row * 2
                    zeros += (read_float(offsets, zeros_ptr), read_float(offsets + 16, zeros_ptr))
        for t in tl.static_range(TILES):
            words += (read4(slot + t * 1024 + lane * 16), read4(slot + (t * 1024 + 512) + lane * 16))
        x_row = slot + X_AT + quarter * 16
        if TOKENS > 1:
            x_row += row % X_ROWS * x_stride(X_ROWS)  # tokens past the last repeat others, and are not stored
        for word in tl.static_range(4):
            x += read4(x_row + word * 64)
        if DEEP:
            meet()
            inside = (block * 128 < k_end).to(tl.int32)
            copy_weights(
                slot, codes_at, to_b, scales_at, zeros_at, heights, block, inside, last_k, lane, ZERO_MODE,
                QUANT_GROUP, EVEN_N, TILES, SCALES_AT, ZEROS_AT,
            )  # fmt: skip
            copy_x(slot + X_AT, x_ptr, block, inside, lane, m, k, stride_xm, X_ROWS, EVEN_K)
            codes_at = next_codes(codes_at, heights, WARPS_K, TILES)
            block += WARPS_K
            if AHEAD > 0:
                prefetch_codes(
                    tiles_at, heights, block + (AHEAD - 1) * WARPS_K, k_end, lane, WARPS_K, TILES, 1
                )
        commit()
        slot += STAGE
        if DEEP:
            slot = tl.where(slot == stages + STAGE * STAGES, stages, slot)
        for part in tl.static_range(PARTS):
            x_sum = x_sums(x, DTYPE, TOKENS, part, part + 4 // PARTS)
            sums = ()
            for t in tl.static_range(TILES):
                product = products(words[2 * t], words[2 * t + 1], x, DTYPE, TOKENS, part, part + 4 // PARTS)
                for i in tl.static_range(SUMS):
                    sums += (
                        scaled_sum(
                            product[i], total[SUMS * t + i], x_sum, scales, zeros, i, t * PARTS + part, ZERO_MODE,
                            RAISED, SUMS // 2,
                        ),
                    )  # fmt: skip
            total = sums

    if EARLY and (bias_ptr is not None or residual_ptr is not None):
        wait(0)
    out = out_ptr
    if SPLIT:
        out += tl.program_id(1).to(tl.int64) * stride_split
    added = ()
    for t in tl.static_range(TILES):
        mine = ()
        for i in tl.static_range(SUMS):
            mine += (total[SUMS * t + i],)
        added += (add_warps(mine, WARPS_N, WARPS_K, TOKENS),)
    for t in tl.static_range(HELD):
        offs_n = first_row + t * 16
        for i in tl.static_range((16 * TOKENS + GROUP - 1) // GROUP):
            token = (owner + i * GROUP) // 16
            wanted = (offs_n < width) & (token < m)
            at = out + offs_n
            if TOKENS > 1:
                at += token.to(tl.int64) * stride_om
            if EARLY:
                slots = extras + t * (THREADS * 4)
                bias = asked_half(slots, offs_n, bias_ptr) if bias_ptr is not None else 0.0
                up_bias = 0.0
                if SWIGLU and bias_ptr is not None:
                    up_bias = asked_half(slots + HELD * (THREADS * 4), offs_n + width, bias_ptr)
                residual = 0.0
                if residual_ptr is not None:
                    residual = asked_half(slots + TILES * (THREADS * 4), offs_n, residual_ptr)
            else:
                bias = load_or_zero(bias_ptr, offs_n, wanted)
                up_bias = load_or_zero(bias_ptr, width + offs_n, wanted) if SWIGLU else 0.0
                residual = load_or_zero(residual_ptr, token.to(tl.int64) * stride_rm + offs_n, wanted)
            y = finish(
                added[t][i] * scale_of(DTYPE), added[TILES - HELD + t][i] * scale_of(DTYPE), bias, up_bias, residual,
                SWIGLU,
            )  # fmt: skip
            tl.store(at, y.to(out.dtype.element_ty), mask=wanted)
