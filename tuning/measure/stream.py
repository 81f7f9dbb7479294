"""Kernels that only move bytes: what the memory allows, with no arithmetic to wait for.

stream_once   out[p] = xor of words[p * TILE : (p + 1) * TILE],   TILE = BLOCK * LOADS, one program per tile
stream_lane   out[p] = xor of words[p * TILE + i * BLOCK], i < LOADS; every word is loaded as in stream_once, but not
              reduced across threads, which costs 3-5 % at a few hundred kB (H200, 2026-11)
stream_loop   out[p] = xor of tiles p, p + programs, p + 2 * programs, ...
stream_copy   out[i] = words[i]
empty         nothing: its time in a graph is the launch floor

Bytes read: 4 * words. Each thread has LOADS independent 16-byte loads in flight where BLOCK = 128 *
num_warps. The xor keeps the compiler from dropping a load, and is checked: every word counts. ``words`` is a
multiple of 16, which Triton sees in the run-time argument, so that masks do not break vectors apart. A
compiled kernel serves every size. With PDL (``kernels.step``) a stream reads while the launch before it ends: what a
chain of kernels can attain.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def stream_once(
    words_ptr,  # int32 [words]
    out_ptr,  # int32 [programs]
    words,
    BLOCK: tl.constexpr,
    LOADS: tl.constexpr,
    EVICT: tl.constexpr,
    PDL: tl.constexpr = False,
):
    """One tile per program, straight-line."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    pid = tl.program_id(0)
    offsets = pid * (BLOCK * LOADS) + tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), dtype=tl.int32)
    for i in tl.static_range(LOADS):
        at = offsets + i * BLOCK
        found ^= tl.load(words_ptr + at, mask=at < words, other=0, eviction_policy=EVICT)
    found = tl.xor_sum(found, axis=0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    tl.store(out_ptr + pid, found)


@triton.jit
def stream_lane(
    words_ptr,  # int32 [words], none negative
    out_ptr,  # int32 [programs]
    words,
    BLOCK: tl.constexpr,
    LOADS: tl.constexpr,
    EVICT: tl.constexpr,
    PDL: tl.constexpr = False,
):
    """As ``stream_once``, but only the first lane stores what it found.

    The others store if their xor is negative, which no xor of non-negative words is and no compiler knows: so every
    load stays, and nothing waits for another thread.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    pid = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), dtype=tl.int32)
    for i in tl.static_range(LOADS):
        at = pid * (BLOCK * LOADS) + i * BLOCK + lane
        found ^= tl.load(words_ptr + at, mask=at < words, other=0, eviction_policy=EVICT)
    if PDL:
        tl.extra.cuda.gdc_wait()
    tl.store(out_ptr + pid + 0 * lane, found, mask=(lane == 0) | (found < 0))


@triton.jit
def stream_loop(
    words_ptr,  # int32 [words]
    out_ptr,  # int32 [programs]
    words,
    BLOCK: tl.constexpr,
    LOADS: tl.constexpr,
    EVICT: tl.constexpr,
    PDL: tl.constexpr = False,
):
    """Persistent programs that stride over the tiles."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    pid = tl.program_id(0)
    found = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(pid * (BLOCK * LOADS), words, tl.num_programs(0) * (BLOCK * LOADS)):
        offsets = start + tl.arange(0, BLOCK)
        for i in tl.static_range(LOADS):
            at = offsets + i * BLOCK
            found ^= tl.load(words_ptr + at, mask=at < words, other=0, eviction_policy=EVICT)
    found = tl.xor_sum(found, axis=0)
    if PDL:
        tl.extra.cuda.gdc_wait()
    tl.store(out_ptr + pid, found)


@triton.jit
def stream_copy(words_ptr, out_ptr, words, BLOCK: tl.constexpr, LOADS: tl.constexpr):
    """One tile per program. A ``copy_`` captured in a graph would be a memcpy node, which is slower."""
    offsets = tl.program_id(0) * (BLOCK * LOADS) + tl.arange(0, BLOCK)
    for i in tl.static_range(LOADS):
        at = offsets + i * BLOCK
        tl.store(out_ptr + at, tl.load(words_ptr + at, mask=at < words), mask=at < words)


@triton.jit
def empty(PDL: tl.constexpr = False):
    """No argument, no work."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
