"""Writes result files that asv reads, on machines that have no asv.

The format and the statistics are those of asv 0.6.6 (``results.py``, ``asv_runner/statistics.py``, BSD-3-Clause),
written anew: a test loads what this writes with asv's own classes and compares the figures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from roofgap.shapes.files import write_text
from roofgap.tracking.venv import HOST_PYTHON

API_VERSION, MACHINE_API_VERSION = 2, 1
BENCHMARK_VERSION = "1"
COLUMNS = (
    "result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25",
    "stats_q_75", "stats_number", "stats_repeat", "samples", "profile",
)  # fmt: skip
_STATISTICS = [name.removeprefix("stats_") for name in COLUMNS if name.startswith("stats_")]
_SIGNIFICANT_DIGITS = 5
CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class Series:
    """One benchmark: its dotted name, its parameters, and a value per combination of them, in product order.

    A value is a number, a sequence of samples, NaN where it does not apply, or None where it failed.
    """

    name: str
    axes: Sequence[Sequence[object]]
    values: Sequence[float | Sequence[float] | None]
    started_ms: int


def write_results(
    folder: Path,
    machine: Mapping[str, str],
    commit: str,
    commit_ms: int,
    requirements: Mapping[str, str],
    series: Sequence[Series],
) -> Path:
    """Adds series to the file of a commit, replacing those of the same name, and returns its path.

    Args:
        folder: asv's ``results_dir``.
        machine: asv's fields and ours; ``machine`` names the sub-folder.
        commit: full hash.
        commit_ms: the commit's date, milliseconds since 1970.
        requirements: versions that are part of the environment's name.
        series: what was measured.

    Raises:
        RoofgapError: the folder cannot be written.
    """
    environment = environment_name(requirements)
    path = folder / machine["machine"] / f"{commit[:8]}-{environment}.json"
    earlier = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
    content = {
        "commit_hash": commit,
        "env_name": environment,
        "date": commit_ms,
        "params": {**machine, "python": HOST_PYTHON},
        "python": HOST_PYTHON,
        "requirements": dict(requirements),
        "env_vars": {},
        "result_columns": list(COLUMNS),
        "results": {**earlier, **{one.name: _row(one) for one in series}},
        "durations": {},
        "version": API_VERSION,
    }
    write_text(
        folder / machine["machine"] / "machine.json", _pretty({**machine, "version": MACHINE_API_VERSION})
    )
    write_text(path, json.dumps(content))
    return path


def environment_name(requirements: Mapping[str, str]) -> str:
    """Name that asv gives the overlay environment of these versions."""
    return "-".join(
        ["overlay", f"py{HOST_PYTHON}", *(f"{name}{requirements[name]}" for name in sorted(requirements))]
    )


def statistics(samples: Sequence[float]) -> dict[str, float]:
    """Quartiles, the median's confidence interval from order statistics, and counts, as asv has them.

    At least eight samples: with fewer the interval is unbounded, and asv then assumes a distribution.

    Raises:
        ValueError: fewer than eight.
    """
    ordered = sorted(samples)
    below = binom.cdf(np.arange(len(ordered)), len(ordered), 0.5)
    tail = (1 - CONFIDENCE) / 2
    low = [value for value, share in zip(ordered, below, strict=True) if share <= tail]
    high = [value for value, share in zip(ordered, below, strict=True) if share >= 1 - tail]
    if not low:
        raise ValueError(f"at least eight samples are needed, got {len(ordered)}")
    quarter, three_quarters = (float(value) for value in np.quantile(ordered, (0.25, 0.75)))
    return {
        "ci_99_a": low[-1],
        "ci_99_b": high[0],
        "q_25": quarter,
        "q_75": three_quarters,
        "number": 1,
        "repeat": len(ordered),
    }


def _row(series: Series) -> list[Any]:
    values: list[float | None] = []
    found: list[dict[str, float] | None] = []
    for value in series.values:
        if value is None or isinstance(value, int | float):
            values.append(value)
            found.append(None)
        else:
            values.append(float(np.median(value)))
            found.append(statistics(value))
    columns: dict[str, Any] = {
        "result": values if any(value is not None for value in values) else None,
        "params": [[repr(value) for value in axis] for axis in series.axes],
        "version": BENCHMARK_VERSION,
        "started_at": series.started_ms,
    }
    if any(found):
        for name in _STATISTICS:
            columns[f"stats_{name}"] = [_short(each[name]) if each else None for each in found]
    row = [columns.get(name) for name in COLUMNS]
    while row and row[-1] is None:
        row.pop()
    return row


def _short(value: float) -> float:
    """asv keeps five digits of a statistic."""
    if isinstance(value, int) or math.isinf(value):
        return value
    return float(f"{value:.{_SIGNIFICANT_DIGITS - 1}e}")


def _pretty(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=4, sort_keys=True) + "\n"
