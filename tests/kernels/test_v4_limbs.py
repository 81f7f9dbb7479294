"""The PTX of v4's integer products, executed here lane by lane, against exact integers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from ptx_machine import LANES, numbered, run
from v4_cases import words_of

from roofgap.kernels.formats.weight import DTYPES
from roofgap.kernels.inputs import generator
from roofgap.kernels.variants._limbs import byte_product_asm, code_sum_asm, largest_asm, limbs_asm
from roofgap.shapes.problem import XDtype

ROW, QUARTER = LANES // 4, LANES % 4
LOWER, UPPER = np.array([0, 2, 1, 3]), np.array([4, 6, 5, 7])
"""Which of a word's eight codes the nibbles of its bytes are."""
MOST = (1 << 22) - 1
"""Activations in fixed point are not larger."""


def drawn(low: int, high: int, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Random int64, both ends included."""
    return np.random.default_rng(seed).integers(low, high, shape, endpoint=True)


def words(signed_bytes: Any) -> Any:
    """uint32 of four bytes each, along the last axis."""
    packed = (signed_bytes & 0xFF) << 8 * np.arange(4)
    return packed.sum(-1).astype(np.uint32)


def limbs(numbers: Any) -> Any:
    """Four signed bytes of every number, lowest first, along a new last axis."""
    shifted = numbers[..., None] + 0x00808080 >> 8 * np.arange(4)
    return np.concatenate([(shifted[..., :3] & 0xFF) - 128, shifted[..., 3:]], axis=-1)


def views(x: Any) -> Any:
    """[view, word of a quarter, quarter, byte] of integers [128]: what codes' bytes, then their lower nibbles, meet."""
    eights = x.reshape(4, 4, 8)  # k = 32 u + 8 c + 0..7
    return np.stack([eights[..., UPPER], 16 * eights[..., LOWER] - eights[..., UPPER]])


def limb_operands(x: Any) -> list[Any]:
    """Integers [128] as eight registers [1, 32]: four words of each view; column r holds limb r % 4."""
    of_limb = words(np.moveaxis(limbs(views(x)), -1, 0))  # [limb, view, u, c]
    return [of_limb[ROW % 4, view, u, QUARTER][None] for view in range(2) for u in range(4)]


def recombined(columns: list[Any]) -> Any:
    """int64 [tiles, 8 rows] of sums of columns 2 c and 2 c + 1; both copies of the limbs have to agree."""
    signed = [column.astype(np.int32).astype(np.int64) for column in columns]
    parts = (signed[0] + (signed[1] << 8)) << 16 * (QUARTER % 2)
    pairs = parts.reshape(*parts.shape[:-1], 8, 2, 2).sum(-1)  # [row, copy]
    np.testing.assert_array_equal(pairs[..., 0], pairs[..., 1])
    return pairs[..., 0]


def activations() -> list[Any]:
    """Integers [128]: random, one-hot, and as large as they may be."""
    signs = np.where(drawn(0, 1, (128,), 1) == 1, 1, -1)
    apart = np.where(np.arange(128) % 8 < 4, MOST, -MOST)  # 16 x_a - x_b as far from 0 as it gets
    few = np.where(np.arange(128) == 77, MOST, 0)
    return [drawn(-MOST, MOST, (128,)), drawn(-9, 9, (128,)), few, signs * MOST, apart, -apart]


def test_limbs_recombine_to_the_integer() -> None:
    edges = [sign * (1 << bit) + more for bit in range(27) for sign in (-1, 1) for more in range(-2, 3)]
    edges += [17 * MOST, -17 * MOST, (1 << 27) - 1, 1 - (1 << 27)]
    for lower in itertools.product((-128, 0, 127), repeat=3):  # limbs at the ends of their range
        edges += [sum(limb << 8 * i for i, limb in enumerate((*lower, top))) for top in (-7, 0, 7)]
    numbers = np.concatenate([drawn(-(1 << 27) + 1, (1 << 27) - 1, (1 << 19,)), np.array(edges)])
    numbers = np.pad(numbers, (0, -len(numbers) % 128)).reshape(-1, 32, 4)
    raised = (numbers + 0x00808080).astype(np.uint32)
    out = run(limbs_asm.fn(), numbered([raised[..., i] for i in range(4)], 4))
    got = np.stack([out[f"${limb}"] for limb in range(4)], axis=-1)
    signed = (got[..., None] >> 8 * np.arange(4, dtype=np.uint32)).astype(np.uint8).view(np.int8)
    total = (signed.astype(np.int64) << 8 * np.arange(4)[:, None]).sum(-2)
    np.testing.assert_array_equal(total, numbers)
    np.testing.assert_array_equal(got, words(np.moveaxis(limbs(numbers), -1, -2)))


@pytest.mark.parametrize("start", [0, 0x4B400000, -1])
def test_products_are_exact(start: int) -> None:
    """Of all rows of some tiles, with a start that differs from lane to lane."""
    codes = torch.randint(0, 16, (32, 128), generator=generator(0, "cpu"), dtype=torch.uint8)
    codes[16], codes[17], codes[31] = 15, 0, 8
    starts = [start + 1000 * (LANES + 32 * i)[None] * (start != 0) for i in range(2)]
    starts = [one.astype(np.uint32) for one in starts]
    for x in activations():
        operands = words_of(codes) + limb_operands(x) + starts
        given = numbered([np.broadcast_to(one, (2, 32)) for one in operands], 4)
        out = run(byte_product_asm.fn(), given)
        columns = [out[f"${i}"] - starts[i % 2] for i in range(4)]
        got = np.concatenate([recombined(columns[:2]), recombined(columns[2:])], axis=1).ravel()
        np.testing.assert_array_equal(got, 16 * (codes.numpy().astype(np.int64) @ x))


def test_every_half_word_in_every_place() -> None:
    """All 2^16 patterns of four codes, as lower and as upper halves, in all words of a tile; every column has its own
    signed byte for every byte of codes and for every lower nibble.
    """
    patterns = torch.arange(1 << 16, dtype=torch.int32)
    pattern_words = patterns | patterns.flip(0) << 16
    nibbles = torch.stack([(pattern_words >> 4 * j) & 15 for j in range(8)], dim=1).to(torch.uint8)
    weights = drawn(-128, 127, (8, 2, 4, 4, 4))  # [column, view, u, c, byte]
    packed = words(weights)
    other = [packed[ROW, view, u, QUARTER] for view in range(2) for u in range(4)]
    other += [np.zeros(32, dtype=np.uint32)] * 2
    operands = numbered([np.broadcast_to(one, (256, 32)) for one in other], 12)
    for turn in range(16):  # which words of a row hold which patterns
        codes = nibbles.reshape(4096, 16, 8).roll(turn, 1).reshape(4096, 128)
        out = run(byte_product_asm.fn(), operands | numbered(words_of(codes), 4))
        eights = codes.numpy().astype(np.float64).reshape(4096, 16, 8)
        met = np.stack([eights[..., LOWER] + 16 * eights[..., UPPER], eights[..., LOWER]], axis=1)
        expected = (met.reshape(4096, 128) @ weights.reshape(8, 128).T).astype(np.int64)
        for i in range(4):
            column, row = QUARTER * 2 + i % 2, ROW + i // 2 * 8
            np.testing.assert_array_equal(
                out[f"${i}"].view(np.int32), expected.reshape(256, 16, 8)[:, row, column]
            )


def test_sums_of_a_code_are_exact() -> None:
    for x in activations():
        for code in range(16):
            of_code = [np.full((1, 32), code * every, dtype=np.uint32) for every in (0x11111111, 0x01010101)]
            out = run(code_sum_asm.fn(), numbered(of_code + limb_operands(x), 2))
            got = recombined([out["$0"], out["$1"]])
            np.testing.assert_array_equal(got, np.full((1, 8), 16 * code * x.sum()))


@pytest.mark.parametrize("limb", [-128, 127])
def test_sums_of_columns_fit_beside_a_float(limb: int) -> None:
    """The largest that limbs and codes allow, with any zero point taken off: below 2^22."""
    every = [words(np.full((1, 32, 4), limb))] * 8
    for code, zero in ((15, 0), (15, 8), (0, 8)):
        codes = torch.full((16, 128), code, dtype=torch.uint8)
        of_zero = [np.full((1, 32), zero * bits, dtype=np.uint32) for bits in (0x11111111, 0x01010101)]
        taken = run(code_sum_asm.fn(), numbered(of_zero + every, 2))
        starts = [np.uint32(0) - taken[f"${i}"] for i in range(2)]
        out = run(byte_product_asm.fn(), numbered(words_of(codes) + every + starts, 4))
        for i in range(4):
            got = out[f"${i}"].view(np.int32)
            np.testing.assert_array_equal(got, np.full((1, 32), (code - zero) * 18 * 64 * limb))
            assert (abs(got) < 1 << 22).all()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_larger_magnitudes_of_every_number(dtype: XDtype) -> None:
    """All 2^16 numbers in either half, each against some others, its negative, infinities and NaN."""
    every = np.arange(1 << 16, dtype=np.uint16)
    others = [
        every,
        every ^ 0x8000,
        np.roll(every, 1),
        every[::-1],
        drawn(0, 0xFFFF, every.shape).astype(np.uint16),
    ]
    infinity = 0x7C00 if dtype == "fp16" else 0x7F80
    others += [
        np.full_like(every, bits) for bits in (0, 0x8000, infinity, infinity | 0x8000, infinity + 1, 0xFFFF)
    ]
    for other in others:
        operands = []
        for lower in (every, other):
            upper = np.roll(lower, 9)
            operands.append((lower | upper.astype(np.uint32) << 16).reshape(-1, 32))
        magnitudes = [
            torch.from_numpy(bits.view(np.int16).copy()).view(DTYPES[dtype]).abs() for bits in (every, other)
        ]
        most = torch.maximum(*magnitudes)  # a NaN wins here too
        bits = torch.where(most.isnan(), 0x7FFF, most.view(torch.int16)).numpy().view(np.uint16)
        for order in (operands, operands[::-1]):
            got = run(largest_asm.fn(dtype), numbered(order, 1))["$0"].ravel()
            np.testing.assert_array_equal(got & 0xFFFF, bits)
            np.testing.assert_array_equal(got >> 16, np.roll(bits, 9))
