"""The suite's measured series and the steps in them. Lower is better everywhere."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roofgap.tracking.describe import NONE, UNAVAILABLE
from roofgap.tuning.environment import gpu_name

DEFAULT_THRESHOLD = 0.05  # asv's own, where asv.conf.json names none

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Piece:
    """A level that held from revision ``first`` to revision ``last``, both measured."""

    first: int
    last: int
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """One cell of one benchmark on one machine and toolchain.

    Attributes:
        benchmark: dotted name, e.g. ``static.Registers.track_registers``.
        unit: as the benchmark states it.
        params: benchmark parameters by name, as text without quotes.
        raw_params: the same in the form asv writes them (Python literals).
        machine: what asv tells machines and environments apart by (machine, gpu, torch, triton, branch, ...).
        points: (revision, value) in order, missing values left out.
        pieces: levels, in order.
        threshold: smallest ratio over 1 that counts as a step on asv's regressions page.
    """

    benchmark: str
    unit: str
    params: dict[str, str]
    raw_params: dict[str, str]
    machine: dict[str, str]
    points: tuple[Point, ...]
    pieces: tuple[Piece, ...]
    threshold: float

    @property
    def name(self) -> str:
        """``benchmark(param, ...)``, the text that asv's ``-b`` is matched against."""
        return entry_name(self.benchmark, tuple(self.raw_params.values()))

    @property
    def gpu(self) -> str:
        """Slug of the GPU that the benchmark names or the machine has; empty without one."""
        name = self.params.get("gpu") or self.machine.get("gpu", NONE)
        return "" if name in (NONE, UNAVAILABLE) else gpu_name(name)


@dataclass(frozen=True, slots=True)
class Step:
    """A change of level between two measured revisions.

    Attributes:
        before_revision: last measured revision of the old level.
        after_revision: first measured revision of the new level; the culprit is in (before, after].
        before: old level, in the series' unit.
        after: new level.
        outcome: of a rise ``open`` or ``fixed``, of a fall ``held`` or ``lost``.
        end: for ``fixed`` and ``lost``, the (last, first) revisions around the step that took the series back.
        minor: below the series' threshold.
    """

    before_revision: int
    after_revision: int
    before: float
    after: float
    outcome: Literal["open", "fixed", "held", "lost"]
    end: tuple[int, int] | None
    minor: bool

    @property
    def ratio(self) -> float | None:
        """after / before; None from a level of zero."""
        return self.after / self.before if self.before else None


def entry_name(benchmark: str, raw_params: tuple[str, ...]) -> str:
    """``benchmark(param, ...)``, or the bare name of one without parameters."""
    return f"{benchmark}({', '.join(raw_params)})" if raw_params else benchmark


def read_series(conf: Any, benchmarks: Mapping[str, Any], graphs: Any) -> Iterator[Series]:
    """Every cell of every graph that asv is about to publish.

    Args:
        conf: asv's configuration (``regressions_thresholds``).
        benchmarks: asv's benchmarks by name.
        graphs: asv's ``GraphSet`` with its steps detected.
    """
    for _, graph in sorted(graphs):
        benchmark = benchmarks.get(graph.benchmark_name)
        if benchmark is None or "summary" in graph.params:
            continue
        machine = {name: str(value) for name, value in graph.params.items() if value not in (None, "")}
        data = graph.get_data()
        cells = list(itertools.product(*benchmark["params"])) if benchmark["params"] else [()]
        for index, raw in enumerate(cells):
            values = data if graph.scalar_series else [(row[0], row[1][index]) for row in data]
            points = tuple((row[0], float(row[1])) for row in values if not _missing(row[1]))
            if not points:
                continue
            threshold = threshold_of(conf, entry_name(graph.benchmark_name, raw), machine.get("branch"))
            steps = graph.get_steps() if graph.scalar_series else graph.get_steps()[index]
            yield Series(
                benchmark=graph.benchmark_name,
                unit=benchmark.get("unit", ""),
                params=dict(zip(benchmark["param_names"], map(plain, raw), strict=True)),
                raw_params=dict(zip(benchmark["param_names"], raw, strict=True)),
                machine=machine,
                points=points,
                pieces=exact_pieces(points)
                if threshold == 0
                else tuple(Piece(left, right - 1, value) for left, right, value, _, _ in steps),
                threshold=threshold,
            )


def threshold_of(conf: Any, name: str, branch: str | None) -> float:
    """asv's rule: the largest of the thresholds whose pattern matches ``name@branch``, else 5 %."""
    text = f"{name}@{branch}" if branch else name
    found = [float(value) for regex, value in conf.regressions_thresholds.items() if re.match(regex, text)]
    return max(found, default=DEFAULT_THRESHOLD)


def exact_pieces(points: Sequence[Point]) -> tuple[Piece, ...]:
    """Runs of equal values.

    asv fits levels as to noisy samples, and takes values that change often, or creep, for noise about one level.
    Where the threshold is zero the metric is exact, and every change is a change.
    """
    runs = [list(run) for _, run in itertools.groupby(points, key=lambda point: point[1])]
    return tuple(Piece(run[0][0], run[-1][0], run[0][1]) for run in runs)


def steps_of(series: Series) -> list[Step]:
    """All changes of level, up and down, and what became of each."""
    pieces = series.pieces
    return [_step(pieces, index, series.threshold) for index in range(len(pieces) - 1)]


def _step(pieces: tuple[Piece, ...], index: int, threshold: float) -> Step:
    old, new = pieces[index], pieces[index + 1]
    rise = new.value > old.value
    size = abs(new.value - old.value)
    # Back means within the threshold of the old level, and nearer to it than to the new one.
    allowed = min(threshold * abs(old.value), size / 2)
    back = next(
        (
            later
            for later in range(index + 2, len(pieces))
            if (pieces[later].value - old.value) * (1 if rise else -1) <= allowed
        ),
        None,
    )
    outcomes: tuple[Literal["open", "held"], Literal["fixed", "lost"]] = (
        ("open", "fixed") if rise else ("held", "lost")
    )
    return Step(
        before_revision=old.last,
        after_revision=new.first,
        before=old.value,
        after=new.value,
        outcome=outcomes[0] if back is None else outcomes[1],
        end=None if back is None else (pieces[back - 1].last, pieces[back].first),
        minor=size <= threshold * abs(old.value),
    )


def plain(raw: str) -> str:
    """A parameter as a person writes it: strings lose their quotes."""
    try:
        value = ast.literal_eval(raw)
    except (ValueError, SyntaxError):
        return raw
    return value if isinstance(value, str) else raw


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)
