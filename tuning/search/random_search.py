"""A random sample. Hard to beat by much in small spaces, and the control that every cleverer strategy must
beat.
"""

from __future__ import annotations

from roofgap.tuning.search.board import Board, Steps, explore

BATCH = 32


def random_search(board: Board) -> Steps:
    """Default and seeds first, then configs drawn without replacement until the budget is spent."""
    yield from explore(board, [board.space.default, *board.seeds])
    drawn = board.untried()
    board.rng.shuffle(drawn)
    for start in range(0, len(drawn), BATCH):
        if not board.left:
            return
        yield from explore(board, drawn[start : start + BATCH])
