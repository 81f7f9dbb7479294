"""What a cell gave: metrics, or why there are none. Plain dicts, which asv pickles and the gate sends as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ._cells import Cell

Reading = dict[str, Any]
"""``{"metrics": {name: number or samples}, "facts": {...}}``, ``{"na": reason}`` or ``{"failed": reason}``."""


def guarded(work: Callable[[], Reading]) -> Reading:
    """The reading that ``work`` gives, or the failure that it ran into."""
    try:
        return work()
    except NotImplementedError as reason:
        return {"na": str(reason)}
    except Exception as error:  # one broken cell must not take the others with it
        return {"failed": f"{type(error).__name__}: {error}"}


def readings_of(cells: Iterable[Cell], measure: Callable[[Cell], Reading]) -> dict[Cell, Reading]:
    """A reading per cell."""
    return {cell: guarded(lambda cell=cell: measure(cell)) for cell in cells}  # type: ignore[misc]


def require(readings: dict[Cell, Reading], *cell: object) -> Reading:
    """A cell's reading for ``setup``: n/a becomes asv's n/a, a failure asv's failure.

    Raises:
        NotImplementedError: n/a, or a cell outside this tier.
        RuntimeError: the measurement failed.
    """
    reading = readings.get(tuple(map(str, cell)), {"na": "not in this tier"})
    if "na" in reading:
        raise NotImplementedError(reading["na"])
    if "failed" in reading:
        raise RuntimeError(reading["failed"])
    return reading


def metric(readings: dict[Cell, Reading], cell: tuple[object, ...], name: str) -> Any:
    """A metric of a cell; NaN, which asv shows as n/a, where the cell has it not."""
    value = require(readings, *cell)["metrics"].get(name)
    return float("nan") if value is None else value
