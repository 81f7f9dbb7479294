"""Shared memory that the lanes of a warp fill from global memory while the warp computes (PTX ISA, "cp.async").

Registers would do for few loads in flight, but the compiler saves registers by moving loads behind the computations
that hide them. An asynchronous copy has no register to save, and its data can be indexed at run time: one compact loop
body serves all steps. Functions take and return tensors [THREADS], one element per thread; addresses are 32 bits of
the shared window.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def _stage_asm(size):
    return f"{{ .shared .align 16 .b8 stages[{size}]; mov.u32 $0, stages; }}"


@triton.constexpr_function
def _copy_asm(size, filled, guarded, shared):
    cache = "ca" if shared or size < 16 else "cg"
    copy = f"cp.async.{cache}.shared.global [$1], [$2], {size}{', $3' if filled else ''};"
    if not guarded:
        return f"mov.u32 $0, 0; {copy}"
    return f"{{ .reg .pred p; setp.ne.s32 p, ${4 if filled else 3}, 0; mov.u32 $0, 0; @p {copy} }}"


@triton.constexpr_function
def _wait_asm(pending):
    return f"cp.async.wait_group {pending}; bar.warp.sync 0xffffffff; mov.u32 $0, 0;"


@triton.jit
def stage_memory(BYTES: tl.constexpr):
    """Shared address of BYTES bytes that belong to the program."""
    return tl.inline_asm_elementwise(_stage_asm(BYTES), "=r", [], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def copy_async(to, source, read_bytes, wanted, BYTES: tl.constexpr, SHARED: tl.constexpr = False):
    """Starts to copy ``read_bytes`` of BYTES (4 or 16) and to fill the rest with 0, where ``wanted`` is not 0.

    None for ``read_bytes`` is all of them, None for ``wanted`` is every lane. SHARED: other programs of the SM read it
    too, so it goes through the L1.
    """
    if read_bytes is None:
        if wanted is None:
            tl.inline_asm_elementwise(
                _copy_asm(BYTES, False, False, SHARED), "=r,r,l", [to, source.to(tl.int64)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            tl.inline_asm_elementwise(
                _copy_asm(BYTES, False, True, SHARED), "=r,r,l,r", [to, source.to(tl.int64), wanted.to(tl.int32)],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip
    elif wanted is None:
        tl.inline_asm_elementwise(
            _copy_asm(BYTES, True, False, SHARED), "=r,r,l,r", [to, source.to(tl.int64), read_bytes],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.inline_asm_elementwise(
            _copy_asm(BYTES, True, True, SHARED), "=r,r,l,r,r",
            [to, source.to(tl.int64), read_bytes, wanted.to(tl.int32)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def prefetch(source, wanted):
    """Has the L2 fetch the line at ``source`` where ``wanted`` is true."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.u32 $0, 0; @p prefetch.global.L2 [$1]; }", "=r,l,r",
        [source.to(tl.int64), wanted.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def commit():
    """Closes a group of copies."""
    tl.inline_asm_elementwise(
        "cp.async.commit_group; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def wait(PENDING: tl.constexpr):
    """Waits until at most PENDING groups are under way, and for the other lanes of the warp."""
    tl.inline_asm_elementwise(_wait_asm(PENDING), "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def meet():
    """Waits for the other lanes of the warp."""
    tl.inline_asm_elementwise(
        "bar.warp.sync 0xffffffff; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def read4(at):
    """Four int32 at a 16-byte aligned address."""
    return tl.inline_asm_elementwise(
        "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r", [at],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def read1(at):
    """The int32 at a 4-byte aligned address."""
    return tl.inline_asm_elementwise(
        "ld.shared.b32 $0, [$1];", "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def read_half(at):
    """The 16 bits at a 2-byte aligned address, in the lower half of an int32."""
    return tl.inline_asm_elementwise(
        "{ .reg .b16 h; ld.shared.b16 h, [$1]; cvt.u32.u16 $0, h; }", "=r,r", [at],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def read_float(at, ptr):
    """fp32 of the 16-bit float at a 2-byte aligned address, of the dtype that ``ptr`` points to."""
    return read_half(at).to(tl.int16).to(ptr.dtype.element_ty, bitcast=True).to(tl.float32)


@triton.jit
def write_half(at, bits, wanted):
    """Writes the lower half of ``bits`` where ``wanted`` is not 0."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b16 h; setp.ne.s32 p, $3, 0; cvt.u16.u32 h, $2; "
        "@p st.shared.b16 [$1], h; mov.u32 $0, 0; }",
        "=r,r,r,r", [at, bits, wanted.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def ask_half(slot, ptr, index, count, wanted):
    """Starts to fetch the 16-bit element ``index`` of ``count`` into a slot of 4 bytes; ``ptr`` is 4-byte aligned."""
    pair = index // 2 * 2
    copy_async(slot, ptr + pair, tl.maximum(tl.minimum((count - pair) * 2, 4), 0), wanted, 4)


@triton.jit
def asked_half(slot, index, ptr):
    """fp32 of what ``ask_half`` fetched of the same pointer."""
    return read_float(slot + index % 2 * 2, ptr)


@triton.jit
def meet_all():
    """Waits for the other warps of the program."""
    tl.inline_asm_elementwise("bar.sync 0; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def begin_cluster():
    """Tells the other programs of the cluster that this one has begun (PTX ISA, "barrier.cluster")."""
    tl.inline_asm_elementwise(
        "barrier.cluster.arrive.relaxed.aligned; mov.u32 $0, 0;",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def await_cluster():
    """Waits until all programs of the cluster have begun: their shared memory may be written from now on."""
    tl.inline_asm_elementwise(
        "barrier.cluster.wait.aligned; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def meet_cluster():
    """Waits for all warps of the cluster, and for what they have written."""
    tl.inline_asm_elementwise(
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 $0, 0;", "=r", [],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def in_first(at):
    """The same place in the shared memory of the cluster's first program, for ``write_sum``."""
    return tl.inline_asm_elementwise(
        "mapa.shared::cluster.u32 $0, $1, 0;", "=r,r", [at], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def read_sum(at):
    """The fp32 at a 4-byte aligned address."""
    return tl.inline_asm_elementwise(
        "ld.shared.f32 $0, [$1];", "=f,r", [at], dtype=tl.float32, is_pure=False, pack=1
    )


@triton.constexpr_function
def _write_sum_asm(far):
    space = "shared::cluster" if far else "shared"
    return f"{{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.{space}.f32 [$1], $2; mov.u32 $0, 0; }}"


@triton.jit
def write_sum(at, value, wanted, FAR: tl.constexpr = False):
    """Writes an fp32 where ``wanted`` is true; FAR: to a place of ``in_first``."""
    tl.inline_asm_elementwise(
        _write_sum_asm(FAR),
        "=r,r,f,r",
        [at, value, wanted.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def store_half(ptr, value, wanted):
    """Stores 16-bit floats where ``wanted`` is true: for kernels of clusters, where Triton (3.6, 3.7) fails to plan the
    layout of a store that comes out of inline assembly.
    """
    tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b16 h; setp.ne.s32 p, $3, 0; cvt.u16.u32 h, $2; "
        "@p st.global.b16 [$1], h; mov.u32 $0, 0; }",
        "=r,l,r,r", [ptr.to(tl.int64), value.to(tl.int16, bitcast=True).to(tl.int32), wanted.to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def write_word(at, value):
    """Writes an int32."""
    tl.inline_asm_elementwise(
        "st.shared.b32 [$1], $2; mov.u32 $0, 0;", "=r,r,r", [at, value], dtype=tl.int32, is_pure=False, pack=1
    )
