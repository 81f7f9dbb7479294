"""A series as a line a few letters high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roofgap.tracking.site.series import Point

WIDTH, HEIGHT, MARGIN = 120, 24, 3


@dataclass(frozen=True, slots=True)
class Sparkline:
    """An SVG path in a box of ``WIDTH`` x ``HEIGHT`` and where each revision lies on it."""

    path: str
    places: dict[int, tuple[float, float]]


def sparkline(points: Sequence[Point]) -> Sparkline:
    """Draws measured revisions at equal distances, levels as steps, the lowest value at the bottom."""
    values = [value for _, value in points]
    low, span = min(values), (max(values) - min(values)) or 1.0
    stride = (WIDTH - 2 * MARGIN) / max(len(points) - 1, 1)
    places = {
        revision: (
            round(MARGIN + index * stride, 1),
            round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value - low) / span, 1),
        )
        for index, (revision, value) in enumerate(points)
    }
    # A change of level is drawn where the new one was first measured; a point without one draws nothing.
    (first_x, level), *_ = places.values()
    path = f"M{first_x} {level}"
    for x, y in places.values():
        if y != level:
            path += f"H{x}V{y}"
            level = y
    return Sparkline(f"{path}H{x}", places)
