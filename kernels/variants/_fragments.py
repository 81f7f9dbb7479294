"""PTX of v4's inner product: 16 rows of packed words times eight tokens on the tensor cores, from registers.

The layout ``interleaved`` and the loads of v4 hand every lane the operands of ``mma.m16n8k16`` (PTX ISA, "Matrix
Fragments for mma.m16n8k16") as they lie in memory: lane 4 r + c holds words of rows r and r + 8, activations of token
r, and gets the sums of rows r and r + 8 for tokens 2 c and 2 c + 1. No shuffle, no shared memory.

A code becomes a float with a mask and nothing else:

- fp16: the bits ``w & 0x000F000F`` *are* two numbers q 2^-24 (subnormal), ``w & 0x00F000F0`` are q 2^-20. Tensor cores
  take subnormals at full speed and their products and sums are fp32, so no bit is lost. Lower and upper nibbles are
  summed apart (``low``, ``high``), which also makes two chains of mma that do not wait for each other.
- bf16 has fp32's exponents, and q 2^-133 times x would vanish. There q goes into the upper four mantissa bits of 16,
  which gives 16 + q exactly.

Both sum codes that are not centred. The zero comes off per group, as z times the sum of the activations, in fp32. That
costs about one bit (fp16) or three (bf16) of fp32's 24, where a subtraction per weight would cost half an instruction.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl

BF16_RAISED = tl.constexpr(16.0)
"""What bf16 decoding adds to every code."""


@triton.constexpr_function
def _mma(kind, sums, a, x, first):
    """One step: ``sums += a x``, or ``sums = a x``."""
    previous = ", ".join(["0f00000000"] * 4) if first else sums
    return f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{{sums}}}, {{{a}}}, {{{x}}}, {{{previous}}};"


@triton.constexpr_function
def product_asm(dtype, first_word, last_word):
    """$0-3 low and $4-7 high sums out; $8-11 words of row r; $12-15 of row r + 8; $16-31 pairs of x for words 0-3."""
    lines = [".reg .b32 s, p<4>, q<4>;"]
    for word in range(first_word, last_word):
        x = 16 + 4 * word
        for row, pairs in ((8 + word, "p"), (12 + word, "q")):
            if dtype == "fp16":
                lines += [
                    f"shr.u32 s, ${row}, 8;",
                    f"and.b32 {pairs}0, ${row}, 0x000F000F;",
                    f"and.b32 {pairs}1, ${row}, 0x00F000F0;",
                    f"and.b32 {pairs}2, s, 0x000F000F;",
                    f"and.b32 {pairs}3, s, 0x00F000F0;",
                ]
                continue
            for pair, shift in enumerate(
                ("shl.b32 s, $%d, 3;", "shr.u32 s, $%d, 1;", "shr.u32 s, $%d, 5;", "shr.u32 s, $%d, 9;")
            ):
                lines += [shift % row, f"lop3.b32 {pairs}{pair}, s, 0x00780078, 0x41804180, 0xEA;"]
        first = word == first_word
        kind = "f16" if dtype == "fp16" else "bf16"
        lines += [
            _mma(kind, "$0, $1, $2, $3", "p0, q0, p2, q2", f"${x}, ${x + 1}", first),
            _mma(kind, "$4, $5, $6, $7", "p1, q1, p3, q3", f"${x + 2}, ${x + 3}", first),
        ]
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def x_sum_asm(dtype, first_word, last_word):
    """$0-3 sums of x out, as if every weight were 1; $4-19 pairs of x for words 0-3."""
    one = "0x3C003C00" if dtype == "fp16" else "0x3F803F80"
    lines = [".reg .b32 e;", f"mov.b32 e, {one};"]
    for pair in range(4 * first_word, 4 * last_word, 2):
        x = f"${4 + pair}, ${5 + pair}"
        kind = "f16" if dtype == "fp16" else "bf16"
        lines.append(_mma(kind, "$0, $1, $2, $3", "e, e, e, e", x, pair == 4 * first_word))
    return "{\n" + "\n".join(lines) + "\n}"


@triton.constexpr_function
def constraints(outputs, inputs):
    """fp32 registers that are written early, and 32-bit registers."""
    return ",".join(["=&f"] * outputs + ["r"] * inputs)


@triton.constexpr_function
def lane_asm():
    """0 where the four elements of this thread belong to the lane that $4-7 name, else NaN."""
    lines = [".reg .pred e;", ".reg .b32 l;", "mov.u32 l, %laneid;"]
    for i in range(4):
        lines += [f"setp.eq.u32 e, l, ${4 + i};", f"selp.f32 ${i}, 0f00000000, 0f7FFFFFFF, e;"]
    return "{\n" + "\n".join(lines) + "\n}"


@triton.jit
def zero_sums(lanes):
    """fp32 zeros of the shape of ``lanes`` [..., 4]; NaN where Triton lays tensors out otherwise than v4 expects."""
    return tl.inline_asm_elementwise(
        lane_asm(), constraints(4, 4), [lanes], dtype=tl.float32, is_pure=True, pack=4
    )


@triton.jit
def products(
    a, b, x0, x1, x2, x3, start, DTYPE: tl.constexpr, FIRST_WORD: tl.constexpr, LAST_WORD: tl.constexpr
):
    """``start`` plus fp32 sums [..., 4] of raised codes times x over words FIRST_WORD to LAST_WORD."""
    low, high = tl.inline_asm_elementwise(
        product_asm(DTYPE, FIRST_WORD, LAST_WORD),
        constraints(8, 24),
        [a, b, x0, x1, x2, x3],
        dtype=(tl.float32, tl.float32),
        is_pure=True,
        pack=4,
    )
    return tl.fma(low, 16777216.0, tl.fma(high, 1048576.0, start)) if DTYPE == "fp16" else start + low + high


@triton.jit
def x_sums(x0, x1, x2, x3, DTYPE: tl.constexpr, FIRST_WORD: tl.constexpr, LAST_WORD: tl.constexpr):
    """fp32 sums [..., 4] of x over the k of words FIRST_WORD to LAST_WORD, where ``products`` has its sums."""
    return tl.inline_asm_elementwise(
        x_sum_asm(DTYPE, FIRST_WORD, LAST_WORD),
        constraints(4, 16),
        [x0, x1, x2, x3],
        dtype=tl.float32,
        is_pure=True,
        pack=4,
    )
