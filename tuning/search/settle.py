"""The decision, the same after every strategy: interleaved rounds, elimination, a tie set, a fixed order
inside it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from roofgap.kernels.config import KernelConfig
from roofgap.tuning.budget import CORE_BAND, TIE_BAND
from roofgap.tuning.measure.stats import compare
from roofgap.tuning.search.board import Board, Duel, duel
from roofgap.tuning.space import tie_order


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which config won, and what it was compared with.

    Attributes:
        winner: the config to use.
        ties: configs within the tie band of the fastest with their ratio to it, fastest first; holds the
            winner.
        runner_up: the fastest config outside the tie set with its ratio, or None.
        samples_us: readings of the closing rounds by contender: winner, default, previous winner,
            ``@baseline``.
        dropped: contenders that failed in a round, with the evidence.
        rounds: interleaved rounds used.
    """

    winner: KernelConfig
    ties: tuple[tuple[KernelConfig, float], ...]
    runner_up: tuple[KernelConfig, float] | None
    samples_us: dict[str, tuple[float, ...]]
    dropped: dict[str, str]
    rounds: int


def settle(
    board: Board, previous: KernelConfig | None, baselines: Sequence[str]
) -> Generator[Duel, Any, Verdict | None]:
    """Decides among what a strategy found; None if no config was right.

    Finalists take turns. From ``min_rounds`` on, a config leaves when the 95 % interval of its paired ratio
    to the leader lies above 1 and the ratio outside the tie band. It ends when everyone left is surely inside
    the band, or after ``max_rounds``.
    """
    dropped: dict[str, str] = {}
    scores: dict[str, list[float]] = {config.key: [] for config in _finalists(board, previous)}
    alive, rounds = list(scores), 0
    while alive and rounds < board.budget.max_rounds:
        answer = yield from duel(board, alive)
        rounds += 1
        dropped |= answer.evidence
        for key, latency in zip(answer.contenders, answer.latency_us, strict=True):
            if latency is None:
                alive.remove(key)
                del scores[key]
            else:
                scores[key].append(latency)
        if rounds >= board.budget.min_rounds and alive:
            alive, decided = _eliminate(alive, scores)
            if decided:
                break
    if not scores:
        return None
    alive = alive or list(scores)  # whoever eliminated them failed later
    ratios = _ratios(scores, min(alive, key=lambda key: (median(scores[key]), key)))
    by_key = board.space.by_key
    inside = [(by_key[key], ratio) for key, ratio in ratios.items() if key in alive and ratio <= 1 + TIE_BAND]
    outside = [(by_key[key], ratio) for key, ratio in ratios.items() if ratio > 1 + TIE_BAND]
    while inside:
        winner = _pick(board, inside, previous)
        named = [winner, board.space.default, *([previous] if previous else [])]
        heard = [
            config.key for config in named if config.key in board.ok_keys() and config.key not in dropped
        ]
        samples, failed = yield from _face_off(board, list(dict.fromkeys([*heard, *baselines])))
        rounds += board.budget.face_off_rounds
        dropped |= failed
        if winner.key in samples:
            return Verdict(winner, tuple(inside), outside[0] if outside else None, samples, dropped, rounds)
        inside = [(config, ratio) for config, ratio in inside if config.key not in dropped]
    return None


def _face_off(
    board: Board, contenders: list[str]
) -> Generator[Duel, Any, tuple[dict[str, tuple[float, ...]], dict[str, str]]]:
    """Closing rounds: every reading of the contenders that lasted, and why the others did not."""
    samples: dict[str, tuple[float, ...]] = dict.fromkeys(contenders, ())
    dropped: dict[str, str] = {}
    for _ in range(board.budget.face_off_rounds):
        answer = yield from duel(board, samples)
        dropped |= answer.evidence
        for name, latency in zip(answer.contenders, answer.latency_us, strict=True):
            if latency is None:
                del samples[name]
            else:
                samples[name] += (latency,)
        if not samples:
            break
    return samples, dropped


def _finalists(board: Board, previous: KernelConfig | None) -> list[KernelConfig]:
    """The fastest by first reading, then default and previous winner, which are always heard."""
    ranked = board.ranking()
    if not ranked:
        return []
    limit = board.latency_us(ranked[0]) * board.budget.finalist_ratio
    near = [config for config in ranked if board.latency_us(config) <= limit][: board.budget.finalists]
    always = [board.space.default, *([previous] if previous else [])]
    return list(dict.fromkeys([*near, *(config for config in always if config in ranked)]))


def _eliminate(alive: list[str], scores: dict[str, list[float]]) -> tuple[list[str], bool]:
    """Who stays, and whether the tie set can no longer change."""
    leader = min(alive, key=lambda key: (median(scores[key]), key))
    stay, decided = [], True
    for key in alive:
        if key == leader:
            stay.append(key)
            continue
        comparison = compare(scores[key], scores[leader])
        if comparison.low > 1.0 and comparison.ratio > 1 + TIE_BAND:
            continue
        stay.append(key)
        decided = decided and comparison.high <= 1 + TIE_BAND
    return stay, decided


def _ratios(scores: dict[str, list[float]], leader: str) -> dict[str, float]:
    """Median of the paired ratios to the leader over the rounds that both took part in, over the least of
    them.
    """
    paired = {
        key: median(a / b for a, b in zip(samples, scores[leader], strict=False))
        for key, samples in scores.items()
    }
    least = min(paired.values())
    return {key: paired[key] / least for key in sorted(paired, key=lambda key: (paired[key], key))}


def _pick(
    board: Board, ties: list[tuple[KernelConfig, float]], previous: KernelConfig | None
) -> KernelConfig:
    """The previous winner if it is in the tie set (a retune that gains nothing changes nothing), else the
    core's first in tie order.
    """
    if previous is not None and any(config == previous for config, _ in ties):
        return previous
    core = [config for config, ratio in ties if ratio <= 1 + CORE_BAND]
    space = board.space
    return min(core, key=lambda config: tie_order(space.variant, space.problem, config))
