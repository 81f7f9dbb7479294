"""The PTX of v4, executed here lane by lane, against the layout that feeds it and against fp64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ptx_machine import LANES, Registers, run

from roofgap.kernels.formats.interleaved import Interleaved
from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.inputs import generator
from roofgap.kernels.variants._fragments import BF16_RAISED, lane_asm, product_asm, x_sum_asm


def one_tile(dtype: torch.dtype) -> tuple[Any, Any, Registers, Registers]:
    """Codes [16, 128] and x [8, 128] as fp64, and the registers that v4's loads fill with them."""
    g = generator(0, "cpu")
    codes = torch.randint(0, 16, (16, 128), generator=g, dtype=torch.uint8)
    weight = QuantizedWeight(codes=codes, scales=torch.ones(16, 1), group_size=128)
    x = torch.randn((8, 128), generator=g).to(dtype)
    words = Interleaved.pack(weight).codes.flatten().numpy().view(np.uint32)
    pairs = x.view(torch.int32).numpy().view(np.uint32)  # [8, 64]
    row, quarter = LANES // 4, LANES % 4
    ab = {
        f"${8 + 4 * half + u}": words[(row + 8 * half) * 16 + quarter * 4 + u][None]
        for half in range(2)
        for u in range(4)
    }
    xs = {
        f"${16 + 4 * u + j}": pairs[row, 16 * u + 4 * quarter + j][None] for u in range(4) for j in range(4)
    }
    return codes.double().numpy(), x.double().numpy(), ab, xs


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(("first", "end"), [(0, 4), (0, 1), (1, 2), (2, 3), (3, 4)])
def test_products_and_sums_of_x(dtype: str, first: int, end: int) -> None:
    codes, x, ab, xs = one_tile(torch.float16 if dtype == "fp16" else torch.bfloat16)
    raised = 0 if dtype == "fp16" else BF16_RAISED.value
    used = slice(32 * first, 32 * end)
    expected = x[:, used] @ (codes[:, used] + raised).T  # [8 tokens, 16 rows]
    out = run(product_asm(dtype, first, end), ab | xs)
    low, high = (2.0**24, 2.0**20) if dtype == "fp16" else (1.0, 1.0)
    sums = run(x_sum_asm(dtype, first, end), {f"${int(name[1:]) - 12}": word for name, word in xs.items()})
    for i in range(4):
        token, row = LANES % 4 * 2 + i % 2, LANES // 4 + i // 2 * 8
        got = (out[f"${i}"] * low + out[f"${4 + i}"] * high)[0]
        np.testing.assert_allclose(got, expected[token, row], rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(sums[f"${i}"][0], x[:, used].sum(1)[token], rtol=1e-5, atol=1e-4)


def test_lanes_that_are_not_where_they_should_be_give_nan() -> None:
    lanes = LANES.astype(np.uint32)[None]
    good = run(lane_asm(), {f"${4 + i}": lanes for i in range(4)})
    assert all((good[f"${i}"] == 0).all() for i in range(4))
    bad = run(lane_asm(), {f"${4 + i}": (lanes + (i == 2)) % 32 for i in range(4)})
    assert np.isnan(bad["$2"]).all()
