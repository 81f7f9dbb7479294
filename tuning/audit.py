"""Two searches of one call set beside each other: whether they agree, and what the cheaper one gave away."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from roofgap.shapes.problem import Problem
from roofgap.tuning.lookup import bucket
from roofgap.tuning.outcome import Outcome
from roofgap.tuning.results import Cell
from roofgap.tuning.runner import Runner
from roofgap.tuning.space import build_space
from roofgap.tuning.tune import TuneRequest

ROUNDS = 15


def audit(
    request: TuneRequest, runner: Runner, first: Sequence[Outcome], second: Sequence[Outcome]
) -> list[dict[str, Cell]]:
    """One row per problem: both picks, re-measured in turns.

    ``regret_pct`` is by how much the first pick is slower than the second (negative: faster). ``agree`` says
    whether each lies in the other's tie set.
    """
    rows: list[dict[str, Cell]] = []
    for problem, one, other in zip(request.problems, first, second, strict=True):
        if one.winner is None or other.winner is None:
            rows.append({"problem": problem.key, "agree": None, "said": one.reason or other.reason})
            continue
        picks = (one.winner.config_key, other.winner.config_key)
        ratio = _ratio(request, runner, problem, picks)
        if ratio is None:
            said = f"{picks[0]} is not valid here, or failed beside {picks[1]}"
            rows.append({"problem": problem.key, "agree": None, "said": said})
            continue
        rows.append(
            {
                "problem": problem.key,
                "first": picks[0],
                "second": picks[1],
                "regret_pct": round(100 * (ratio - 1), 2),
                "agree": all(
                    pick in {reading.config for reading in winner.tie_set}
                    for pick, winner in ((picks[0], other.winner), (picks[1], one.winner))
                ),
                "first_trials": sum(one.statuses.values()),
                "second_trials": sum(other.statuses.values()),
                "first_s": round(one.seconds.total, 1),
                "second_s": round(other.seconds.total, 1),
            }
        )
    return rows


def held_out(problems: Sequence[Problem]) -> list[Problem]:
    """For each bucket's problem, the same weight with the least M that the bucket serves: M/2 + 1 rows."""
    return [problem.with_m(problem.m // 2 + 1) for problem in problems]


def is_bucket(problem: Problem) -> bool:
    """Whether the problem's M is a bucket that serves another M too."""
    return problem.m >= 4 and bucket(problem.m) == problem.m


def _ratio(request: TuneRequest, runner: Runner, problem: Problem, picks: tuple[str, str]) -> float | None:
    """Median of the first pick's time over the second's in paired rounds; None if either cannot run."""
    if picks[0] == picks[1]:
        return 1.0
    parse = request.variant.config_type.parse
    space = build_space(request.variant, problem, request.limits, (parse(picks[0]), parse(picks[1])))
    if not set(picks) <= set(space.by_key):
        return None
    runner.begin(space, {})
    rounds = [runner.duel(picks, number).latency_us for number in range(ROUNDS)]
    ratios = [first / second for first, second in rounds if first is not None and second is not None]
    return median(ratios) if ratios else None
