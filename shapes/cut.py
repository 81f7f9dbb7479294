"""Cuts a problem down to what Triton's interpreter runs in seconds, keeping what makes it awkward."""

from __future__ import annotations

from dataclasses import replace

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

_TILE_N = 128


def cut_problem(problem: Problem, max_n: int = 256, max_k: int = 1536) -> Problem:
    """A problem of at most ``max_n * max_k`` weights with the same groups and the same tails.

    A problem that is small enough is returned as it is. Otherwise each side that is too long becomes the
    largest size within its limit that is congruent to the old one: N modulo 128 (so tiles of up to 128 have
    the same tail), K modulo the largest power-of-two multiple of the group that is at most ``max_k / 2`` (so
    the ragged last group, the K % 8 tail and the tails of K tiles stay). A whole-row group stays a whole row.
    Figures per weight carry over up to the share of the tails.

    Raises:
        RoofgapError: one group does not fit in ``max_k`` together with the ragged rest of K.
    """
    if problem.n * problem.k <= max_n * max_k:
        return problem
    n = problem.n if problem.n <= max_n else _largest_congruent(problem.n, _period(1, _TILE_N, max_n), max_n)
    k = problem.k
    if k > max_k:
        whole_row = problem.group == k
        unit = 8 if whole_row else problem.group
        k = _largest_congruent(k, _period(unit, max_k, max_k), max_k)
        if not whole_row and k < problem.group:
            raise RoofgapError(
                f"group_size={problem.group_size} at K={problem.k}",
                f"a group and the ragged rest of K do not fit in {max_k}",
                "choose a smaller group or a larger max_k",
            )
    return replace(problem, n=n, k=k)


def _period(unit: int, most: int, limit: int) -> int:
    """The largest power-of-two multiple of ``unit`` within ``most`` and half the limit, or ``unit``."""
    period = unit
    while period * 2 <= min(most, limit // 2):
        period *= 2
    return period


def _largest_congruent(value: int, period: int, limit: int) -> int:
    """The largest size up to ``limit`` that equals ``value`` modulo ``period``; at least 1."""
    return max(1, limit - (limit - value) % period)
