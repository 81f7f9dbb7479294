"""Judges the lanes whose values repeat exactly: any rise is worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roofgap.tracking.gate.explain import explain
from roofgap.tracking.gate.live import LiveWorker, WorkerDiedError
from roofgap.tracking.gate.records import Finding

Cell = tuple[str, ...]
Reading = Mapping[str, Any]
BATCH_TIMEOUT_S = 1800.0
CELL_TIMEOUT_S = 300.0


def read(worker: LiveWorker, lane: str, cells: Sequence[Cell]) -> dict[Cell, Reading]:
    """A reading per cell. Where the process dies, the cells are asked for one by one, and only the deadly ones fail."""
    if not cells:
        return {}
    try:
        return dict(zip(cells, _ask(worker, lane, cells, BATCH_TIMEOUT_S), strict=True))
    except WorkerDiedError as death:
        if len(cells) == 1:
            return {cells[0]: {"failed": str(death)}}
    found: dict[Cell, Reading] = {}
    for cell in cells:
        try:
            (found[cell],) = _ask(worker, lane, [cell], CELL_TIMEOUT_S)
        except WorkerDiedError as death:
            found[cell] = {"failed": str(death)}
    return found


def _ask(worker: LiveWorker, lane: str, cells: Sequence[Cell], timeout_s: float) -> list[Reading]:
    answer = worker.ask("readings", timeout_s, lane=lane, cells=[list(cell) for cell in cells])
    if "readings" not in answer:  # the lane as a whole failed, or is not to be had
        return [answer] * len(cells)
    readings: list[Reading] = answer["readings"]
    return readings


def judge(lane: str, cell: Cell, before: Reading, after: Reading) -> list[Finding]:
    """Findings of one cell, one per metric; none where neither commit has the cell."""
    name = "/".join((lane, *cell))
    if "na" in before and "na" in after:
        return []
    if "failed" in after:
        return [Finding(cell=name, verdict="unmeasured", reason=after["failed"])]
    if "na" in after:
        return [Finding(cell=name, verdict="unmeasured", reason=f"the first commit had it: {after['na']}")]
    if "metrics" not in before:
        reason = before.get("failed") or before["na"]
        return [Finding(cell=name, verdict="new", reason=f"no value at the first commit: {reason}")]
    metrics = before["metrics"] | after["metrics"]
    return [
        finding
        for metric in metrics
        if (finding := _judge_metric(f"{name}/{metric}", metric, before, after)) is not None
    ]


def _judge_metric(name: str, metric: str, before: Reading, after: Reading) -> Finding | None:
    old, new = before["metrics"].get(metric), after["metrics"].get(metric)
    if old is None and new is None:
        return None
    if new is None:
        return Finding(cell=name, before=old, verdict="unmeasured", reason="the second commit gives no value")
    if old is None:
        return Finding(cell=name, after=new, verdict="new", reason="the first commit gives no value")
    return Finding(
        cell=name,
        before=old,
        after=new,
        effect=new / old - 1 if old > 0 else None,
        verdict="same" if new == old else "worse" if new > old else "better",
        explanation=() if new == old else explain(before, after),
    )
