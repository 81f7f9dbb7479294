"""PTX of v4's inner product: 16 rows of packed words times eight tokens on the tensor cores, from registers.

The layout ``interleaved`` and the loads of v4 hand every lane the operands of ``mma.m16n8k16`` (PTX ISA, "Matrix
Fragments for mma.m16n8k16") as they lie in memory: lane 4 r + c holds words of rows r and r + 8, activations of token
r, and gets the sums of rows r and r + 8 for tokens 2 c and 2 c + 1. No shuffle, no conversion.

A code becomes a float with a mask and at most one exact multiplication:

- fp16: the bits ``w & 0x000F000F`` *are* two numbers q 2^-24 (subnormal), ``w & 0x00F000F0`` are q 2^-20; an exact
  multiplication makes both q 2^-9. It is there for the tensor cores, which would take subnormals at full speed, but
  align the products of an mma by their factors' exponents before they add: a subnormal counts as 2^-14, and what stands
  beside an outlier loses ten bits more than fp32 would. Lower and upper nibbles are summed apart, which makes two
  chains of mma that do not wait for each other. Everything stays in units of 2^-9 until the kernel stores.
- bf16 has fp32's exponents, and q 2^-133 times x would vanish. There q goes into the upper four mantissa bits of 16,
  which gives 16 + q exactly.

Both sum codes that are not centred. The zero comes off per group, as z times the sum of the activations, which the same
tensor cores take of a matrix of ones, once for all tiles of a warp. That costs about one bit (fp16) or three (bf16) of
fp32's 24, where a subtraction per weight would cost half an instruction; and an infinite activation yields NaN
(inf - inf) in every output.

Functions take and return tensors [THREADS], one element per thread. TOKENS is 1 or 8; with 1 a lane keeps the sums of
token 0 alone: one of row r, one of row r + 8.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl

BF16_RAISED = tl.constexpr(16.0)
"""What bf16 decoding adds to every code."""


@triton.constexpr_function
def scale_of(dtype):
    """What a sum has to be multiplied by."""
    return 512.0 if dtype == "fp16" else 1.0


@triton.constexpr_function
def constraints(outputs, inputs, kind="r"):
    """fp32 registers that are written early, and inputs of a kind."""
    return ",".join(["=&f"] * outputs + [kind] * inputs)


@triton.constexpr_function
def _mma(dtype, sums, a, x, start):
    """``sums = a x + start``."""
    kind = "f16" if dtype == "fp16" else "bf16"
    return (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{{sums}}}, {{{a}}}, {{{x}}}, {{{start}}};"
    )


ZEROS = ", ".join(["0f00000000"] * 4)


@triton.constexpr_function
def _decode(dtype, word, pairs):
    """Eight codes of a word as four pairs ``pairs``0-3."""
    if dtype == "fp16":
        return [
            f"shr.u32 s, {word}, 8;",
            f"and.b32 {pairs}0, {word}, 0x000F000F;",
            f"and.b32 {pairs}1, {word}, 0x00F000F0;",
            f"and.b32 {pairs}2, s, 0x000F000F;",
            f"and.b32 {pairs}3, s, 0x00F000F0;",
            *(
                f"mul.rn.f16x2 {pairs}{pair}, {pairs}{pair}, {'upper' if pair % 2 else 'lower'};"
                for pair in range(4)
            ),
        ]
    lines = []
    for pair, shift in enumerate(
        ("shl.b32 s, %s, 3;", "shr.u32 s, %s, 1;", "shr.u32 s, %s, 5;", "shr.u32 s, %s, 9;")
    ):
        lines += [shift % word, f"lop3.b32 {pairs}{pair}, s, 0x00780078, 0x41804180, 0xEA;"]
    return lines


@triton.constexpr_function
def product_asm(dtype, tokens, first_word, last_word):
    """Sums out (rows r, r + 8 of a token, or four); words of row r, of row r + 8; 16 pairs of x."""
    outputs = 2 if tokens == 1 else 4
    words, xs = outputs, outputs + 8
    lines = [
        ".reg .b32 s, p<4>, q<4>, lower, upper; .reg .f32 l<4>, h<4>;",
        "mov.b32 lower, 0x78007800; mov.b32 upper, 0x68006800;",  # 2^15 and 2^11
    ]
    low, high = ZEROS, ZEROS
    for word in range(first_word, last_word):
        x = xs + 4 * word
        lines += _decode(dtype, f"${words + word}", "p") + _decode(dtype, f"${words + 4 + word}", "q")
        lines += [
            _mma(dtype, "l0, l1, l2, l3", "p0, q0, p2, q2", f"${x}, ${x + 1}", low),
            _mma(dtype, "h0, h1, h2, h3", "p1, q1, p3, q3", f"${x + 2}, ${x + 3}", high),
        ]
        low, high = "l0, l1, l2, l3", "h0, h1, h2, h3"
    kept = (0, 2) if tokens == 1 else (0, 1, 2, 3)
    lines += [f"add.f32 ${out}, h{i}, l{i};" for out, i in enumerate(kept)]
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def x_sum_asm(dtype, tokens, first_word, last_word):
    """Sums of x out, per token, in the unit of ``product_asm``; 16 pairs of x."""
    outputs = 1 if tokens == 1 else 2
    lines = [
        ".reg .b32 e; .reg .f32 l<4>, h<4>;",
        f"mov.b32 e, {'0x18001800' if dtype == 'fp16' else '0x3F803F80'};",
    ]
    low, high = ZEROS, ZEROS
    for word in range(first_word, last_word):
        x = outputs + 4 * word
        lines += [
            _mma(dtype, "l0, l1, l2, l3", "e, e, e, e", f"${x}, ${x + 1}", low),
            _mma(dtype, "h0, h1, h2, h3", "e, e, e, e", f"${x + 2}, ${x + 3}", high),
        ]
        low, high = "l0, l1, l2, l3", "h0, h1, h2, h3"
    lines += [f"add.f32 ${i}, l{i}, h{i};" for i in range(outputs)]
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def owned(tokens, warps_k):
    """Outputs per thread when a group of warps has added up."""
    return max(1, 16 * tokens // (32 * warps_k))


@triton.constexpr_function
def add_warps_asm(warps_n, warps_k, tokens):
    """Outputs that this thread owns; then the sums that its lane holds.

    The WARPS_K warps beside one another along K leave their sums in shared memory, [warp][token][16 rows], and are
    added in their order: thread t of a group of WARPS_K warps owns outputs t, t + 32 WARPS_K, ... of [token][16 rows].
    """
    group, size = 32 * warps_k, 16 * tokens
    outputs = max(1, 16 * tokens // (32 * warps_k))
    lines = [
        f".shared .align 16 .b8 part[{warps_n * warps_k * size * 4}];",
        ".reg .b32 base, t, at, lane, warp, u; .reg .pred p;",
        "mov.u32 base, part;",
        "mov.u32 t, %tid.x;",
        "and.b32 lane, t, 31;",
        "shr.u32 warp, t, 5;",
        "shr.u32 at, lane, 2;",
        f"mad.lo.u32 at, warp, {size}, at;",
        "and.b32 lane, lane, 3;",
    ]
    if tokens == 1:
        lines += [
            "setp.eq.u32 p, lane, 0;",
            "mad.lo.u32 at, at, 4, base;",
            f"@p st.shared.f32 [at], ${outputs};",
            f"@p st.shared.f32 [at + 32], ${outputs + 1};",
        ]
    else:
        lines += ["mad.lo.u32 at, lane, 32, at;", "mad.lo.u32 at, at, 4, base;"]
        lines += [f"st.shared.f32 [at + {at}], ${outputs + i};" for i, at in enumerate((0, 64, 32, 96))]
    lines.append("bar.warp.sync 0xffffffff;" if warps_k == 1 else "bar.sync 0;")
    # u: place among the outputs of the group; at: its sum in the group's first warp
    lines += [
        f"and.b32 u, t, {group - 1};",
        f"shr.u32 at, t, {group.bit_length() - 1};",
        f"mad.lo.u32 at, at, {warps_k * size}, u;",
        "mad.lo.u32 at, at, 4, base;",
        f"setp.lt.u32 p, u, {size};",
    ]
    lines.append(f".reg .f32 f<{warps_k}>;")
    for i in range(outputs):
        # All loads before the first sum: one wait instead of one per warp.
        lines += [f"mov.f32 f{warp}, 0f00000000;" for warp in range(warps_k)]
        lines += [
            f"@p ld.shared.f32 f{warp}, [at + {4 * (i * group + warp * size)}];" for warp in range(warps_k)
        ]
        lines.append(f"mov.f32 ${i}, f0;")
        lines += [f"add.f32 ${i}, ${i}, f{warp};" for warp in range(1, warps_k)]
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def floats(count):
    """So many fp32 results."""
    return (tl.float32,) * count


@triton.jit
def products(a, b, x, DTYPE: tl.constexpr, TOKENS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr):
    """fp32 sums of raised codes times x over words FIRST to LAST: of row r, of row r + 8 (of tokens 2 c and 2 c + 1).

    a and b are four words of rows r and r + 8, x the 16 pairs of activations that meet them.
    """
    OUTPUTS: tl.constexpr = 2 if TOKENS == 1 else 4
    return tl.inline_asm_elementwise(
        product_asm(DTYPE, TOKENS, FIRST, LAST), constraints(OUTPUTS, 24), a + b + x,
        dtype=floats(OUTPUTS), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def x_sums(x, DTYPE: tl.constexpr, TOKENS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr):
    """fp32 sums of x over the k of words FIRST to LAST, per token of ``products``."""
    OUTPUTS: tl.constexpr = 1 if TOKENS == 1 else 2
    return tl.inline_asm_elementwise(
        x_sum_asm(DTYPE, TOKENS, FIRST, LAST),
        constraints(OUTPUTS, 16),
        x,
        dtype=floats(OUTPUTS),
        is_pure=True,
        pack=1,
    )


@triton.jit
def add_warps(sums, WARPS_N: tl.constexpr, WARPS_K: tl.constexpr, TOKENS: tl.constexpr):
    """A lane's sums, added over the warps along K; result i of thread t is output t + 32 WARPS_K i of its group of
    warps. One barrier.
    """
    OUTPUTS: tl.constexpr = owned(TOKENS, WARPS_K)
    return tl.inline_asm_elementwise(
        add_warps_asm(WARPS_N, WARPS_K, TOKENS), constraints(OUTPUTS, 2 if TOKENS == 1 else 4, "f"), sums,
        dtype=floats(OUTPUTS), is_pure=False, pack=1,
    )  # fmt: skip


@triton.constexpr_function
def _checked_zero_asm(cluster_threads):
    own = "mov.u32 t, %tid.x; "
    if cluster_threads is not None:
        own += f"mov.u32 c, %cluster_ctarank; mad.lo.u32 t, c, {cluster_threads}, t; "
    return f"{{ .reg .pred e; .reg .b32 t, c; {own}setp.eq.u32 e, t, $1; selp.f32 $0, 0f00000000, 0f7FFFFFFF, e; }}"


@triton.jit
def checked_zero(thread, CLUSTER_THREADS: tl.constexpr = None):
    """fp32 0, or NaN where Triton gives element i of a tensor to another thread than i.

    The threads of a cluster count on from one program to the next, CLUSTER_THREADS each.
    """
    return tl.inline_asm_elementwise(
        _checked_zero_asm(CLUSTER_THREADS), "=f,r", [thread], dtype=tl.float32, is_pure=True, pack=1
    )
