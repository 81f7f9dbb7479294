"""Strategies compared on recorded sweeps: what they would have found, how far it is from the best, what it
would have cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from statistics import median

from roofgap.kernels.config import KernelConfig
from roofgap.tuning.budget import Budget
from roofgap.tuning.results import Cell
from roofgap.tuning.search.board import Board, drive
from roofgap.tuning.search.registry import get_strategy
from roofgap.tuning.search.settle import Verdict, settle
from roofgap.tuning.sweep import Sweep
from roofgap.tuning.trial import Round, Trial


@dataclass(frozen=True, slots=True)
class Replay:
    """One search on one sweep. ``regret`` is the fraction by which the pick is slower than the best recorded
    config.
    """

    sweep: Sweep
    strategy: str
    seed: int
    pick: str
    regret: float
    trials: int
    seconds: float


def replay(sweep: Sweep, strategy: str, budget: Budget, seed: int) -> Replay:
    """Searches a sweep. No journal: nothing here is worth resuming."""
    space, runner = sweep.space(), sweep.runner(seed)
    runner.begin(space, {})
    board = Board(space, budget.of(strategy), Random(f"{seed} {sweep.problem.key}"))
    numbers = count()

    def explored(configs: tuple[KernelConfig, ...]) -> list[Trial]:
        return list(runner.explore(configs))

    def duelled(contenders: tuple[str, ...]) -> Round:
        return runner.duel(contenders, next(numbers))

    drive(get_strategy(strategy)(board), explored, duelled)
    verdict: Verdict | None = drive(settle(board, None, []), explored, duelled)
    pick = verdict.winner if verdict else space.default
    return Replay(sweep, strategy, seed, pick.key, sweep.regret(pick), len(board.trials), runner.clock())


def compare_strategies(
    sweeps: Sequence[Sweep], strategies: Sequence[str], budget: Budget, seeds: int
) -> tuple[list[dict[str, Cell]], list[dict[str, Cell]]]:
    """Rows per sweep and strategy (medians over seeds), and one summary row per strategy."""
    rows: list[dict[str, Cell]] = []
    summary: list[dict[str, Cell]] = []
    for strategy in strategies:
        every: list[Replay] = []
        for sweep in sweeps:
            runs = [replay(sweep, strategy, budget, seed) for seed in range(seeds)]
            every += runs
            rows.append(
                {
                    "problem": sweep.problem.key,
                    "variant": sweep.variant.name,
                    "configs": len(sweep.trials),
                    **_figures(strategy, runs),
                }
            )
        summary.append({"sweeps": len(sweeps), **_figures(strategy, every)})
    return sorted(rows, key=lambda row: str(row["problem"])), summary


def _figures(strategy: str, runs: Sequence[Replay]) -> dict[str, Cell]:
    return {
        "strategy": strategy,
        "runs": len(runs),
        "median_regret_pct": round(100 * median(run.regret for run in runs), 3),
        "worst_regret_pct": round(100 * max(run.regret for run in runs), 3),
        "median_trials": median(run.trials for run in runs),
        "median_s": round(median(run.seconds for run in runs), 2),
    }
