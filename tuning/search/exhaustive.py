"""Every config of the space. The yardstick for the others, and what records a sweep."""

from __future__ import annotations

from roofgap.tuning.search.board import Board, Steps, explore

BATCH = 64


def exhaustive(board: Board) -> Steps:
    """Tries everything, a batch at a time so that a time budget can end it."""
    while board.left:
        yield from explore(board, board.untried()[:BATCH])
