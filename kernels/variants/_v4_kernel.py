"""The tensor-core kernel of v4 (``v4.py`` says what it computes, and how).

Tensors are [THREADS, 4] or [THREADS]: Triton gives row i to thread i, because the last axis is the contiguous one, and
``zero_sums`` checks that at run time. Tiles and unrolled blocks are tuples, so that they cannot be spread over lanes.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment, attr-defined, var-annotated"
from __future__ import annotations

import triton
import triton.language as tl

from roofgap.kernels.variants._exact import exact_sums
from roofgap.kernels.variants._fragments import BF16_RAISED, products, x_sums, zero_sums


@triton.jit
def load_pairs(at, pair, k_end, PAIRED: tl.constexpr, MASKED: tl.constexpr):
    """int32 at pointers ``at``: x[2 pair] in the lower half, x[2 pair + 1] in the upper, 0 from k_end on."""
    if PAIRED:
        pairs = tl.load(at, mask=2 * pair < k_end, other=0) if MASKED else tl.load(at)
    else:
        lower = tl.load(at, mask=2 * pair < k_end, other=0.0).to(tl.uint16, bitcast=True)
        upper = tl.load(at + 1, mask=2 * pair + 1 < k_end, other=0.0).to(tl.uint16, bitcast=True)
        pairs = lower.to(tl.int32) | (upper.to(tl.int32) << 16)
    return pairs


@triton.jit
def load_codes(at, inside, MASKED: tl.constexpr):
    """Words [THREADS, 4], one 16-byte load each; nothing reads them again, so they leave the L2 first."""
    if MASKED:
        codes = tl.load(at, mask=inside[:, None], other=0, eviction_policy="evict_first")
    else:
        codes = tl.load(at, eviction_policy="evict_first")
    return codes


@triton.jit
def load_two(at_a, at_b, inside, MASKED: tl.constexpr):
    """[THREADS, 4] of a value per row: elements 0 and 1 belong to row a, 2 and 3 to row b."""
    if MASKED:
        a = tl.load(at_a, mask=inside, other=0)
        b = tl.load(at_b, mask=inside, other=0)
    else:
        a = tl.load(at_a)
        b = tl.load(at_b)
    return tl.where((tl.arange(0, 4) < 2)[None, :], a[:, None], b[:, None])


@triton.jit
def load_metadata(
    pointers,  # a tuple of pointers [THREADS] per tile
    block,  # [THREADS] first block of each thread
    sizes,  # a tuple of values per group and tile
    rows_a,
    rows_b,
    k_end,
    QUANT_GROUP: tl.constexpr,
    MASKED: tl.constexpr,
    PARTS: tl.constexpr,
    TILES: tl.constexpr,
    UNROLL: tl.constexpr,
    WARPS_K: tl.constexpr,
):
    """A tuple of values as ``load_two`` gives them, in the order of unrolled blocks, tiles, runs of k in one group."""
    values = ()
    for u in tl.static_range(UNROLL):
        for t in tl.static_range(TILES):
            for part in tl.static_range(PARTS):
                offs_k = (block + u * WARPS_K) * 128 + part * 32
                at = pointers[t] + offs_k // QUANT_GROUP * sizes[t]
                values += (load_two(at + rows_a[t], at + rows_b[t], offs_k < k_end, MASKED),)
    return values


@triton.jit
def places(tile):
    """Output and token, [1 or tiles, 32, 4], of the sums that each lane holds after ``mma.m16n8k16``."""
    lane = tl.arange(0, 32)[None, :, None]
    i = tl.arange(0, 4)[None, None, :]
    return tile[:, None, None] * 16 + lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2


@triton.jit
def count_nan(y, tile, n, m):
    """Whether any output that will be stored is NaN."""
    offs_n, offs_m = places(tile)
    return tl.max(tl.where((offs_n < n) & (offs_m < m) & (y != y), 1, 0))  # noqa: PLR0124


@triton.jit
def store_sums(y, tile, bias_ptr, out, n, m, stride_om):
    """Adds the bias and stores y [tiles, 32, 4]."""
    offs_n, offs_m = places(tile)
    wanted = (offs_n < n) & (offs_m < m)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + offs_n, mask=wanted, other=0.0).to(tl.float32)
    tl.store(out + offs_m.to(tl.int64) * stride_om + offs_n, y.to(out.dtype.element_ty), mask=wanted)


@triton.jit
def store_exact(
    token, first_n, x_ptr, codes_ptr, scales_ptr, zeros_ptr, bias_ptr, out, n, k_begin, k_end, groups,
    stride_xm, stride_cn, stride_om, magic, ZERO_MODE: tl.constexpr, QUANT_GROUP: tl.constexpr,
):  # fmt: skip
    """Sixteen outputs of one token, weight by weight."""
    token = tl.cast(token, tl.int64)
    offs_n = first_n + tl.arange(0, 16)
    y = exact_sums(
        x_ptr + token * stride_xm, codes_ptr, scales_ptr, zeros_ptr, offs_n, n, k_begin, k_end, stride_cn, groups,
        magic, ZERO_MODE, QUANT_GROUP, 16, 1,
    )  # fmt: skip
    if bias_ptr is not None:
        y += tl.load(bias_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)
    tl.store(out + token * stride_om + offs_n, y.to(out.dtype.element_ty), mask=offs_n < n)


@triton.jit
def v4_kernel(  # noqa: PLR0912, PLR0915
    x_ptr,  # [M, K] fp16 or bf16
    codes_ptr,  # [N, 16 ceil(K/128)] int32, layout interleaved
    scales_ptr,  # [N, G]
    zeros_ptr,  # [ceil(N/16), G, 2] int32 | [N, G] | None
    bias_ptr,  # [N] | None
    out_ptr,  # y [M, N], or fp32 sums [splits, M, N]
    n,
    k,
    m,
    k_slice,  # weights of one output per program, a multiple of 128 UNROLL WARPS_K
    groups,
    stride_xm,
    stride_cn,
    stride_split,
    stride_om,
    magic,
    DTYPE: tl.constexpr,
    ZERO_MODE: tl.constexpr,
    QUANT_GROUP: tl.constexpr,  # a multiple of 32
    EVEN_N: tl.constexpr,  # N is a multiple of 16
    MASKED: tl.constexpr,  # some step reaches past the end of K or of the slice
    PAIRED: tl.constexpr,  # x can be read two at a time
    TILES: tl.constexpr,
    UNROLL: tl.constexpr,
    WARPS_N: tl.constexpr,
    WARPS_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """16 TILES WARPS_N outputs of all tokens over a slice of K; grid (programs along N, splits)."""
    THREADS: tl.constexpr = 32 * WARPS_N * WARPS_K
    STEP: tl.constexpr = 128 * UNROLL * WARPS_K
    PARTS: tl.constexpr = 1 if QUANT_GROUP % 128 == 0 else 4
    RAISED: tl.constexpr = 0.0 if DTYPE == "fp16" else BF16_RAISED
    thread = tl.arange(0, THREADS)
    lane, warp = thread % 32, thread // 32
    last = tl.arange(0, 4)[None, :]
    quarter = lane % 4 * 4
    first_tile = tl.program_id(0) * (TILES * WARPS_N)
    k_begin = tl.program_id(1) * k_slice
    k_end = tl.minimum(k_begin + k_slice, k)
    last_start = k_begin + (tl.cdiv(k_end - k_begin, STEP) - 1) * STEP
    first_block = k_begin // 128 + warp % WARPS_K

    codes_at, to_b, scales_at, zeros_at = (), (), (), ()
    heights, rows_a, rows_b, words_a, words_b, shifts = (), (), (), (), (), ()
    for t in tl.static_range(TILES):
        tile = first_tile + warp // WARPS_K * TILES + t
        tile = tl.minimum(tile, (n - 1) // 16)  # past the end the last tile is computed again, and not stored
        row_a, row_b, height = lane // 4, lane // 4 + 8, 16
        if not EVEN_N:
            height = tl.minimum(n - tile * 16, 16)
            row_a, row_b = tl.minimum(row_a, height - 1), tl.minimum(row_b, height - 1)
        tile = tile.to(tl.int64)
        origin = row_a * 16 + quarter + first_block * (height * 16)
        codes_at += ((codes_ptr + tile * (16 * stride_cn) + origin)[:, None] + last,)
        to_b += (128 if EVEN_N else ((row_b - row_a) * 16)[:, None],)
        scales_at += (scales_ptr + tile * (16 * groups),)
        if ZERO_MODE == "asym":
            zeros_at += (zeros_ptr + tile * (2 * groups),)
        elif ZERO_MODE == "offset":
            zeros_at += (zeros_ptr + tile * (16 * groups),)
        heights += (height,)
        rows_a += (row_a,)
        rows_b += (row_b,)
        words_a += (0,)
        words_b += (1,)
        shifts += ((row_a % 8 * 4)[:, None],)
    token = tl.minimum(lane // 4, m - 1).to(tl.int64)  # tokens past the last repeat it, and are not stored
    first_pair = (first_block * 64 + quarter)[:, None] + last
    if PAIRED:
        x_at = (x_ptr + token * stride_xm).to(tl.pointer_type(tl.int32))[:, None] + first_pair
    else:
        x_at = (x_ptr + token * stride_xm)[:, None] + 2 * first_pair
    X_STEP: tl.constexpr = 1 if PAIRED else 2  # elements that a pointer to x takes per pair

    total = ()
    for _ in tl.static_range(TILES):
        total += (zero_sums(tl.broadcast_to(lane[:, None], (THREADS, 4))),)
    scales = load_metadata(
        scales_at,
        first_block,
        heights,
        rows_a,
        rows_b,
        k_end,
        QUANT_GROUP,
        MASKED,
        PARTS,
        TILES,
        UNROLL,
        WARPS_K,
    )
    for k_start in tl.range(k_begin, k_end, STEP, num_stages=NUM_STAGES):
        block = k_start // 128 + warp % WARPS_K
        a, b, x = (), (), ()
        # Pointers are carried along and moved: recomputed, they would cost a fifth of all instructions.
        for u in tl.static_range(UNROLL):
            inside = (block + u * WARPS_K) * 128 < k_end
            for t in tl.static_range(TILES):
                at = codes_at[t] + (
                    u * WARPS_K * 16 * heights[t] if EVEN_N else (u * WARPS_K * 16 * heights[t])[:, None]
                )
                a += (load_codes(at, inside, MASKED),)
                b += (load_codes(at + to_b[t], inside, MASKED),)
            for word in tl.static_range(4):
                pair = ((block + u * WARPS_K) * 64 + quarter)[:, None] + last + 16 * word
                x += (
                    load_pairs(x_at + (u * WARPS_K * 64 + 16 * word) * X_STEP, pair, k_end, PAIRED, MASKED),
                )
        moved = ()
        for t in tl.static_range(TILES):
            moved += (
                codes_at[t] + (STEP // 8 * heights[t] if EVEN_N else (STEP // 8 * heights[t])[:, None]),
            )
        codes_at = moved
        x_at += STEP // 2 * X_STEP
        # Scales come a step ahead: the compiler moves their loads behind the wait for the codes, whatever their order.
        following = tl.minimum(k_start + STEP, last_start) // 128 + warp % WARPS_K
        next_scales = load_metadata(
            scales_at,
            following,
            heights,
            rows_a,
            rows_b,
            k_end,
            QUANT_GROUP,
            MASKED,
            PARTS,
            TILES,
            UNROLL,
            WARPS_K,
        )
        zeros = ()
        if ZERO_MODE == "asym":
            zeros = load_metadata(
                zeros_at,
                block,
                (2,) * TILES,
                words_a,
                words_b,
                k_end,
                QUANT_GROUP,
                MASKED,
                PARTS,
                TILES,
                UNROLL,
                WARPS_K,
            )
        elif ZERO_MODE == "offset":
            zeros = load_metadata(
                zeros_at,
                block,
                heights,
                rows_a,
                rows_b,
                k_end,
                QUANT_GROUP,
                MASKED,
                PARTS,
                TILES,
                UNROLL,
                WARPS_K,
            )
        for u in tl.static_range(UNROLL):
            for part in tl.static_range(PARTS):
                x_sum = x_sums(
                    x[4 * u], x[4 * u + 1], x[4 * u + 2], x[4 * u + 3], DTYPE, part, part + 4 // PARTS
                )
                sums = ()
                for t in tl.static_range(TILES):
                    acc = total[t]
                    if ZERO_MODE == "asym":
                        start = x_sum * -(
                            ((zeros[(u * TILES + t) * PARTS + part] >> shifts[t]) & 15).to(tl.float32)
                            + RAISED
                        )
                    elif ZERO_MODE == "sym":
                        start = x_sum * -(8.0 + RAISED)
                    else:
                        start = x_sum * -RAISED
                        acc = tl.fma(x_sum, zeros[(u * TILES + t) * PARTS + part].to(tl.float32), acc)
                    product = products(
                        a[u * TILES + t], b[u * TILES + t], x[4 * u], x[4 * u + 1], x[4 * u + 2], x[4 * u + 3],
                        start, DTYPE, part, part + 4 // PARTS,
                    )  # fmt: skip
                    sums += (tl.fma(product, scales[(u * TILES + t) * PARTS + part].to(tl.float32), acc),)
                total = sums
        scales = next_scales

    out = out_ptr + tl.program_id(1).to(tl.int64) * stride_split
    ys = ()
    strays = 0
    for t in tl.static_range(TILES):
        tile = first_tile + tl.arange(0, WARPS_N) * TILES + t
        y = tl.sum(tl.reshape(total[t], (WARPS_N, WARPS_K, 32, 4)), axis=1)
        strays = tl.maximum(strays, count_nan(y, tile, n, m))
        ys += (y,)
    if strays == 0:
        for t in tl.static_range(TILES):
            tile = first_tile + tl.arange(0, WARPS_N) * TILES + t
            store_sums(ys[t], tile, bias_ptr, out, n, m, stride_om)
    # A NaN may be infinity minus infinity: all outputs of this program again, 16 rows at a time.
    for chunk in range(tl.where(strays == 0, 0, m * (TILES * WARPS_N))):
        store_exact(
            chunk % m, (first_tile + chunk // m) * 16, x_ptr, codes_ptr, scales_ptr, zeros_ptr, bias_ptr, out, n,
            k_begin, k_end, groups, stride_xm, stride_cn, stride_om, magic, ZERO_MODE, QUANT_GROUP,
        )  # fmt: skip
