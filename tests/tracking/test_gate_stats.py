"""The device lane's statistics on synthetic times: how often they cry wolf, and what they miss."""

from __future__ import annotations

import numpy as np
import pytest

from roofgap.tracking.gate.stats import LEAST_ROUNDS, Samples, decide

CELLS = 12
ROUNDS = 24
RUNS = 20


def times(
    rng: np.random.Generator, slowdown: float = 0.0, noise: float = 0.007, placement: float = 0.004
) -> Samples:
    """Both commits' times: noise per sample, a level per arm that stays, a common drift, some wild samples."""
    drift = np.cumsum(rng.normal(0, 0.001, ROUNDS))[:, None]

    def side(level: float) -> list[list[float]]:
        arms = rng.normal(0, placement, 2)[None, :]
        wild = rng.exponential(0.05, (ROUNDS, 2)) * (rng.random((ROUNDS, 2)) < 0.03)
        scatter = rng.normal(0, noise, (ROUNDS, 2))
        return (12.0 * (1 + level) * np.exp(drift + arms + scatter + wild)).tolist()  # type: ignore[no-any-return]

    return Samples(before=side(0.0), after=side(slowdown))


def grid(rng: np.random.Generator, slowdown: float = 0.0, **fields: float) -> dict[str, Samples]:
    return {f"cell {index}": times(rng, slowdown, **fields) for index in range(CELLS)}


@pytest.mark.parametrize("noise", [0.005, 0.01])
@pytest.mark.parametrize("placement", [0.0, 0.004])
def test_twenty_pairs_of_one_commit_raise_at_most_one_alarm(noise: float, placement: float) -> None:
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(RUNS):
        decisions = decide(grid(rng, noise=noise, placement=placement))
        alarms += sum(decision.differs for decision in decisions.values())
    assert alarms <= 1


@pytest.mark.parametrize("noise", [0.005, 0.01])
def test_five_per_cent_are_found_where_the_smallest_effect_says_so(noise: float) -> None:
    rng = np.random.default_rng(2)
    promised: list[bool] = []
    for _ in range(RUNS):
        decisions = decide(grid(rng, slowdown=0.05, noise=noise))
        promised += [
            each.differs and each.effect > 0 for each in decisions.values() if each.smallest_effect <= 0.05
        ]
    assert len(promised) >= RUNS * CELLS / 2, "the smallest effect is above 5 % nearly everywhere"
    assert sum(promised) >= 0.95 * len(promised)


def test_one_slow_cell_among_many_is_named_alone() -> None:
    rng = np.random.default_rng(3)
    for _ in range(RUNS):
        cells = {**grid(rng), "slow": times(rng, 0.05)}
        found = [name for name, decision in decide(cells).items() if decision.differs]
        assert found == ["slow"]


def test_a_faster_commit_has_a_negative_effect() -> None:
    decisions = decide({"cell": times(np.random.default_rng(4), -0.10)})
    assert decisions["cell"].differs
    assert decisions["cell"].effect == pytest.approx(-0.10, abs=0.02)


def test_arms_that_disagree_hide_what_they_could_explain() -> None:
    """4 % between the arms of one commit: 4 % between commits is no finding, whatever the rounds say."""
    rng = np.random.default_rng(5)
    apart = np.array([0.0, 0.04])
    level = {"before": 1.0, "after": 1.04}
    samples = {
        side: (factor * np.exp(apart + rng.normal(0, 0.001, (ROUNDS, 2)))).tolist()
        for side, factor in level.items()
    }
    decision = decide({"cell": Samples(**samples)})["cell"]
    assert not decision.differs
    assert decision.noise_floor > 0.04
    assert decision.smallest_effect > 0.04


def test_equal_times_do_not_differ() -> None:
    flat = [[5.0, 5.0]] * ROUNDS
    decision = decide({"cell": Samples(flat, flat)})["cell"]
    assert (decision.effect, decision.differs) == (0.0, False)


def test_effects_below_the_least_worth_reporting_are_not_reported() -> None:
    flat, slower = [[5.0, 5.0]] * ROUNDS, [[5.02, 5.02]] * ROUNDS
    assert not decide({"cell": Samples(flat, slower)})["cell"].differs
    assert decide({"cell": Samples(flat, slower)}, min_effect=0.001)["cell"].differs


def test_too_few_rounds_and_other_arms_are_refused() -> None:
    short = [[1.0, 1.0]] * (LEAST_ROUNDS - 1)
    with pytest.raises(ValueError, match="rounds are needed"):
        decide({"cell": Samples(short, short)})
    single = [[1.0]] * ROUNDS
    with pytest.raises(ValueError, match="two arms"):
        decide({"cell": Samples(single, single)})
    assert decide({}) == {}
