"""How much a tuning run may spend: every number in one table."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from roofgap.shapes.errors import RoofgapError


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits per problem, and how its final decision is made.

    Attributes:
        name: row of the table.
        trials: configs to try at most; None is all of them.
        seconds: wall-clock for the whole run, shared among its problems; None is no limit. What is running is
            finished.
        first: configs of racing's first generation; half as many newcomers join where it is stuck.
        beam: survivors whose neighbours are tried next. Wide beats deep: on spaces with valleys and 8 to 20 % of
            roughness, 6 survivors find what 2 miss.
        finalists: configs that enter the interleaved rounds at most ...
        finalist_ratio: ... if their first reading is within this ratio of the best.
        min_rounds: interleaved rounds before anything is eliminated (six give a 95 % interval of a median).
        max_rounds: interleaved rounds at most.
        face_off_rounds: rounds of winner, default, previous winner and baselines at the end.
        spill_bytes: a config that spills more is pruned before it is launched; None launches them all.
        compile_timeout_s: per config.
        trial_timeout_s: check and measurement of one config, and one interleaved round per contender.
    """

    name: str
    trials: int | None
    seconds: float | None = None
    first: int = 24
    beam: int = 6
    finalists: int = 12
    finalist_ratio: float = 1.10
    min_rounds: int = 6
    max_rounds: int = 15
    face_off_rounds: int = 7
    spill_bytes: int | None = 0
    compile_timeout_s: float = 60.0
    trial_timeout_s: float = 30.0

    def of(self, strategy: str) -> Budget:
        """The budget under a strategy: ``exhaustive`` means every config, whatever the row says."""
        return replace(self, trials=None) if strategy == "exhaustive" else self


BUDGETS: dict[str, Budget] = {
    budget.name: budget
    for budget in (
        Budget(name="quick", trials=48, first=16, beam=4, finalists=6, max_rounds=8, face_off_rounds=5),
        Budget(name="default", trials=96),
        Budget(name="exhaustive", trials=None, finalists=24, max_rounds=25, spill_bytes=None),
    )
}
TIE_BAND = 0.02
"""Configs whose interleaved ratio to the fastest is within this are one tie set."""
CORE_BAND = 0.005
"""The winner is taken from this inner part of the tie set, so that it also lies in the tie set of a second
run.
"""

_SECONDS = re.compile(r"(?P<value>\d+(\.\d+)?)(?P<unit>s|m|min|h)")


def parse_budget(text: str) -> Budget:
    """A row of the table by name, or ``120s`` / ``5m`` / ``1h``: the default row with that much time and no
    trial limit.

    Raises:
        RoofgapError: neither.
    """
    if text in BUDGETS:
        return BUDGETS[text]
    match = _SECONDS.fullmatch(text.strip())
    seconds = float(match["value"]) * {"s": 1, "m": 60, "min": 60, "h": 3600}[match["unit"]] if match else 0.0
    if seconds <= 0:
        raise RoofgapError(
            f"budget {text!r}",
            "is neither a name nor a time above zero",
            f"use {', '.join(BUDGETS)}, or a time like 120s",
        )
    return replace(BUDGETS["default"], name=text.strip(), trials=None, seconds=seconds)
