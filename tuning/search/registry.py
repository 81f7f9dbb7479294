"""Every search strategy by name."""

from __future__ import annotations

from collections.abc import Callable

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.search.board import Board, Steps
from roofgap.tuning.search.exhaustive import exhaustive
from roofgap.tuning.search.local import local
from roofgap.tuning.search.racing import racing
from roofgap.tuning.search.random_search import random_search

Strategy = Callable[[Board], Steps]

STRATEGIES: dict[str, Strategy] = {
    "racing": racing,
    "local": local,
    "random": random_search,
    "exhaustive": exhaustive,
}


def get_strategy(name: str) -> Strategy:
    """Looks a strategy up.

    Raises:
        RoofgapError: no such strategy.
    """
    if name not in STRATEGIES:
        raise RoofgapError(f"strategy {name!r}", "is unknown", f"use one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
