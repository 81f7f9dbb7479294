"""A live worker of ``roofgap gate``: one commit's roofgap, one process for all cells and rounds.

Started as ``python -m benchmarks._worker`` in a venv that holds the commit, so this file and the lanes are the current
tree's, the kernels the commit's. Reads requests and writes answers, one JSON object a line; whatever else prints goes
to stderr.

Requests, by ``op``:
    cells: ``lane`` -> ``cells``, the lane's grid, with the ``axes`` and the ``series`` (prefix) that asv knows it by.
    about: -> ``gpu`` and ``versions``.
    readings: ``lane``, ``cells`` -> ``readings``, one per cell in order.
    prepare: ``cell``, ``arms``, ``busy`` -> facts of a device cell, made ready once per arm on operands of its own.
    sample: ``arm``, ``replays`` -> ``latency_us``, the median of as many samples of the prepared cell.
    release: frees what ``prepare`` holds.

An answer to a request that failed is ``{"failed": reason}``, to one that cannot be met here ``{"na": reason}``.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TextIO

from . import _cells, _traffic
from ._device import Gpu
from ._reading import guarded

Answer = dict[str, Any]


class Worker:
    """Answers requests. ``arms`` holds the prepared device cell, once per arm."""

    def __init__(self) -> None:
        self._gpu: Gpu | None = None
        self._arms: list[Any] = []

    def cells(self, lane: str) -> Answer:
        """The lane's grid."""
        listed = getattr(_cells, f"{lane}_cells")()
        return {"cells": listed, "axes": _cells.axes(lane), "series": _cells.SERIES[lane]}

    def about(self) -> Answer:
        """The GPU, opened by this, and what runs on it."""
        self._gpu = self._gpu or Gpu()
        return {"gpu": self._gpu.name, "versions": self._gpu.device.versions()}

    def readings(self, lane: str, cells: list[list[str]]) -> Answer:
        """A reading per cell, in order."""
        keys = [tuple(cell) for cell in cells]
        found = import_module(f"._{lane}", __package__).readings(keys)
        return {"readings": [found[key] for key in keys]}

    def prepare(self, cell: list[str], arms: int, busy: int = 0) -> Answer:
        """Makes a device cell ready on ``arms`` sets of operands, each with copies of its own in memory."""
        os.environ["ROOFGAP_PLANTED_BUSY"] = str(busy)  # read by kernels that an experiment has slowed down
        self._gpu = self._gpu or Gpu()
        self.release()
        name, shape, m = cell
        facts: dict[str, Any] = {}
        for _ in range(arms):
            prepared, facts = self._gpu.prepare(self._gpu.workload(shape, m), name)
            self._arms.append(prepared)
        measurement = import_module("roofgap.tuning.measure.measurement")
        for prepared in self._arms:
            measurement.warm_up(prepared)
            measurement.plausible_gbps(prepared, prepared.sample())
        return {"facts": {**facts, "launches": prepared.launches, "gpu": self._gpu.device.name}}

    def sample(self, arm: int, replays: int) -> Answer:
        """Median time of an arm."""
        return {"latency_us": statistics.median(self._arms[arm].sample() for _ in range(replays))}

    def release(self) -> Answer:
        """Gives the memory back to the device."""
        self._arms.clear()
        gc.collect()
        if self._gpu is not None:
            import_module("torch").cuda.empty_cache()
        return {}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answers until there are no more requests."""
    worker = Worker()
    for line in requests:
        request = json.loads(line)
        work: Callable[..., Answer] = getattr(worker, request.pop("op"))
        answers.write(json.dumps(guarded(lambda: work(**request))) + "\n")  # noqa: B023 # called at once
        answers.flush()


def main() -> None:
    """Keeps stdout for answers alone."""
    if os.environ.get("ROOFGAP_GATE_INTERPRET") == "1":
        _traffic.interpret()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
