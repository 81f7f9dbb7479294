"""Rotary embedding, cache append and attention of one query token over a static cache, two launches.

    q' = rope(q, p),  keys[t] = rope(k, p),  values[t] = v                      t = length, p = position
    y[h] = sum_{j <= t} softmax_j(scale * q'[h] . keys[h / G, j]) values[h / G, j]
    rope(x, p) = x cos[p] + rotate_half(x) sin[p],  rotate_half(x) = (-x[D/2:], x[:D/2])    (Su et al. 2021)

Layout: q [H D], k and v [Hkv D] 16-bit, the parts of one fused q|k|v output or three tensors; cos, sin [L,
D]; keys, values [1, Hkv, L, D]; length and position are int64 scalars in device memory, so that one captured
graph serves every step. G = H / Hkv query heads share a cache head and are computed together, so that the
cache is read once.
Bytes: reads 4 D Hkv (t + 1), writes 4 D Hkv; partial results 4 H (D + 1) per split, written and read once,
stay in L2.

The cache is split along its length (flash-decoding, Dao et al. 2023): one program per cache head and split
computes a partial softmax, a second launch adds the partial results in the order of the splits, so two runs
give the same bits. The grid covers the whole cache; programs past ``length`` only mark their part as empty.
The program that owns slot t takes the new key and value from registers. Scores and sums are fp32; rotated
values and probabilities are rounded to 16 bits for the tensor cores, as in FlashAttention.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from roofgap.e2e.fused.launching import refuse_dtype, run
from roofgap.kernels.ints import cdiv, next_power_of_2
from roofgap.kernels.step import Launch
from roofgap.kernels.variants._dot import dot_rounded
from roofgap.shapes.errors import RoofgapError

BLOCK = 32  # positions per trip: 512 of them on 2 cache heads already make 32 programs
MOST_SPLITS = 64  # the second launch holds MOST_SPLITS x D partial sums in registers
DOT_ROWS = 16  # tl.dot's least M


@triton.jit
def _rotated(x_ptr, cos, sin, offs, offs_d, mask, HEAD_DIM: tl.constexpr):
    """Rows at ``offs`` [R, 1], values ``offs_d`` [1, D], rotated by cos and sin [1, D], fp32."""
    half = HEAD_DIM // 2
    partner = tl.where(offs_d < half, offs_d + half, offs_d - half)
    sign = tl.where(offs_d < half, -1.0, 1.0)
    x = tl.load(x_ptr + offs + offs_d, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(x_ptr + offs + partner, mask=mask, other=0.0).to(tl.float32)
    return x * cos + sign * other * sin


@triton.jit
def decode_attention_split_kernel(  # noqa: PLR0915
    q_ptr,  # [H, D]
    k_ptr,  # [Hkv, D]
    v_ptr,  # [Hkv, D]
    cos_ptr,  # [L, D]
    sin_ptr,  # [L, D]
    position_ptr,  # int64
    length_ptr,  # int64
    keys_ptr,  # [Hkv, L, D]
    values_ptr,  # [Hkv, L, D]
    partial_ptr,  # [H, SPLITS, D] fp32
    lse_ptr,  # [H, SPLITS] fp32
    scale,  # times log2(e): softmax in base 2
    stride_head,
    splits,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr = False,
):
    """CHUNK positions of one cache head; grid (Hkv, SPLITS).

    The counters and the cache's old rows are what earlier steps left, so they are read before the wait for this one's
    q, k and v.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    offs_g = tl.arange(0, ROWS)
    heads = kv_head * GROUP + offs_g
    used = offs_g < GROUP
    length = tl.load(length_ptr).to(tl.int32)
    start = split * CHUNK
    if start > length:
        if PDL:
            tl.extra.cuda.gdc_wait()
        tl.store(lse_ptr + heads * splits + split, float("-inf"), mask=used)
        return

    offs_d = tl.arange(0, HEAD_DIM)
    offs_p = tl.arange(0, BLOCK)
    stop = tl.minimum(start + CHUNK, length + 1)
    cache = kv_head.to(tl.int64) * stride_head
    tile = cache + (start + offs_p)[:, None].to(tl.int64) * HEAD_DIM + offs_d[None, :]
    # Old slots only: the new one is still to be written. Tiles are asked for one trip ahead.
    wanted = (start + offs_p < tl.minimum(stop, length))[:, None]
    next_keys = tl.load(keys_ptr + tile, mask=wanted, other=0.0)
    next_values = tl.load(values_ptr + tile, mask=wanted, other=0.0)

    position = tl.load(position_ptr)
    cos = tl.load(cos_ptr + position * HEAD_DIM + offs_d)[None, :].to(tl.float32)
    sin = tl.load(sin_ptr + position * HEAD_DIM + offs_d)[None, :].to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    q = _rotated(q_ptr, cos, sin, heads[:, None] * HEAD_DIM, offs_d[None, :], used[:, None], HEAD_DIM)
    q = q.to(keys_ptr.dtype.element_ty)
    one = tl.zeros((1, 1), dtype=tl.int32)
    new_key = _rotated(k_ptr, cos, sin, one + kv_head * HEAD_DIM, offs_d[None, :], one == 0, HEAD_DIM)
    new_key = new_key.to(keys_ptr.dtype.element_ty)
    new_value = tl.load(v_ptr + kv_head * HEAD_DIM + offs_d)[None, :]
    if length < start + CHUNK:
        slot = cache + length.to(tl.int64) * HEAD_DIM + offs_d[None, :]
        tl.store(keys_ptr + slot, new_key)
        tl.store(values_ptr + slot, new_value)

    top = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    acc = tl.zeros((ROWS, HEAD_DIM), dtype=tl.float32)
    for first in tl.range(start, stop, BLOCK):
        at = first + offs_p
        is_new = (at == length)[:, None]
        keys, values = tl.where(is_new, new_key, next_keys), tl.where(is_new, new_value, next_values)
        tile += BLOCK * HEAD_DIM
        wanted = (at + BLOCK < tl.minimum(stop, length))[:, None]
        next_keys = tl.load(keys_ptr + tile, mask=wanted, other=0.0)
        next_values = tl.load(values_ptr + tile, mask=wanted, other=0.0)
        scores = dot_rounded(q, tl.trans(keys), tl.zeros((ROWS, BLOCK), dtype=tl.float32)) * scale
        scores = tl.where((at <= length)[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = dot_rounded(weights.to(values.dtype), values, acc * shrink[:, None])
        top = higher
    slots = heads * splits + split
    tl.store(lse_ptr + slots, top + tl.log2(total), mask=used)
    tl.store(
        partial_ptr + slots[:, None] * HEAD_DIM + offs_d[None, :], acc / total[:, None], mask=used[:, None]
    )


@triton.jit
def decode_attention_combine_kernel(
    partial_ptr,  # [H, SPLITS, D] fp32
    lse_ptr,  # [H, SPLITS] fp32
    y_ptr,  # [H, D]
    length_ptr,  # int64
    splits,
    SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PDL: tl.constexpr = False,
):
    """One query head: the splits weighted by their share of the softmax; grid (H,). Counts the token as
    cached.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    head = tl.program_id(0)
    offs_s = tl.arange(0, SPLITS)
    offs_d = tl.arange(0, HEAD_DIM)
    lse = tl.load(lse_ptr + head * splits + offs_s, mask=offs_s < splits, other=float("-inf"))
    weight = tl.exp2(lse - tl.max(lse, axis=0))
    # Empty splits hold whatever was in memory; loading that too spares the wait for lse.
    partial = tl.load(
        partial_ptr + (head * splits + offs_s[:, None]) * HEAD_DIM + offs_d[None, :],
        mask=(offs_s < splits)[:, None],
        other=0.0,
    )
    partial = tl.where((weight > 0)[:, None], partial, 0.0)
    y = tl.sum(partial * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    tl.store(y_ptr + head * HEAD_DIM + offs_d, y.to(y_ptr.dtype.element_ty))
    if head == 0:
        tl.store(length_ptr, tl.load(length_ptr) + 1)


def chunk_of(cache_length: int) -> int:
    """Positions per split: a multiple of BLOCK that needs at most MOST_SPLITS splits."""
    return BLOCK * -(-cache_length // (BLOCK * MOST_SPLITS))


def plan(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    length: torch.Tensor,
    scale: float,
    y: torch.Tensor,
) -> list[Launch]:
    """The launches that fill ``y``, append to the cache and raise ``length`` by one. Meta tensors are legal."""
    _, kv_heads, cache_length, head_dim = keys.shape
    heads = q.numel() // head_dim
    group = heads // kv_heads
    chunk = chunk_of(cache_length)
    splits = cdiv(cache_length, chunk)
    partial = torch.empty((heads, splits, head_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((heads, splits), dtype=torch.float32, device=q.device)
    split_args = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "cos_ptr": cos,
        "sin_ptr": sin,
        "position_ptr": position,
        "length_ptr": length,
        "keys_ptr": keys,
        "values_ptr": values,
        "partial_ptr": partial,
        "lse_ptr": lse,
        "scale": scale * math.log2(math.e),
        "stride_head": keys.stride(1),
        "splits": splits,
        "GROUP": group,
        "ROWS": max(DOT_ROWS, next_power_of_2(group)),
        "HEAD_DIM": head_dim,
        "CHUNK": chunk,
        "BLOCK": BLOCK,
    }
    combine_args = {
        "partial_ptr": partial,
        "lse_ptr": lse,
        "y_ptr": y,
        "length_ptr": length,
        "splits": splits,
        "SPLITS": next_power_of_2(splits),
        "HEAD_DIM": head_dim,
    }
    return [
        Launch(
            kernel=decode_attention_split_kernel,
            grid=(kv_heads, splits),
            args=split_args,
            num_stages=1,
            role="attention",
        ),
        Launch(kernel=decode_attention_combine_kernel, grid=(heads,), args=combine_args, role="attention"),
    ]


@torch.library.custom_op("roofgap::decode_attention", mutates_args=("keys", "values", "length"))
def _decode_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    length: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    run(plan(q, k, v, cos, sin, position, keys, values, length, scale, y), q.device)
    return y


@_decode_attention.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    length: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def decode_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    length: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention of one new token, batch 1; appends its key and value to the cache and raises ``length`` by
    one.

    Writing past the cache is the caller's to prevent: ``length`` is on the device and is not looked at here.

    Args:
        q: fp16 or bf16 [1, H * D], not yet rotated.
        k: [1, Hkv * D], not yet rotated.
        v: [1, Hkv * D].
        cos: rotary table [L', D] with L' above every position, both halves of D alike; as transformers has
            it.
        sin: the same for sin.
        position: int64, one element: the row of the table.
        keys: cache [1, Hkv, L, D], the rotated keys of earlier tokens in its first ``length`` rows.
        values: cache [1, Hkv, L, D].
        length: int64, one element: tokens in the cache.
        scale: factor of the scores, usually D ** -0.5.

    Returns:
        [1, H * D], heads side by side.

    Raises:
        RoofgapError: a head dimension that is no power of two from 16 to 256, or other shapes, dtypes or
            strides.
    """
    refuse_shapes(q, k, v, cos, sin, keys, values)
    for name, counter in (("position", position), ("length", length)):
        if counter.dtype != torch.int64 or counter.numel() != 1:
            raise RoofgapError(
                f"{name} {counter.dtype} {list(counter.shape)}".replace("torch.", ""),
                "must be one int64 in device memory",
                "keep it as a tensor, so that a captured graph can read it",
            )
    return _decode_attention(q, k, v, cos, sin, position, keys, values, length, scale)  # type: ignore[no-any-return]


def refuse_shapes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Refuses operands that the kernels would misread.

    Raises:
        RoofgapError: naming the operand, the rule and the remedy.
    """
    if keys.ndim != 4 or keys.shape[0] != 1 or keys.shape != values.shape or keys.stride() != values.stride():
        raise RoofgapError(
            f"cache {list(keys.shape)} and {list(values.shape)}",
            "must be two tensors [1, Hkv, L, D] alike",
            "decode one sequence at a time",
        )
    _, kv_heads, _, head_dim = keys.shape
    if head_dim & (head_dim - 1) or not 16 <= head_dim <= 256:
        raise RoofgapError(
            f"head_dim={head_dim}", "must be a power of two from 16 to 256", "run without fused operators"
        )
    for name, tensor in (("q", q), ("k", k), ("v", v), ("keys", keys), ("values", values)):
        refuse_dtype(name, tensor, keys.dtype)
    if keys.stride(2) != head_dim:
        raise RoofgapError(
            f"cache with strides {keys.stride()}", "needs rows one after the other", "call contiguous()"
        )
    if q.numel() % (kv_heads * head_dim) or k.numel() != kv_heads * head_dim or v.shape != k.shape:
        raise RoofgapError(
            f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}",
            f"must be one token of H x {head_dim} and {kv_heads} x {head_dim} values, H a multiple of {kv_heads}",
            "decode one token at a time",
        )
    if (
        cos.shape != sin.shape
        or cos.shape[-1] != head_dim
        or not (cos.is_contiguous() and sin.is_contiguous())
    ):
        raise RoofgapError(
            f"cos {list(cos.shape)} and sin {list(sin.shape)}",
            f"must be contiguous [L, {head_dim}]",
            "rebuild them",
        )
