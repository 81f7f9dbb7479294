"""Exact integer products of 4-bit codes with activations in fixed point, on 8-bit tensor cores.

Decoding for fp16 tensor cores takes five integer instructions per eight codes, and integer pipes run at half rate: on
an H200 that, not memory, is what the last bytes wait for. Here a word of eight codes is an operand as it is: a byte
a + 16 b is a number, and one mask makes it a. With both,

    x_a a + x_b b = (a + 16 b) x_b / 16 + a (x_a - x_b / 16),

so 16 y = sum (a + 16 b) x_b + sum a (16 x_a - x_b): one instruction per eight codes, and half as many
``mma.m16n8k32`` as ``m16n8k16`` (PTX ISA, "Matrix Fragments for mma.m16n8k32").

The activations of a warp become integers of a common unit, 2^-22 of the power of two above their largest: an fp16 or
bf16 number as large as that keeps all its bits, and the error of the others is that of an fp32 sum. x_b and
16 x_a - x_b (28 bits) fall into four signed bytes, *limbs*; the eight columns of an mma that a single token leaves idle
take them. Sums of bytes are exact in int32. (A bf16 token whose largest activations are below 2^-101 loses bits: the
unit would leave fp32.) The zero point of symmetric codes comes off in the same integers: the sums
start at what the code 8 would give.

Functions take and return tensors [THREADS], one element per thread.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"
from __future__ import annotations

import triton
import triton.language as tl

MAGIC_FLOAT = tl.constexpr(12582912.0)
"""1.5 2^23: adding an integer below 2^22 to its bits is adding it to the number."""
MAGIC_BITS = tl.constexpr(0x4B400000)
X_BYTES = tl.constexpr(512)
"""Shared memory of a block's activations: 128 16-bit numbers, then their limbs [limb][quarter][view][word] in place."""


@triton.constexpr_function
def _ints(count):
    return (tl.int32,) * count


@triton.constexpr_function
def _imma(sums, a, b, start):
    return f"mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {{{sums}}}, {{{a}}}, {{{b}}}, {{{start}}};"


@triton.constexpr_function
def limbs_asm():
    """Four limbs, each of four numbers, of four integers."""
    return """{
.reg .b32 p<4>;
prmt.b32 p0, $4, $5, 0x5140;
prmt.b32 p1, $6, $7, 0x5140;
prmt.b32 p2, $4, $5, 0x7362;
prmt.b32 p3, $6, $7, 0x7362;
prmt.b32 $0, p0, p1, 0x5410;
prmt.b32 $1, p0, p1, 0x7632;
prmt.b32 $2, p2, p3, 0x5410;
prmt.b32 $3, p2, p3, 0x7632;
xor.b32 $0, $0, 0x80808080;
xor.b32 $1, $1, 0x80808080;
xor.b32 $2, $2, 0x80808080;
}"""


@triton.constexpr_function
def code_sum_asm():
    """Sums of the limbs of both views times a code: columns 2 c and 2 c + 1; bytes of the code, its lower nibbles."""
    lines = [".reg .b32 d<4>;"]
    start = "0, 0, 0, 0"
    for view, code in ((0, "$2"), (1, "$3")):
        for pair in range(2):
            b = 4 + 4 * view + 2 * pair
            lines.append(_imma("d0, d1, d2, d3", f"{code}, {code}, {code}, {code}", f"${b}, ${b + 1}", start))
            start = "d0, d1, d2, d3"
    lines += ["mov.b32 $0, d0;", "mov.b32 $1, d1;"]
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def byte_product_asm():
    """Sums of rows r, r + 8, columns 2 c, 2 c + 1; words of row r, of row r + 8; limbs; a start per column."""
    lines = [".reg .b32 m<8>;"]
    lines += [f"and.b32 m{i}, ${4 + i}, 0x0F0F0F0F;" for i in range(8)]
    start = "$20, $21, $20, $21"
    for pair in range(2):
        for view in range(2):
            word = 2 * pair
            a = (
                f"${4 + word}, ${8 + word}, ${5 + word}, ${9 + word}"
                if view == 0
                else f"m{word}, m{4 + word}, m{word + 1}, m{5 + word}"
            )
            b = 12 + 4 * view + word
            lines.append(_imma("$0, $1, $2, $3", a, f"${b}, ${b + 1}", start))
            start = "$0, $1, $2, $3"
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def largest_asm(dtype):
    """The larger magnitude of each half of two words; a NaN wins."""
    kind = "f16x2" if dtype == "fp16" else "bf16x2"
    return f"{{ .reg .b32 a, b; abs.{kind} a, $1; abs.{kind} b, $2; max.NaN.{kind} $0, a, b; }}"


