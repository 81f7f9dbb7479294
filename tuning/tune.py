"""Tunes problems: the one function behind ``roofgap tune``."""

from __future__ import annotations

import contextlib
import queue
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from roofgap.kernels.variant import Limits, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning import winners_store
from roofgap.tuning.budget import Budget
from roofgap.tuning.journal import Journal, open_journal, read_journal
from roofgap.tuning.lookup import identity_of
from roofgap.tuning.outcome import Outcome
from roofgap.tuning.runner import Runner, SetUpError
from roofgap.tuning.session import Header, Observer, Session, TaskHeader, check_resumable
from roofgap.tuning.space import source_hash, space_hash
from roofgap.tuning.winner import DEFAULT_POLICY, Identity, Toolchain, Winner

JOURNALS = Path(".roofgap") / "journal"
MAX_SEEDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """What to tune and where.

    Attributes:
        variant: the kernel implementation.
        problems: problems, each once.
        gpu: slug of the GPU, the folder of its winners.
        gpu_name: the device's full name.
        toolchain: versions to record.
        limits: what a config may use on that GPU.
        strategy: name of the search strategy.
        budget: what may be spent.
        budget_text: how the user said it, for the journal.
        seed: of every random choice.
        policy: key of the measurement policy.
        seeded: whether configs that won elsewhere are tried early.
    """

    variant: Variant
    problems: tuple[Problem, ...]
    gpu: str
    gpu_name: str
    toolchain: Toolchain
    limits: Limits
    strategy: str
    budget: Budget
    budget_text: str
    seed: int = 0
    policy: str = DEFAULT_POLICY
    seeded: bool = True


@dataclass(frozen=True, slots=True)
class Published:
    """What became of an outcome's winner: the file written, or None, and why."""

    path: Path | None
    reason: str


def tune(
    request: TuneRequest,
    runners: Sequence[Runner],
    *,
    journal_path: Path,
    winners: Path | None,
    date: str,
    observer: Observer,
) -> list[tuple[Outcome, Published]]:
    """Tunes every problem of a request, one runner per GPU, and publishes the winners.

    A journal that exists is resumed: what it holds is not done again, and the result is the one the run would
    have had without the interruption.

    Args:
        request: what to tune.
        runners: one per GPU; a problem stays on one of them, since times of two GPUs are not comparable.
        journal_path: where every trial is recorded.
        winners: folder to publish in; None publishes nothing.
        date: ISO date and time that a new run is filed under.
        observer: is told about progress.

    Returns:
        Per problem its outcome and what was published, in the order of the request.

    Raises:
        RoofgapError: the journal is damaged, in use or belongs to another request; a file cannot be written;
            a problem cannot be set up. What was acknowledged until then is in the journal.
    """
    with open_journal(journal_path) as journal:
        header = _header(request, journal, date, winners)
        session = Session(header, journal, request.variant, request.budget, observer)
        idle: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        for runner in runners:
            idle.put(runner)

        def one(problem: Problem) -> tuple[Outcome, Published]:
            runner = idle.get()
            try:
                outcome = session.tune(problem, runner, request.limits)
                return outcome, _publish(winners, outcome)
            except SetUpError as error:
                lost = Outcome(
                    variant=request.variant.name, problem=problem.key, winner=None, reason=str(error)
                )
                return lost, _publish(winners, lost)
            finally:
                idle.put(runner)

        if len(runners) == 1:
            return [one(problem) for problem in request.problems]
        with ThreadPoolExecutor(len(runners)) as pool:
            pending = [pool.submit(one, problem) for problem in request.problems]
            try:
                return [future.result() for future in pending]
            finally:
                for future in pending:
                    future.cancel()


def stored_header(path: Path) -> Header:
    """The request a journal was started with.

    Raises:
        RoofgapError: no such journal, damaged, or empty.
    """
    entries = read_journal(path)
    if not entries:
        raise RoofgapError(f"journal {path}", "is empty", "start a new run")
    return parse_header(path, entries[0].data)


