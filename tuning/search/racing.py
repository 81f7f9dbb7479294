"""The default strategy: a spread-out first generation, then neighbours of the survivors, generation by
generation.

Survivors of a generation take turns in one interleaved round before they may have offspring: the best of many
single readings is a lucky one more often than not, and its neighbourhood would be searched in vain. The
interleaved rounds that decide among the last ones (successive elimination: Even-Dar, Mannor and Mansour,
2006) follow in ``settle``, for every strategy.
"""

from __future__ import annotations

from collections import Counter
from statistics import median

from roofgap.kernels.config import KernelConfig
from roofgap.tuning.search.board import Board, Steps, duel, explore

IMPROVEMENT = 0.01
PATIENCE = 2


def racing(board: Board) -> Steps:
    """Generations until the budget is spent.

    Where nothing new is near the survivors, or two generations gained under 1 %, newcomers from elsewhere join.
    """
    yield from explore(board, [board.space.default, *board.seeds, *spread_out(board, board.budget.first)])
    best, stale = float("inf"), 0
    while board.left:
        leaders = [config.key for config in board.ranking()[: 2 * board.budget.beam]]
        if len(leaders) > 1:
            yield from duel(board, leaders)
        latency, survivors = _survivors(board, leaders)
        stale = stale + 1 if latency > best * (1 - IMPROVEMENT) else 0
        best = min(best, latency)
        offspring = [near for config in survivors for near in board.space.neighbours(config)]
        fresh = [config for config in offspring if config.key not in board.trials]
        if not fresh or stale >= PATIENCE:
            fresh, stale = spread_out(board, max(1, board.budget.first // 2)), 0
        yield from explore(board, fresh)


def spread_out(board: Board, count: int) -> list[KernelConfig]:
    """A random sample in which every value of every field appears about equally often.

    Of a few random configs the one whose values were used least so far is taken (Mitchell's best candidate,
    with counts in place of distances).
    """
    pool = board.untried()
    board.rng.shuffle(pool)
    used: Counter[tuple[str, object]] = Counter()
    chosen: list[KernelConfig] = []
    while pool and len(chosen) < count:
        few = pool[-8:]
        config = min(few, key=lambda one: sum(used[item] for item in one.to_dict().items()))
        pool.remove(config)
        chosen.append(config)
        used.update(config.to_dict().items())
    return chosen


def _survivors(board: Board, leaders: list[str]) -> tuple[float, list[KernelConfig]]:
    """Best latency among the leaders and the ``beam`` fastest, by the median of all their readings; none, if none."""
    readings: dict[str, list[float]] = {}
    for key in leaders:
        first = board.trials[key].latency_us
        readings[key] = [first] if first is not None else []
    for answer in board.rounds:
        for key, latency in zip(answer.contenders, answer.latency_us, strict=True):
            if key in readings and latency is not None:
                readings[key].append(latency)
    ordered = sorted((median(values), key) for key, values in readings.items())
    if not ordered:
        return float("inf"), []
    return ordered[0][0], [board.space.by_key[key] for _, key in ordered[: board.budget.beam]]
