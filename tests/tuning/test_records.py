from __future__ import annotations

import pytest
from pydantic import ValidationError

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.budget import BUDGETS, parse_budget
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Round, Trial


def test_only_a_right_trial_has_a_latency():
    with pytest.raises(ValidationError, match="latency"):
        Trial(config={}, status=Status.WRONG, evidence="e", latency_us=1.0)
    with pytest.raises(ValidationError, match="latency"):
        Trial(config={}, status=Status.OK)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_every_failure_carries_evidence(status: Status):
    with pytest.raises(ValidationError, match="without evidence"):
        Trial(config={}, status=status)


@pytest.mark.parametrize("latency", [0.0, -1.0, float("inf"), float("nan")])
def test_no_magic_latencies(latency: float):
    with pytest.raises(ValidationError):
        Trial(config={}, status=Status.OK, latency_us=latency)


def test_a_round_has_one_reading_for_each_contender():
    with pytest.raises(ValidationError):
        Round(contenders=("a", "b"), latency_us=(1.0,))
    with pytest.raises(ValidationError):
        Round(contenders=("a", "a"), latency_us=(1.0, 1.0))


def test_dangerous_statuses_replace_the_worker_and_quarantine():
    dangerous = {status for status in Status if status.poisons_worker}
    assert dangerous == {Status.ILLEGAL_ACCESS, Status.TIMEOUT, Status.CRASH}
    assert all(status.quarantines == (status in dangerous) for status in Status)


@pytest.mark.parametrize(("text", "seconds"), [("120s", 120.0), ("2m", 120.0), ("1.5h", 5400.0)])
def test_a_budget_of_time_has_no_trial_limit(text: str, seconds: float):
    budget = parse_budget(text)
    assert (budget.seconds, budget.trials) == (seconds, None)


@pytest.mark.parametrize("text", ["", "0s", "-5s", "fast", "120", "1d", "nan"])
def test_a_bad_budget(text: str):
    with pytest.raises(RoofgapError, match="budget"):
        parse_budget(text)


def test_budget_names_match_their_rows():
    assert all(name == budget.name for name, budget in BUDGETS.items())
