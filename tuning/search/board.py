"""What a search knows and what it may ask.

A strategy is a generator: it yields an ``Explore`` or a ``Duel`` and is sent the answer. It touches no
device, clock or file, so the same strategy runs on a GPU, on a recorded sweep, on a scripted fake, or again
from a journal.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from roofgap.kernels.config import KernelConfig
from roofgap.tuning.budget import Budget
from roofgap.tuning.space import Space
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Round, Trial


@dataclass(frozen=True, slots=True)
class Explore:
    """Compile, check and time each config once. Answer: a ``Trial`` per config, in this order."""

    configs: tuple[KernelConfig, ...]


@dataclass(frozen=True, slots=True)
class Duel:
    """Time the contenders in turns. Answer: a ``Round``. A contender is a config's key, or ``@name`` for a
    baseline.
    """

    contenders: tuple[str, ...]


Steps = Generator[Explore | Duel, Any, None]


@dataclass
class Board:
    """Every answer so far of one problem.

    Attributes:
        space: the candidates.
        budget: limits; ``seconds`` is this problem's share.
        rng: the only source of chance, seeded per problem.
        seeds: configs to try early: earlier winners of this GPU or of its relatives.
    """

    space: Space
    budget: Budget
    rng: Random
    seeds: tuple[KernelConfig, ...] = ()
    trials: dict[str, Trial] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    spent_s: float = 0.0

    @property
    def left(self) -> int:
        """How many more configs may be tried; 0 once the time is spent."""
        if self.budget.seconds is not None and self.spent_s >= self.budget.seconds:
            return 0
        untried = len(self.space.configs) - len(self.trials)
        return untried if self.budget.trials is None else min(untried, self.budget.trials - len(self.trials))

    def ranking(self) -> list[KernelConfig]:
        """Configs that were right, fastest first reading first."""
        timed = [
            (trial.latency_us, key)
            for key, trial in self.trials.items()
            if trial.status is Status.OK and trial.latency_us is not None
        ]
        return [self.space.by_key[key] for _, key in sorted(timed)]

    def latency_us(self, config: KernelConfig) -> float:
        """First reading of a config that was right."""
        latency = self.trials[config.key].latency_us
        assert latency is not None
        return latency

    def ok_keys(self) -> set[str]:
        """Keys of the configs that were right."""
        return {key for key, trial in self.trials.items() if trial.status is Status.OK}

    def untried(self) -> list[KernelConfig]:
        """Configs without a trial, in the order of the space."""
        return [config for config in self.space.configs if config.key not in self.trials]


def explore(board: Board, configs: Iterable[KernelConfig]) -> Steps:
    """Asks for the configs that are new, as far as the budget goes, and writes the answers on the board."""
    fresh = [c for c in dict.fromkeys(configs) if c.key not in board.trials][: board.left]
    if not fresh:
        return
    trials: list[Trial] = yield Explore(tuple(fresh))
    for trial in trials:
        board.trials[trial.config_key] = trial
        board.spent_s += trial.wall_s


def duel(board: Board, contenders: Iterable[str]) -> Generator[Duel, Any, Round]:
    """Asks for one interleaved round and writes it on the board."""
    answer: Round = yield Duel(tuple(contenders))
    board.rounds.append(answer)
    board.spent_s += answer.wall_s
    return answer


def drive(
    steps: Generator[Explore | Duel, Any, Any],
    explored: Callable[[tuple[KernelConfig, ...]], list[Trial]],
    duelled: Callable[[tuple[str, ...]], Round],
) -> Any:
    """Runs a search to its end, with two functions that answer its questions, and returns what it returns."""
    answer: Any = None
    while True:
        try:
            ask = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = explored(ask.configs) if isinstance(ask, Explore) else duelled(ask.contenders)
