"""What a tuning run prints: progress while it runs, a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING

from roofgap.shapes.problem import Problem
from roofgap.tuning.outcome import Outcome, Seconds
from roofgap.tuning.results import Cell
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Round, Trial
from roofgap.tuning.tune import Published

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY = 25


class Lines:
    """Plain lines on stderr: where nobody watches a terminal."""

    def __init__(self) -> None:
        self._best: dict[str, float] = {}
        self._count: dict[str, int] = {}
        self._lock = Lock()

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def started(self, problem: Problem, candidates: int) -> None:
        """A problem begins."""
        self._say(f"{problem.key}: {candidates} configs")

    def tried(self, problem: Problem, trial: Trial, replayed: bool) -> None:
        """Counts; speaks at every new best, every failure that is a fault, and every 25th config."""
        key = problem.key
        with self._lock:
            self._count[key] = count = self._count.get(key, 0) + 1
            best = self._best.get(key)
            improved = trial.latency_us is not None and (best is None or trial.latency_us < best)
            if improved and trial.latency_us is not None:
                self._best[key] = best = trial.latency_us
        again = " (from the journal)" if replayed else ""
        if trial.status.poisons_worker or trial.status is Status.WRONG:
            self._say(f"{key}: {trial.config_key}: {trial.status.value}, {trial.evidence}{again}")
        if improved or count % LINE_EVERY == 0:
            self._say(f"{key}: {count} tried, best {best or float('nan'):.3f} us{again}")

    def compared(self, problem: Problem, answer: Round, replayed: bool) -> None:
        """Silent."""

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bars:
    """A progress display on a terminal: a line per problem with what was tried, failed, and the best so far."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress: Progress = Progress(
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, TaskID] = {}
        self._best: dict[str, float] = {}
        self._failed: dict[str, int] = {}
        self._rounds: dict[str, int] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def started(self, problem: Problem, candidates: int) -> None:
        """A line for the problem."""
        self._tasks[problem.key] = self._progress.add_task(problem.key, total=candidates, said="")

    def tried(self, problem: Problem, trial: Trial, replayed: bool) -> None:
        """One further."""
        key = problem.key
        if trial.latency_us is not None:
            self._best[key] = min(trial.latency_us, self._best.get(key, trial.latency_us))
        else:
            self._failed[key] = self._failed.get(key, 0) + 1
        self._progress.update(self._tasks[key], advance=1, said=self._said(key))

    def compared(self, problem: Problem, answer: Round, replayed: bool) -> None:
        """Counts rounds."""
        self._rounds[problem.key] = self._rounds.get(problem.key, 0) + 1
        self._progress.update(self._tasks[problem.key], said=self._said(problem.key))

    def _said(self, key: str) -> str:
        parts = [f"best {self._best[key]:.3f} us"] if key in self._best else []
        parts += [f"{self._failed[key]} not timed"] if key in self._failed else []
        parts += [f"round {self._rounds[key]}"] if key in self._rounds else []
        return ", ".join(parts)


def result_rows(results: Sequence[tuple[Outcome, Published]]) -> list[dict[str, Cell]]:
    """The final table: one flat row per problem."""
    rows: list[dict[str, Cell]] = []
    for outcome, published in results:
        winner = outcome.winner
        row: dict[str, Cell] = {"problem": outcome.problem, "variant": outcome.variant}
        if winner is None:
            rows.append(row | {"winner": None, "said": outcome.reason})
            continue
        row |= {
            "winner": winner.config_key,
            "latency_us": winner.latency_us,
            "roof_gap": _over(winner.latency_us, outcome.roof_us),
            "attainable_gap": _over(winner.latency_us, outcome.probe_us),
            "over_default": winner.default.ratio if winner.default else None,
        }
        for name, baseline in winner.baselines.items():
            row[f"over_{name}"] = _over(baseline.latency_us, winner.latency_us)
        row |= {
            "ties": len(winner.tie_set),
            "trials": winner.provenance.trials,
            "seconds": round(outcome.seconds.total, 1),
            "said": published.reason,
        }
        rows.append(row)
    return rows


def closing_lines(results: Sequence[tuple[Outcome, Published]]) -> list[str]:
    """Where the time went, and what was not timed and why, with one example each."""
    seconds = Seconds()
    statuses: dict[str, int] = {}
    examples: dict[str, str] = {}
    for outcome, _ in results:
        seconds = seconds + outcome.seconds
        for status, count in outcome.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
        for status, rejected in (outcome.winner.rejected if outcome.winner else {}).items():
            examples.setdefault(status, f"{rejected.example}: {rejected.evidence}")
    lines = [
        f"{seconds.total:.1f} s: waiting for compilers {seconds.compile:.1f}, checking {seconds.check:.1f}, "
        f"measuring {seconds.measure:.1f}, overhead {seconds.overhead:.1f}",
        ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())),
    ]
    return lines + [
        f"  {status}, for example {example.splitlines()[0][:160]}"
        for status, example in sorted(examples.items())
    ]


def _over(value: float | None, base: float | None) -> float | None:
    return round(value / base, 3) if value and base else None
