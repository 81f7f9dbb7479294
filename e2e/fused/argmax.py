"""Greedy sampling: the index of the largest logit of each row, two launches.

    token[m] = min { v : logits[m, v] = max_v logits[m, v] }

Layout: logits [M, V] 16-bit or fp32, rows contiguous; token [M] int64.
Bytes: reads each logit once (2 V M at 16 bits), and 8 bytes for every BLOCK of them twice.

The first launch finds the best of BLOCK logits per program, the second the best of those. Among equals the
smaller index wins in both, so the result does not depend on how programs are scheduled. NaN counts as the
largest, as in torch.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
from __future__ import annotations

import torch
import triton
import triton.language as tl

from roofgap.e2e.fused.launching import run
from roofgap.kernels.step import Launch
from roofgap.shapes.errors import RoofgapError

BLOCK = 1024


@triton.jit
def argmax_block_kernel(logits_ptr, best_ptr, where_ptr, vocab, BLOCK: tl.constexpr):
    """Best of BLOCK logits of a row; grid (M, ceil(V / BLOCK))."""
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits_ptr + row * vocab + offs, mask=offs < vocab, other=float("-inf")).to(tl.float32)
    value = tl.where(value != value, float("inf"), value)  # noqa: PLR0124 - only NaN differs from itself
    best, at = tl.max(value, axis=0, return_indices=True, return_indices_tie_break_left=True)
    slot = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(best_ptr + slot, best)
    tl.store(where_ptr + slot, tl.program_id(1) * BLOCK + at)


@triton.jit
def argmax_final_kernel(best_ptr, where_ptr, token_ptr, blocks, BLOCK: tl.constexpr):
    """Best of the blocks of a row; grid (M,)."""
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * blocks + offs, mask=offs < blocks, other=float("-inf"))
    _, at = tl.max(best, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(token_ptr + row, tl.load(where_ptr + row * blocks + at).to(tl.int64))


def plan(logits: torch.Tensor, token: torch.Tensor, best: torch.Tensor, where: torch.Tensor) -> list[Launch]:
    """The launches that fill ``token`` [M]; ``best`` and ``where`` are workspaces [M, ceil(V / BLOCK)]."""
    rows, vocab = logits.shape
    blocks = best.shape[1]
    first = {"logits_ptr": logits, "best_ptr": best, "where_ptr": where, "vocab": vocab, "BLOCK": BLOCK}
    final = {
        "best_ptr": best,
        "where_ptr": where,
        "token_ptr": token,
        "blocks": blocks,
        "BLOCK": triton.next_power_of_2(blocks),
    }
    return [
        Launch(kernel=argmax_block_kernel, grid=(rows, blocks), args=first, role="other"),
        Launch(kernel=argmax_final_kernel, grid=(rows,), args=final, role="other"),
    ]


@torch.library.custom_op("roofgap::argmax", mutates_args=())
def _argmax(logits: torch.Tensor) -> torch.Tensor:
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    best = torch.empty((rows, blocks), dtype=torch.float32, device=logits.device)
    where = torch.empty((rows, blocks), dtype=torch.int32, device=logits.device)
    run(plan(logits, token, best, where), logits.device)
    return token


@_argmax.register_fake
def _(logits: torch.Tensor) -> torch.Tensor:
    return torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Index of the largest value of each row: [M, V] -> int64 [M].

    Raises:
        RoofgapError: not a matrix of floats with at least one column.
    """
    if logits.ndim != 2 or not logits.is_floating_point() or logits.shape[1] == 0:
        raise RoofgapError(
            f"logits {logits.dtype} {list(logits.shape)}".replace("torch.", ""),
            "must be floats [M, V] with V of at least 1",
            "pass the last position's logits",
        )
    return _argmax(logits.contiguous())  # type: ignore[no-any-return]
