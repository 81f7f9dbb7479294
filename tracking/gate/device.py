"""Times both commits in turns on the GPU and judges the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from statistics import median
from typing import Any, Literal, Protocol

from roofgap.tracking.gate.explain import explain
from roofgap.tracking.gate.live import LiveWorker, WorkerDiedError
from roofgap.tracking.gate.records import Evidence, Finding
from roofgap.tracking.gate.stats import ALPHA, MIN_EFFECT, Decision, Samples, decide, least_rounds

Cell = tuple[str, ...]
Facts = Mapping[str, Any]
ARMS = 2
ROUNDS = 24
REPLAYS = 3
PREPARE_TIMEOUT_S = 300.0
SAMPLE_TIMEOUT_S = 60.0
# Faults after which the CUDA context of a process is lost, and the next cell needs another process.
STICKY = ("illegal", "misaligned", "launch failure", "device-side assert", "CUDA error")


class NotMeasuredError(Exception):
    """A cell has no time: ``absent`` (there never was one), ``unmeasured``, or ``new`` (only the second commit has)."""

    def __init__(self, reason: str, kind: Literal["absent", "unmeasured", "new"] = "unmeasured") -> None:
        self.reason, self.kind = reason, kind
        super().__init__(reason)

    @property
    def is_absent(self) -> bool:
        """Whether the commit, or the machine, lacks the cell."""
        return self.kind == "absent"


class Side(Protocol):
    """One commit. ``WorkerSide`` is real; tests script theirs."""

    def prepare(self, cell: Cell) -> Facts:
        """Makes the cell ready on every arm and returns its facts. Raises NotMeasuredError."""

    def sample_us(self, arm: int) -> float:
        """One time of the cell that is ready. Raises NotMeasuredError."""

    def release(self) -> None:
        """Frees what ``prepare`` took."""


class WorkerSide:
    """A commit in its live worker.

    Args:
        worker: of the commit.
        busy: given to a kernel that an experiment has slowed down, by cell.
    """

    def __init__(self, worker: LiveWorker, busy: Mapping[Cell, int] | None = None) -> None:
        self._worker, self._busy = worker, busy or {}

    def prepare(self, cell: Cell) -> Facts:
        """In the worker, on ``ARMS`` sets of operands."""
        answer = self._ask(
            "prepare", PREPARE_TIMEOUT_S, cell=list(cell), arms=ARMS, busy=self._busy.get(cell, 0)
        )
        facts: Facts = answer["facts"]
        return facts

    def sample_us(self, arm: int) -> float:
        """Median of ``REPLAYS`` replays."""
        return float(self._ask("sample", SAMPLE_TIMEOUT_S, arm=arm, replays=REPLAYS)["latency_us"])

    def release(self) -> None:
        """In the worker; a dead one holds nothing."""
        try:
            self._worker.ask("release", SAMPLE_TIMEOUT_S)
        except WorkerDiedError:
            return

    def _ask(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        try:
            answer = self._worker.ask(op, timeout_s, **fields)
        except WorkerDiedError as death:
            raise NotMeasuredError(str(death)) from death
        if "na" in answer:
            raise NotMeasuredError(answer["na"], "absent")
        if "failed" in answer:
            if any(text in answer["failed"] for text in STICKY):
                self._worker.stop()
            raise NotMeasuredError(answer["failed"])
        return answer


def time_cell(
    sides: tuple[Side, Side], cell: Cell, rounds: int, random: Random
) -> tuple[Samples, tuple[Facts, Facts]]:
    """Samples of all arms of both commits, in random order within each round, and both commits' facts.

    Raises:
        NotMeasuredError: one of the commits has no time; ``is_absent`` if neither ever had the cell.
    """
    try:
        facts = prepare(sides, cell)
        return take_rounds(sides, rounds, random), facts
    finally:
        for each in sides:
            each.release()


def take_rounds(sides: tuple[Side, Side], rounds: int, random: Random) -> Samples:
    """Samples of a cell that both commits have ready."""
    arms = [(side, arm) for side in range(len(sides)) for arm in range(ARMS)]
    taken: tuple[list[list[float]], list[list[float]]] = ([], [])
    for turn in range(rounds):
        if turn % 2:  # backwards, so that no arm profits from its neighbour
            arms.reverse()
        else:
            random.shuffle(arms)
        reading = {(side, arm): sides[side].sample_us(arm) for side, arm in arms}
        for side in range(len(sides)):
            taken[side].append([reading[side, arm] for arm in range(ARMS)])
    return Samples(*taken)


def prepare(sides: tuple[Side, Side], cell: Cell) -> tuple[Facts, Facts]:
    """Makes a cell ready at both commits and returns their facts.

    Raises:
        NotMeasuredError: with the kind that the two outcomes together make it.
    """
    outcomes: list[Facts | NotMeasuredError] = []
    for side in sides:
        try:
            outcomes.append(side.prepare(cell))
        except NotMeasuredError as reason:
            outcomes.append(reason)
    before, after = outcomes
    if not isinstance(before, NotMeasuredError) and not isinstance(after, NotMeasuredError):
        return before, after
    absent = [isinstance(outcome, NotMeasuredError) and outcome.is_absent for outcome in outcomes]
    if isinstance(after, NotMeasuredError):
        raise NotMeasuredError(after.reason, "absent" if all(absent) else "unmeasured")
    assert isinstance(before, NotMeasuredError)
    raise NotMeasuredError(f"no value at the first commit: {before.reason}", "new")


def judge(
    before: Side,
    after: Side,
    cells: Sequence[Cell],
    *,
    rounds: int = ROUNDS,
    alpha: float = ALPHA,
    min_effect: float = MIN_EFFECT,
    seed: int = 0,
) -> tuple[list[Finding], str | None]:
    """Findings of a grid, and the GPU's name. Cells that neither commit has here are left out.

    ``rounds`` is raised to what a grid of this size needs for anything to be found in it.
    """
    rounds = max(rounds, least_rounds(len(cells), alpha))
    random = Random(seed)
    samples: dict[str, Samples] = {}
    facts: dict[str, tuple[Facts, Facts]] = {}
    findings: list[Finding] = []
    for cell in cells:
        name = "/".join(("device", *cell, "latency_us"))
        try:
            samples[name], facts[name] = time_cell((before, after), cell, rounds, random)
        except NotMeasuredError as error:
            if error.kind != "absent":
                findings.append(Finding(cell=name, verdict=error.kind, reason=error.reason))
    for name, decision in decide(samples, alpha=alpha, min_effect=min_effect).items():
        findings.append(_finding(name, samples[name], decision, facts[name]))
    gpu = next((str(old["gpu"]) for old, _ in facts.values() if "gpu" in old), None)
    return findings, gpu


def _finding(name: str, samples: Samples, decision: Decision, facts: tuple[Facts, Facts]) -> Finding:
    was, now = (median(time for arms in side for time in arms) for side in (samples.before, samples.after))
    worse = decision.differs and decision.effect > 0
    return Finding(
        cell=name,
        before=was,
        after=now,
        effect=decision.effect,
        verdict="worse" if worse else "better" if decision.differs else "same",
        evidence=Evidence(
            rounds=len(samples.before),
            p_value=decision.p_value,
            noise_floor=decision.noise_floor,
            smallest_effect=decision.smallest_effect,
        ),
        explanation=explain({"facts": facts[0]}, {"facts": facts[1]}) if decision.differs else (),
    )
