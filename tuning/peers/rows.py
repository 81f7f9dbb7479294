"""Rows of several problems: who was the best peer, whether the ratio counts, means, merging with a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

from scipy.stats import gmean

from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.bench import ratio
from roofgap.tuning.measure.failure import Failure
from roofgap.tuning.peers.compare import Fault, Row, Task
from roofgap.tuning.peers.registry import PEER_NAMES, REQUIRED
from roofgap.tuning.status import Status

BEST_OWN = "best own"


class Measures(Protocol):
    """``worker.Worker``, or a bench in this process."""

    def runnable(self, problem: Problem) -> Collection[str]:
        """Names that would not be refused."""

    def measure(self, task: Task, banned: Mapping[str, Failure]) -> list[Row] | Fault:
        """One row per name, or a fault."""


def measure_task(worker: Measures, task: Task, names: Sequence[str]) -> list[Row]:
    """All rows of a problem. Whoever costs a process is left out of the next attempt and keeps its failure as a row."""
    banned: dict[str, Failure] = {}
    while True:
        found = worker.measure(task, banned)
        if not isinstance(found, Fault):
            return with_ratios(found)
        last = found.failure
        if found.name is None or found.name in banned:
            break
        banned[found.name] = found.failure
    problem = task.problem
    head: Row = {"n": problem.n, "k": problem.k, "m": problem.m, "dtype": problem.x_dtype}
    head |= {"group_size": problem.group_size, "zero_mode": problem.zero_mode}
    rows: list[Row] = []
    for name in names:
        failure = banned.get(name, last)
        rows.append(
            {
                "problem": problem.key,
                "variant": name,
                **head,
                "status": failure.status.value,
                "evidence": failure.evidence,
            }
        )
    return with_ratios(rows)


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Adds to rows of one problem that were measured together: the best peer, its time over each row's, and whether
    that ratio counts, with the reason where it does not.
    """
    timed = {str(row["variant"]): row for row in rows if row["status"] == Status.OK.value}
    peers = {name: row["latency_us"] for name, row in timed.items() if name in PEER_NAMES}
    best = min(peers, key=lambda name: float(peers[name] or 0), default=None)
    statuses = {str(row["variant"]): str(row["status"]) for row in rows}
    lacking = [f"{name} {statuses.get(name, 'not run')}" for name in REQUIRED if name not in timed]
    reason = ", ".join(lacking) or None
    best_us = peers[best] if best is not None else None
    shared: Row = {
        "best_peer": best,
        "best_peer_us": best_us,
        "ratio_counts": reason is None,
        "ratio_reason": reason,
    }
    return [row | {"best_peer_ratio": ratio(best_us, row.get("latency_us"))} | shared for row in rows]


def is_measured(
    rows: Iterable[Row], problem: Problem, names: Sequence[str], runnable: Collection[str]
) -> bool:
    """Whether a file's rows hold all of a problem that can be measured here.

    A row that was refused because a package was missing counts only while it is missing still.
    """
    held = {str(row["variant"]): row["status"] for row in rows if row.get("problem") == problem.key}
    return all(
        name in held and not (held[name] == Status.UNSUPPORTED.value and name in runnable) for name in names
    )


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """New rows replace old ones of the same variant and problem; the others keep their places."""
    fresh = {(row["variant"], row["problem"]): row for row in new}
    kept = [fresh.pop((row["variant"], row.get("problem")), row) for row in old]
    return [*kept, *fresh.values()]


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Per own variant, M, dtype and group size: geometric means over the shapes whose ratio counts. ``best own``
    takes the fastest own variant of every shape.
    """
    counted = [row for row in rows if row.get("ratio_counts") and row["status"] == Status.OK.value]
    own = [row for row in counted if row["variant"] not in PEER_NAMES]
    best = [
        min(same, key=lambda row: float(row["latency_us"] or 0)) | {"variant": BEST_OWN}
        for same in _grouped(own, lambda row: str(row["problem"]))
    ]
    means = []
    for same in _grouped([*best, *own], lambda row: (row["variant"] != BEST_OWN, *_cell_of(row))):
        gaps = [gap for row in same if isinstance(gap := row.get("attainable_gap"), float)]
        ratios = [float(row["best_peer_ratio"] or 0) for row in same]
        means.append(
            {
                **{key: same[0][key] for key in ("variant", "m", "dtype", "group_size")},
                "shapes": len(same),
                "best_peer_ratio": float(gmean(ratios)),
                "least_ratio": min(ratios),
                "attainable_gap": float(gmean(gaps)) if gaps else None,
            }
        )
    return means


def _cell_of(row: Row) -> tuple[str, int, str, int]:
    return str(row["variant"]), int(row["m"] or 0), str(row["dtype"]), int(row["group_size"] or 0)


def _grouped(rows: Sequence[Row], key: Callable[[Row], Any]) -> list[list[Row]]:
    return [list(same) for _, same in groupby(sorted(rows, key=key), key)]
