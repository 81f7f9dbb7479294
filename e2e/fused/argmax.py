"""Greedy sampling: the index of the largest logit of each row, two launches.

    token[m] = min { v : logits[m, v] = max_v logits[m, v] }

``next_token`` ends a decode step in the same two: the second also notes the token down and moves the position on.

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
from roofgap.kernels.ints import cdiv, next_power_of_2
from roofgap.kernels.step import Launch
from roofgap.shapes.errors import RoofgapError

BLOCK = 1024


@triton.jit
def argmax_block_kernel(
    logits_ptr, best_ptr, where_ptr, vocab, BLOCK: tl.constexpr, PDL: tl.constexpr = False
):
    """Best of BLOCK logits of a row; grid (M, ceil(V / BLOCK))."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits_ptr + row * vocab + offs, mask=offs < vocab, other=float("-inf")).to(tl.float32)
    value = tl.where(value != value, float("inf"), value)  # noqa: PLR0124 - only NaN differs from itself
    best, at = tl.max(value, axis=0, return_indices=True, return_indices_tie_break_left=True)
    slot = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(best_ptr + slot, best)
    tl.store(where_ptr + slot, tl.program_id(1) * BLOCK + at)


@triton.jit
def argmax_final_kernel(
    best_ptr,
    where_ptr,
    token_ptr,
    generated_ptr,  # [capacity] int64, written at the position | None
    position_ptr,  # int64, raised by one | None
    blocks,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr = False,
):
    """Best of the blocks of a row; grid (M,), of one program where there is a position."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * blocks + offs, mask=offs < blocks, other=float("-inf"))
    _, at = tl.max(best, axis=0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.load(where_ptr + row * blocks + at).to(tl.int64)
    tl.store(token_ptr + row, token)
    if position_ptr is not None:
        position = tl.load(position_ptr)
        tl.store(generated_ptr + position, token)
        tl.store(position_ptr, position + 1)


def plan(
    logits: torch.Tensor,
    token: torch.Tensor,
    best: torch.Tensor,
    where: torch.Tensor,
    generated: torch.Tensor | None = None,
    position: torch.Tensor | None = None,
) -> list[Launch]:
    """The launches that fill ``token`` [M]; ``best`` and ``where`` are workspaces [M, ceil(V / BLOCK)]."""
    rows, vocab = logits.shape
    blocks = best.shape[1]
    first = {"logits_ptr": logits, "best_ptr": best, "where_ptr": where, "vocab": vocab, "BLOCK": BLOCK}
    final = {
        "best_ptr": best,
        "where_ptr": where,
        "token_ptr": token,
        "generated_ptr": generated,
        "position_ptr": position,
        "blocks": blocks,
        "BLOCK": next_power_of_2(blocks),
    }
    return [
        Launch(kernel=argmax_block_kernel, grid=(rows, blocks), args=first, role="other"),
        Launch(kernel=argmax_final_kernel, grid=(rows,), args=final, role="other"),
    ]


def workspaces(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``best`` and ``where`` of ``plan``, uninitialised."""
    shape = (logits.shape[0], cdiv(logits.shape[1], BLOCK))
    return (
        torch.empty(shape, dtype=torch.float32, device=logits.device),
        torch.empty(shape, dtype=torch.int32, device=logits.device),
    )


@torch.library.custom_op("roofgap::argmax", mutates_args=())
def _argmax(logits: torch.Tensor) -> torch.Tensor:
    token = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    run(plan(logits, token, *workspaces(logits)), logits.device)
    return token


@_argmax.register_fake
def _(logits: torch.Tensor) -> torch.Tensor:
    return torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)


@torch.library.custom_op("roofgap::next_token", mutates_args=("token", "generated", "position"))
def _next_token(
    logits: torch.Tensor, token: torch.Tensor, generated: torch.Tensor, position: torch.Tensor
) -> None:
    run(plan(logits, token, *workspaces(logits), generated, position), logits.device)


@_next_token.register_fake
def _(logits: torch.Tensor, token: torch.Tensor, generated: torch.Tensor, position: torch.Tensor) -> None:
    return None


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Index of the largest value of each row: [M, V] -> int64 [M].

    Raises:
        RoofgapError: not a matrix of floats with at least one column.
    """
    refuse_logits(logits)
    return _argmax(logits.contiguous())  # type: ignore[no-any-return]


def next_token(
    logits: torch.Tensor, token: torch.Tensor, generated: torch.Tensor, position: torch.Tensor
) -> None:
    """Greedy end of a decode step, in place: the argmax becomes ``token`` and ``generated[position]``, which rises.

    Args:
        logits: [1, V].
        token: int64, one element.
        generated: int64 [capacity]; that the position lies in it is the caller's to ensure.
        position: int64, one element.

    Raises:
        RoofgapError: not one row of floats, or counters of another kind.
    """
    refuse_logits(logits)
    counters = (("token", token, 1), ("generated", generated, generated.numel()), ("position", position, 1))
    for name, tensor, count in counters:
        if tensor.dtype != torch.int64 or tensor.numel() != count or not tensor.is_contiguous():
            raise RoofgapError(
                f"{name} {tensor.dtype} {list(tensor.shape)}".replace("torch.", ""),
                "must be contiguous int64, one token's",
                "decode one sequence at a time",
            )
    if logits.shape[0] != 1:
        raise RoofgapError(
            f"{logits.shape[0]} rows of logits", "must be one", "decode one sequence at a time"
        )
    _next_token(logits.contiguous(), token, generated, position)


def refuse_logits(logits: torch.Tensor) -> None:
    """Refuses what the kernels do not read.

    Raises:
        RoofgapError: not a matrix of floats with at least one column.
    """
    if logits.ndim != 2 or not logits.is_floating_point() or logits.shape[1] == 0:
        raise RoofgapError(
            f"logits {logits.dtype} {list(logits.shape)}".replace("torch.", ""),
            "must be floats [M, V] with V of at least 1",
            "pass the last position's logits",
        )
