"""The whole gate: two commits checked out, one live worker each, lane after lane, one report."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

from roofgap.shapes.errors import RoofgapError
from roofgap.tracking.gate import allow, device, exact
from roofgap.tracking.gate.checkout import Checkout, check_out, resolve
from roofgap.tracking.gate.explain import explain
from roofgap.tracking.gate.live import LiveWorker, cells_of
from roofgap.tracking.gate.records import EXACT_LANES, Finding, Lane, Report
from roofgap.tracking.gate.stats import ALPHA, MIN_EFFECT
from roofgap.tracking.venv import tracked_versions

ORDER = ("worse", "unmeasured", "allowed", "better", "new", "same")
Cell = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to compare and how strictly.

    Attributes:
        lanes: to measure, in this order.
        required: whether a lane that measures nothing makes the comparison incomplete.
        only: shell patterns over ``lane/variant/shape/place``; empty for the whole grid.
        allowed: cells that may be worse.
        rounds: of the device lane, per cell.
        alpha: share of false findings among the device lane's findings.
        min_effect: least effect that the device lane reports.
    """

    lanes: tuple[Lane, ...]
    required: bool = True
    only: tuple[str, ...] = ()
    allowed: allow.AllowList = field(default_factory=allow.AllowList)
    rounds: int = device.ROUNDS
    alpha: float = ALPHA
    min_effect: float = MIN_EFFECT


def gate(
    root: Path, before: str, after: str, options: Options, say: Callable[[str], None] = lambda text: None
) -> Report:
    """Compares two commits.

    Args:
        root: the repository; its working tree gives the suite, its history the commits.
        before: revision that is the standard.
        after: revision that is judged.
        options: lanes and limits.
        say: told what is going on.

    Raises:
        RoofgapError: an unknown revision, or a commit without roofgap.
    """
    hashes = resolve(root, before), resolve(root, after)
    findings: list[Finding] = []
    warnings: list[str] = []
    absent, incomplete, gpu = 0, False, None
    with checkouts(root, hashes) as pair:
        for lane in options.lanes:
            with workers(root, pair, interpret=lane in EXACT_LANES) as both:
                cells = [cell for cell in cells_of(both[1], lane) if _wanted(lane, cell, options.only)]
                say(f"{lane}: {len(cells)} cells of {hashes[0][:10]} and {hashes[1][:10]}")
                if lane in EXACT_LANES:
                    found = _exact(lane, both, cells)
                else:
                    found, gpu = _device(root, pair, both, cells, options)
            absent += len(cells) - len({_cell_of(finding, cells) for finding in found})
            if not found and options.required:
                incomplete = True
                warnings.append(
                    f"{lane}: {'nothing could be measured here' if cells else 'no cell is selected'}"
                )
            findings += found
    judged, more = allow.apply(options.allowed, findings, datetime.datetime.now(datetime.timezone.utc).date())
    judged.sort(key=lambda finding: (ORDER.index(finding.verdict), -abs(finding.effect or 0), finding.cell))
    return Report(
        before=hashes[0],
        after=hashes[1],
        lanes=options.lanes,
        versions=tracked_versions(["torch", "triton"]),
        gpu=gpu,
        not_applicable=absent,
        warnings=(*warnings, *more),
        incomplete=incomplete,
        findings=tuple(judged),
    )


@contextmanager
def checkouts(root: Path, hashes: tuple[str, str]) -> Iterator[tuple[Checkout, Checkout]]:
    """Both commits in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="roofgap-gate-") as folder:
        yield (
            check_out(root, hashes[0], Path(folder) / "before"),
            check_out(root, hashes[1], Path(folder) / "after"),
        )


@contextmanager
def workers(
    root: Path, pair: tuple[Checkout, Checkout], *, interpret: bool
) -> Iterator[tuple[LiveWorker, LiveWorker]]:
    """A live worker per commit."""
    with ExitStack() as stack:
        before, after = (
            stack.enter_context(LiveWorker(checkout, root / "asv_bench", interpret=interpret))
            for checkout in pair
        )
        yield before, after


def _wanted(lane: str, cell: Cell, only: Sequence[str]) -> bool:
    name = "/".join((lane, *cell))
    return not only or any(fnmatchcase(name, pattern) for pattern in only)


def _cell_of(finding: Finding, cells: Sequence[Cell]) -> Cell:
    """The grid's cell that a finding is about; a finding about all metrics has no metric in its name."""
    return tuple(finding.cell.split("/")[1 : 1 + len(cells[0])])


def _exact(lane: str, both: tuple[LiveWorker, LiveWorker], cells: Sequence[Cell]) -> list[Finding]:
    with ThreadPoolExecutor(len(both)) as threads:  # importing torch alone takes seconds
        before, after = threads.map(lambda worker: exact.read(worker, lane, cells), both)
    return list(chain.from_iterable(exact.judge(lane, cell, before[cell], after[cell]) for cell in cells))


def _device(
    root: Path,
    pair: tuple[Checkout, Checkout],
    both: tuple[LiveWorker, LiveWorker],
    cells: Sequence[Cell],
    options: Options,
) -> tuple[list[Finding], str | None]:
    sides = device.WorkerSide(both[0]), device.WorkerSide(both[1])
    findings, gpu = device.judge(
        *sides, cells, rounds=options.rounds, alpha=options.alpha, min_effect=options.min_effect
    )
    if gpu is None or not any(finding.explanation for finding in findings):
        return findings, gpu
    return _with_code(root, pair, findings, gpu), gpu


def _with_code(
    root: Path, pair: tuple[Checkout, Checkout], findings: list[Finding], gpu: str
) -> list[Finding]:
    """Adds to each difference what the compiler made of both commits for that GPU."""
    from roofgap.shapes.device import load_device

    try:
        target = load_device(gpu).target.removesuffix("a")
    except RoofgapError:  # a GPU without a profile: the times stand without this
        return findings
    wanted = {}
    for finding in findings:
        if finding.explanation:
            _, variant, shape, m, _ = finding.cell.split("/")
            wanted[finding.cell] = (variant, shape, target, m)
    with workers(root, pair, interpret=True) as both:
        before, after = (exact.read(worker, "static", list(wanted.values())) for worker in both)
    result = []
    for finding in findings:
        cell = wanted.get(finding.cell)
        lines = explain(before[cell], after[cell]) if cell else ()
        more = tuple(line for line in lines if line not in finding.explanation)
        result.append(finding.model_copy(update={"explanation": (*finding.explanation, *more)}))
    return result