def parse_header(path: Path, data: dict[str, Any]) -> Header:
    """Validates a journal's first line.

    Raises:
        RoofgapError: it is not the header of a tuning run.
    """
    try:
        return Header.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise RoofgapError(
            f"journal {path}", f"header, field {first['loc']}: {first['msg']}", "choose another journal"
        ) from error


def run_path(folder: Path, run: str) -> Path:
    """Journal of a run by its name.

    Raises:
        RoofgapError: a name that is no file name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run):
        raise RoofgapError(f"run {run!r}", "must be letters, digits, '.', '_' and '-'", "choose another name")
    return folder / f"{run}.jsonl"


def _publish(winners: Path | None, outcome: Outcome) -> Published:
    if outcome.winner is None:
        return Published(None, outcome.reason or "no winner")
    if winners is None:
        return Published(None, "not asked to publish")
    return Published(*winners_store.publish(winners, outcome.winner))


def _header(request: TuneRequest, journal: Journal, date: str, winners: Path | None) -> Header:
    """The stored header of a resumed journal, after a comparison with the request; else a new one."""
    wanted = Header(
        run=journal.path.stem,
        date=date,
        gpu=request.gpu,
        gpu_name=request.gpu_name,
        toolchain=request.toolchain,
        variant=request.variant.name,
        shapes=tuple(_fields(problem) for problem in request.problems),
        strategy=request.strategy,
        budget=request.budget_text,
        seed=request.seed,
        policy=request.policy,
        tasks=tuple(_task(request, problem, winners) for problem in request.problems),
    )
    if not journal.entries:
        return wanted
    stored = parse_header(journal.path, journal.entries[0].data)
    check_resumable(journal.path, stored, wanted)
    return stored


def _fields(problem: Problem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in Problem.__dataclass_fields__}


def _task(request: TuneRequest, problem: Problem, winners: Path | None) -> TaskHeader:
    identity = identity_of(request.variant, problem, request.gpu, request.policy)
    previous = _previous(winners, identity)
    return TaskHeader(
        problem=problem.key,
        source_hash=source_hash(request.variant),
        space_hash=space_hash(request.variant, problem),
        seeds=tuple(
            key for key in _seeds(request, problem) if previous is None or key != previous.config_key
        ),
        previous=previous.config_key if previous else None,
        replaces=previous.provenance.run if previous else None,
    )


def _previous(winners: Path | None, identity: Identity) -> Winner | None:
    """The winner that a new one would replace."""
    if winners is None:
        return None
    path = winners_store.path_in(winners, identity)
    if not path.is_file():
        return None
    winner = winners_store.load(path)
    return winner if winner.identity == identity else None


def _seeds(request: TuneRequest, problem: Problem) -> list[str]:
    """Configs that won elsewhere: the same problem on other GPUs first, then this GPU's problems of nearest
    size.
    """
    ranked: list[tuple[bool, float, str]] = []
    if not request.seeded:
        return []
    for folder in winners_store.folders():
        for path in sorted(folder.glob(f"*/{request.variant.name}/*.json")):
            with contextlib.suppress(RoofgapError):  # a damaged neighbour is no reason not to tune
                winner = winners_store.load(path)
                if winner.identity.config_version == request.variant.config_type.version:
                    request.variant.config_type.from_dict(dict(winner.config))
                    same = winner.identity.problem == problem.key
                    distance = _distance(winner.identity.problem, problem)
                    ranked.append((not same, distance, winner.config_key))
    return list(dict.fromkeys(key for _, _, key in sorted(ranked)))[:MAX_SEEDS]


def _distance(key: str, problem: Problem) -> float:
    """How far apart two problems are in the logarithms of N, K and M."""
    import math

    match = re.match(r"n(\d+)-k(\d+)-m(\d+)-", key)
    if match is None:
        return math.inf
    sizes = (problem.n, problem.k, max(problem.m, 1))
    return sum(
        abs(math.log2(max(int(text), 1) / size)) for text, size in zip(match.groups(), sizes, strict=True)
    )
