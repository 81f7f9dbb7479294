"""The PTX of v4, executed here lane by lane, against the layout that feeds it and against fp64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ptx_machine import LANES, numbered, run
from v4_cases import words_of

from roofgap.kernels.inputs import generator
from roofgap.kernels.variants._fragments import (
    BF16_RAISED,
    add_warps_asm,
    owned,
    product_asm,
    scale_of,
    x_sum_asm,
)

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
ROW, QUARTER = LANES // 4, LANES % 4


def raised(dtype: str) -> float:
    """What decoding adds to a code."""
    return 0.0 if dtype == "fp16" else float(BF16_RAISED.value)


def pairs_of(x: torch.Tensor) -> list[Any]:
    """x [8, 128] as sixteen registers [1, 32]: four times four pairs of token r."""
    pairs = x.view(torch.int32).numpy().view(np.uint32)  # [8, 64]
    return [pairs[ROW, 16 * u + 4 * QUARTER + j][None] for u in range(4) for j in range(4)]


@pytest.mark.parametrize("tokens", [1, 8])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("first", "end"), [(0, 4), (0, 1), (1, 2), (2, 3), (3, 4)])
def test_products_and_sums_of_x(dtype: str, first: int, end: int, tokens: int) -> None:
    g = generator(0, "cpu")
    codes = torch.randint(0, 16, (16, 128), generator=g, dtype=torch.uint8)
    x = torch.randn((8, 128), generator=g).to(DTYPES[dtype])
    if tokens == 1:
        x = x[:1].expand(8, 128).contiguous()  # every lane reads the one token
    used = slice(32 * first, 32 * end)
    x64 = x.double().numpy()[:, used]
    expected = x64 @ (codes.double().numpy()[:, used] + raised(dtype)).T  # [8 tokens, 16 rows]
    outputs, per_x = (2, 1) if tokens == 1 else (4, 2)
    operands = numbered(words_of(codes), outputs) | numbered(pairs_of(x), outputs + 8)
    out = run(product_asm.fn(dtype, tokens, first, end), operands)
    sums = run(x_sum_asm.fn(dtype, tokens, first, end), numbered(pairs_of(x), per_x))
    for i in range(outputs):
        token, row = QUARTER * 2 + i % per_x, ROW + i // per_x * 8
        got = out[f"${i}"][0] * scale_of.fn(dtype)
        np.testing.assert_allclose(got, expected[token, row], rtol=1e-5, atol=1e-3)
        got_x = sums[f"${i % per_x}"][0] * scale_of.fn(dtype)
        np.testing.assert_allclose(got_x, x64.sum(1)[token], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_half_word_in_every_place(dtype: str) -> None:
    """All 2^16 patterns of four codes, as lower and as upper halves, in all words of a tile, read by one-hot tokens."""
    patterns = torch.arange(1 << 16, dtype=torch.int32)
    pattern_words = patterns | patterns.flip(0) << 16
    nibbles = torch.stack([(pattern_words >> 4 * j) & 15 for j in range(8)], dim=1).to(torch.uint8)
    for turn in range(16):  # which words of a row hold which patterns
        codes = nibbles.reshape(4096, 16, 8).roll(turn, 1).reshape(4096, 128)
        words = numbered(words_of(codes), 4)
        for start in (0, 40, 80, 120):  # a place in each of a lane's words, by lanes of every quarter
            x = torch.eye(128, dtype=DTYPES[dtype])[start : start + 8].contiguous()
            pairs = [np.broadcast_to(pair, (256, 32)) for pair in pairs_of(x)]
            out = run(product_asm.fn(dtype, 8, 0, 4), words | numbered(pairs, 12))
            for i in range(4):
                k, row = start + QUARTER * 2 + i % 2, ROW + i // 2 * 8
                got = out[f"${i}"] * scale_of.fn(dtype) - raised(dtype)
                np.testing.assert_array_equal(got, codes.reshape(256, 16, 128)[:, row, k].numpy())


@pytest.mark.parametrize("tokens", [1, 8])
@pytest.mark.parametrize(("warps_n", "warps_k"), [(1, 1), (1, 2), (2, 1), (2, 4), (1, 8), (4, 4)])
def test_warps_add_up(warps_n: int, warps_k: int, tokens: int) -> None:
    warps, count, outputs = warps_n * warps_k, 2 if tokens == 1 else 4, owned.fn(tokens, warps_k)
    values = generator(1, "cpu")
    sums = torch.randn((count, warps, 32), generator=values).numpy()
    out = run(add_warps_asm.fn(warps_n, warps_k, tokens), numbered(list(sums), outputs))
    # What the tensor cores leave in a lane, as [warp][token][row]; of one token every quarter holds the same.
    spread = np.zeros((warps, tokens, 16), dtype=np.float32)
    for i in range(count):
        for lane in LANES if tokens > 1 else LANES[::4]:
            token = lane % 4 * 2 + i % 2 if tokens > 1 else 0
            spread[:, token, lane // 4 + (i // 2 if tokens > 1 else i) * 8] = sums[i, :, lane]
    total = spread.reshape(warps_n, warps_k, 16 * tokens).astype(np.float64).sum(1)
    for i in range(outputs):
        got = out[f"${i}"].reshape(warps_n, 32 * warps_k)
        owner = np.arange(32 * warps_k) + 32 * warps_k * i
        wanted = owner < 16 * tokens
        np.testing.assert_allclose(got[:, wanted], total[:, owner[wanted]], rtol=1e-5, atol=1e-6)
        assert not got[:, ~wanted].any()
