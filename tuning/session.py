"""One tuning run: searches on one side, a device on the other, the journal in between.

A search only ever sees answers. An answer that the journal holds is given again; any other is obtained from
the runner and acknowledged by the journal before the search sees it. Since searches are functions of their
answers, a run that was killed at any point and resumed ends exactly as it would have without the kill.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

from pydantic import Field

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.variant import Limits, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.budget import Budget
from roofgap.tuning.journal import SCHEMA, Journal
from roofgap.tuning.outcome import Outcome, make_outcome
from roofgap.tuning.runner import Attainable, Runner
from roofgap.tuning.search.board import Board, Duel, Explore, drive
from roofgap.tuning.search.registry import get_strategy
from roofgap.tuning.search.settle import Verdict, settle
from roofgap.tuning.space import Space, build_space
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Record, Round, Trial
from roofgap.tuning.winner import Identity, Provenance, Toolchain
from roofgap.tuning.winners_store import differences

EXPLORING_SHARE = 0.8  # of a time budget; the rest is for the interleaved rounds


class TaskHeader(Record):
    """One problem of a run as the journal's header holds it.

    ``previous`` is the config of the winner in place when the run began, ``replaces`` that winner's run,
    ``seeds`` configs to try early. They are kept because a resumed run must start from what the first one
    saw.
    """

    problem: str
    source_hash: str
    space_hash: str
    seeds: tuple[str, ...] = ()
    previous: str | None = None
    replaces: str | None = None


class Header(Record):
    """The first line of a journal: what the run was asked to do, and where it ran."""

    schema_version: int = Field(default=SCHEMA, alias="schema")
    run: str
    date: str
    gpu: str
    gpu_name: str
    toolchain: Toolchain
    variant: str
    shapes: tuple[dict[str, Any], ...]
    strategy: str
    budget: str
    seed: int
    policy: str
    tasks: tuple[TaskHeader, ...]


class Observer(Protocol):
    """Who is told how a run gets on. ``replayed`` marks what came from the journal."""

    def started(self, problem: Problem, candidates: int) -> None:
        """A problem begins."""

    def tried(self, problem: Problem, trial: Trial, replayed: bool) -> None:
        """A config was tried."""

    def compared(self, problem: Problem, answer: Round, replayed: bool) -> None:
        """An interleaved round is over."""


@dataclass
class Session:
    """A run over an open journal. Several runners may work on different problems at once.

    Raises (from ``tune``):
        RoofgapError: the journal cannot be written, belongs to another request, or the problem cannot be set
            up.
    """

    header: Header
    journal: Journal
    variant: Variant
    budget: Budget
    observer: Observer

    def __post_init__(self) -> None:
        self._tasks = {task.problem: task for task in self.header.tasks}
        self._trials: dict[str, dict[str, Trial]] = {name: {} for name in self._tasks}
        self._rounds: dict[str, list[Round]] = {name: [] for name in self._tasks}
        self._setups: dict[str, dict[str, Any]] = {}
        self.quarantine: dict[str, str] = {}
        if not self.journal.entries:
            self.journal.append("header", self.header.model_dump(mode="json", by_alias=True))
        for entry in self.journal.entries[1:]:
            self._recall(entry.kind, entry.data)

    def tune(self, problem: Problem, runner: Runner, limits: Limits) -> Outcome:
        """Searches, decides and records one problem."""
        task = self._tasks[problem.key]
        seeds = tuple(self.variant.config_type.parse(text) for text in task.seeds)
        previous = self.variant.config_type.parse(task.previous) if task.previous else None
        extra = (*([previous] if previous else []), *seeds)
        space = build_space(self.variant, problem, limits, extra)
        self.observer.started(problem, len(space.configs))
        desk = _Desk(self, space, runner)
        board = Board(
            space=space,
            budget=self._share(),
            rng=Random(f"{self.header.seed} {problem.key}"),
            seeds=tuple(config for config in extra if config.key in space.by_key),
        )
        desk.drive(get_strategy(self.header.strategy)(board))
        setup = desk.setup()
        usable = [name for name, reason in setup["baselines"].items() if reason is None]
        board.spent_s += setup["wall_s"]
        known = previous if previous and previous.key in space.by_key else None
        verdict: Verdict | None = desk.drive(settle(board, known, [f"@{name}" for name in usable]))
        return make_outcome(
            board,
            verdict,
            identity=Identity(
                gpu=self.header.gpu,
                variant=self.variant.name,
                problem=problem.key,
                config_version=self.variant.config_type.version,
                policy=self.header.policy,
            ),
            provenance=self._provenance(task),
            previous=known,
            baselines=setup["baselines"],
            attainable=Attainable(**setup["attainable"]),
        )

    def _share(self) -> Budget:
        """The budget of one problem."""
        budget = self.budget.of(self.header.strategy)
        if budget.seconds is None:
            return budget
        return replace(budget, seconds=EXPLORING_SHARE * budget.seconds / len(self._tasks))

    def _provenance(self, task: TaskHeader) -> Provenance:
        header = self.header
        return Provenance(
            toolchain=header.toolchain,
            source_hash=task.source_hash,
            space_hash=task.space_hash,
            date=header.date,
            run=header.run,
            strategy=header.strategy,
            seed=header.seed,
            trials=0,
            replaces=task.replaces,
        )

    def _recall(self, kind: str, data: dict[str, Any]) -> None:
        problem = data.get("problem")
        if problem not in self._tasks:
            raise RoofgapError(f"journal {self.journal.path}", f"speaks of {problem}", "start a new run")
        if kind == "trial":
            self.remember(problem, Trial.model_validate(data["trial"]))
        elif kind == "round":
            self._rounds[problem].append(Round.model_validate(data["round"]))
        elif kind == "setup":
            self._setups[problem] = data

    def remember(self, problem: str, trial: Trial) -> None:
        """Takes a trial up into what is known, and its machine code into quarantine if it was dangerous."""
        self._trials[problem][trial.config_key] = trial
        if trial.status.quarantines and trial.code_hash:
            said = f"{trial.status.value} as {trial.config_key} on {problem}: {trial.evidence}"
            self.quarantine.setdefault(trial.code_hash, said)


class _Desk:
    """Answers the questions of one problem's search, from the journal or from the runner."""

    def __init__(self, session: Session, space: Space, runner: Runner) -> None:
        self._session, self._space, self._runner = session, space, runner
        self._problem = space.problem
        self._trials = session._trials[space.problem.key]
        self._rounds = session._rounds[space.problem.key]
        self._answered = 0
        self._begun = False
        self._last = runner.clock()
        runner.quarantine = session.quarantine

    def setup(self) -> dict[str, Any]:
        """Baselines and what the hardware allows, asked once per problem."""
        key = self._problem.key
        if key not in self._session._setups:
            self._begin()
            attainable = self._runner.attainable()
            data: dict[str, Any] = {
                "problem": key,
                "baselines": self._runner.baselines(),
                "attainable": {"roof_us": attainable.roof_us, "probe_us": attainable.probe_us},
            }
            data["wall_s"] = self._elapsed()
            self._session.journal.append("setup", data)
            self._session._setups[key] = data
        return self._session._setups[key]

    def drive(self, steps: Generator[Explore | Duel, Any, Any]) -> Any:
        """Runs a search to its end and returns what it returns."""
        return drive(steps, self._explore, self._duel)

    def _explore(self, configs: tuple[KernelConfig, ...]) -> list[Trial]:
        key = self._problem.key
        missing = [config for config in configs if config.key not in self._trials]
        for config in configs:
            if config.key in self._trials:
                self._session.observer.tried(self._problem, self._trials[config.key], True)
        if missing:
            self._begin()
        for trial in self._runner.explore(missing) if missing else ():
            timed = trial.model_copy(update={"wall_s": self._elapsed()})
            self._session.journal.append("trial", {"problem": key, "trial": timed.model_dump(mode="json")})
            self._session.remember(key, timed)
            self._session.observer.tried(self._problem, timed, False)
        return [self._trials[config.key] for config in configs]

    def _duel(self, contenders: tuple[str, ...]) -> Round:
        number, self._answered = self._answered, self._answered + 1
        replayed = number < len(self._rounds)
        if replayed:
            if self._rounds[number].contenders != contenders:
                raise RoofgapError(
                    f"journal {self._session.journal.path}",
                    f"round {number} of {self._problem.key} compared other configs",
                    "the search has changed since; start a new run",
                )
        else:
            self._begin()
            answer = self._runner.duel(contenders, number)
            answer = answer.model_copy(update={"wall_s": self._elapsed()})
            data = {"problem": self._problem.key, "round": answer.model_dump(mode="json")}
            self._session.journal.append("round", data)
            self._rounds.append(answer)
        self._session.observer.compared(self._problem, self._rounds[number], replayed)
        return self._rounds[number]

    def _begin(self) -> None:
        """Sets the problem up on the device, when the first question needs it."""
        if not self._begun:
            timed = {
                trial.code_hash: key
                for key, trial in self._trials.items()
                if trial.status is Status.OK and trial.code_hash
            }
            self._runner.begin(self._space, timed)
            self._begun = True

    def _elapsed(self) -> float:
        """Seconds since the last acknowledgement, to the microsecond: a clock's start must not show in the
        last bit.
        """
        now = self._runner.clock()
        elapsed, self._last = now - self._last, now
        return round(elapsed, 6)


def check_resumable(path: object, stored: Header, wanted: Header) -> None:
    """Whether a journal belongs to a request.

    Raises:
        RoofgapError: it does not; the message names every field that differs.
    """
    free = {"run", "date", "tasks"}
    found = differences(stored.model_dump(exclude=free), wanted.model_dump(exclude=free))
    hashes = [(task.problem, task.source_hash, task.space_hash) for task in stored.tasks]
    if hashes != [(task.problem, task.source_hash, task.space_hash) for task in wanted.tasks]:
        found.append("the kernel source or the space has changed")
    if found:
        raise RoofgapError(
            f"journal {path}", "; ".join(found), "resume with the same request, or start a new run"
        )