@triton.jit
def larger(a, b, DTYPE: tl.constexpr):
    """The larger magnitudes of two words of two activations."""
    return tl.inline_asm_elementwise(
        largest_asm(DTYPE), "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def warp_max(value):
    """The largest int32 of a warp, in all its lanes."""
    return tl.inline_asm_elementwise(
        "redux.sync.max.s32 $0, $1, 0xffffffff;", "=r,r", [value], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def half_of(word, UPPER: tl.constexpr, DTYPE: tl.constexpr):
    """fp32 of a half of a word."""
    bits = (word >> 16 if UPPER else word).to(tl.int16)
    return bits.to(tl.float16 if DTYPE == "fp16" else tl.bfloat16, bitcast=True).to(tl.float32)


@triton.jit
def fixed(value, scale):
    """The integer nearest to value times scale, below 2^22."""
    return tl.fma(value, scale, MAGIC_FLOAT).to(tl.int32, bitcast=True) - MAGIC_BITS


@triton.jit
def scale_and_unit(xs, BLOCKS: tl.constexpr, DTYPE: tl.constexpr):
    """What turns a warp's activations into integers below 2^22, and the unit of 16 y: powers of two.

    xs has a lane's words of four pairs, per block. The unit is NaN where an activation is not finite.
    """
    most = larger(larger(xs[0][0], xs[0][1], DTYPE), larger(xs[0][2], xs[0][3], DTYPE), DTYPE)
    for b in tl.static_range(1, BLOCKS):
        of_block = larger(larger(xs[b][0], xs[b][1], DTYPE), larger(xs[b][2], xs[b][3], DTYPE), DTYPE)
        most = larger(most, of_block, DTYPE)
    # Positive numbers are ordered as their bits are.
    most = half_of(warp_max(tl.maximum(most & 0xFFFF, most >> 16)), False, DTYPE)
    exponent = tl.maximum(most.to(tl.int32, bitcast=True) >> 23, 26)
    scale = ((275 - exponent) << 23).to(tl.float32, bitcast=True)
    unit = ((exponent - 25) << 23).to(tl.float32, bitcast=True)
    return scale, tl.where(exponent == 255, float("nan"), unit)


@triton.jit
def limbs_of(x, scale, upper_view, DTYPE: tl.constexpr):
    """Limbs of a lane's eight activations, words of four pairs: of 16 x_a - x_b where ``upper_view`` is 1, else of
    x_b.
    """
    of_a = upper_view * 16
    of_b = 1 - 2 * upper_view
    # In the order of a word's bytes: codes 0, 2, 1, 3 are lower nibbles, 4, 6, 5, 7 upper ones.
    numbers = ()
    for i in tl.static_range(4):
        a = fixed(half_of(x[i % 2], i // 2 == 1, DTYPE), scale)
        b = fixed(half_of(x[2 + i % 2], i // 2 == 1, DTYPE), scale)
        numbers += (a * of_a + b * of_b + 0x00808080,)
    return tl.inline_asm_elementwise(
        limbs_asm(), "=&r,=&r,=&r,=&r,r,r,r,r", numbers, dtype=_ints(4), is_pure=True, pack=1
    )


@triton.jit
def code_sums(of_codes, of_lower, limbs):
    """int32 sums of both views' limbs times a code: ``of_codes`` is its byte four times, ``of_lower`` its nibble."""
    return tl.inline_asm_elementwise(
        code_sum_asm(), "=r,=r,r,r,r,r,r,r,r,r,r,r", (of_codes, of_lower) + limbs,  # noqa: RUF005
        dtype=_ints(2), is_pure=True, pack=1
    )  # fmt: skip


@triton.jit
def byte_products(a, b, limbs, start):
    """int32 sums: row r columns 2 c, 2 c + 1, row r + 8 the same, over a block."""
    return tl.inline_asm_elementwise(
        byte_product_asm(), "=&r,=&r,=&r,=&r" + ",r" * 18, a + b + limbs + start, dtype=_ints(4), is_pure=True, pack=1
    )  # fmt: skip


@triton.jit
def joined(lower, upper):
    """fp32 of two neighbouring columns' sums, whose bits stand on MAGIC_BITS."""
    return tl.fma(
        upper.to(tl.float32, bitcast=True) - MAGIC_FLOAT,
        256.0,
        lower.to(tl.float32, bitcast=True) - MAGIC_FLOAT,
    )
