"""Pattern search: walk to the best neighbour until there is none, then start again elsewhere (Hooke and
Jeeves, 1961).
"""

from __future__ import annotations

from roofgap.kernels.config import KernelConfig
from roofgap.tuning.search.board import Board, Steps, explore
from roofgap.tuning.status import Status

RESTART = 4


def local(board: Board) -> Steps:
    """Descends from the default and the seeds, then from the best of a few random configs, until the budget
    is spent.
    """
    starts = list(dict.fromkeys([board.space.default, *board.seeds]))
    while board.left:
        yield from explore(board, starts)
        right = [config for config in starts if board.trials.get(config.key) and _is_right(board, config)]
        if right:
            yield from _descend(board, min(right, key=lambda config: (board.latency_us(config), config.key)))
        untried = board.untried()
        starts = board.rng.sample(untried, min(RESTART, len(untried)))


def _descend(board: Board, config: KernelConfig) -> Steps:
    while board.left:
        near = board.space.neighbours(config)
        yield from explore(board, near)
        tried = [config, *(other for other in near if other.key in board.trials and _is_right(board, other))]
        best = min(tried, key=lambda other: (board.latency_us(other), other.key))
        if best == config:
            return
        config = best


def _is_right(board: Board, config: KernelConfig) -> bool:
    return board.trials[config.key].status is Status.OK
