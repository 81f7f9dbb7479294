from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tuning_toys import PROBLEM, PROBLEMS, TOY, ToyConfig, request, rugged, run, table

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.variant import Limits
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.budget import BUDGETS, TIE_BAND
from roofgap.tuning.runner import SetUpError
from roofgap.tuning.scripted import ScriptedRunner
from roofgap.tuning.search.board import Board, Explore
from roofgap.tuning.search.racing import spread_out
from roofgap.tuning.search.registry import STRATEGIES, get_strategy
from roofgap.tuning.space import build_space, tie_order
from roofgap.tuning.status import Status

SPACE = build_space(TOY, PROBLEM, Limits())
BEST = min(rugged(config) for config in SPACE.configs)
GENTLE = replace(BUDGETS["default"], name="gentle")


def regret(results) -> float:
    (outcome, _), *_ = results
    return float(rugged(ToyConfig.from_dict(dict(outcome.winner.config))) / BEST - 1)


def noise(sigma: float):
    return lambda config: sigma


def test_the_default_comes_first_and_every_config_is_valid_and_there_once():
    assert SPACE.configs[0] == TOY.default_config(PROBLEM)
    assert len(set(SPACE.configs)) == len(SPACE.configs)
    assert all(TOY.is_valid(PROBLEM, config) is None for config in SPACE.configs)
    assert len(SPACE.configs) + sum(SPACE.invalid.values()) == 4 * 3 * 5 * 4 * 2


def test_neighbours_differ_in_one_field_by_one_step():
    config = ToyConfig(num_warps=4, num_stages=2, block_n=32, split_k=2)
    near = {other.key for other in SPACE.neighbours(config)}
    changes: list[dict[str, Any]] = [
        {"num_warps": 2},
        {"num_warps": 8},
        {"num_stages": 1},
        {"num_stages": 3},
        {"block_n": 16},
        {"block_n": 64},
        {"split_k": 1},
        {"split_k": 4},
        {"reduce": "partials"},
    ]
    assert near == {replace(config, **change).key for change in changes}


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_strategy_stays_inside_its_budget_and_repeats_nothing(tmp_path: Path, strategy: str):
    runner = ScriptedRunner(rugged, noise=noise(0.01))
    run(tmp_path, request(strategy=strategy), runner)
    limit = len(SPACE.configs) if strategy == "exhaustive" else BUDGETS["quick"].trials
    assert limit is not None
    assert len(runner.launched) == len(set(runner.launched)) <= limit
    assert (PROBLEM.key, SPACE.default.key) in runner.launched


@pytest.mark.parametrize(
    ("strategy", "most"), [("exhaustive", 0.0), ("racing", 0.01), ("local", 0.03), ("random", 0.12)]
)
def test_median_regret(tmp_path: Path, strategy: str, most: float):
    regrets = []
    for seed in range(9):
        runner = ScriptedRunner(rugged, noise=noise(0.004), seed=seed)
        asked = request(strategy=strategy, budget=GENTLE, seed=seed)
        regrets.append(regret(run(tmp_path, asked, runner, name=f"{strategy}{seed}", publish=False)))
    assert sorted(regrets)[4] <= most + 1e-9


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_the_same_seed_gives_the_same_table_and_another_one_another_path(tmp_path: Path, strategy: str):
    def once(name: str, seed: int) -> tuple[list[str], list[tuple[str, str]]]:
        runner = ScriptedRunner(rugged, noise=noise(0.01))
        results = run(tmp_path / name, request(strategy=strategy, seed=seed), runner)
        return table(results), runner.launched

    first, again, other = once("a", 1), once("b", 1), once("c", 2)
    assert first == again
    assert (first[1] == other[1]) == (strategy == "exhaustive")


def test_a_time_budget_ends_the_search(tmp_path: Path):
    runner = ScriptedRunner(rugged)
    asked = request(
        strategy="random", budget=replace(BUDGETS["default"], name="20s", trials=None, seconds=20.0)
    )
    ((outcome, _),) = run(tmp_path, asked, runner)
    assert outcome.seconds.total < 20.0 + 32 * 0.52
    assert len(runner.launched) < len(SPACE.configs)
    assert outcome.winner is not None


def test_spread_out_shows_every_value():
    board = Board(SPACE, BUDGETS["default"], Random(0))
    sample = spread_out(board, 24)
    for name, values in SPACE.fields.items():
        seen = {config.to_dict()[name] for config in sample}
        assert seen == set(values)


def test_racing_looks_elsewhere_while_nothing_is_right():
    board = Board(SPACE, replace(BUDGETS["default"], first=8), Random(0))
    steps = get_strategy("racing")(board)
    ask = next(steps)
    tried: list[KernelConfig] = []
    for _ in range(4):
        assert isinstance(ask, Explore)
        tried += ask.configs
        ask = steps.send(list(ScriptedTrials(ask.configs)))
    assert len(set(tried)) == len(tried) == 1 + 8 + 3 * 4


def ScriptedTrials(configs):  # noqa: N802
    runner = ScriptedRunner(rugged, faults={config.key: (Status.WRONG, "e") for config in configs})
    runner.begin(SPACE, {})
    return runner.explore(configs)


# --- the decision -----------------------------------------------------------------------------------------------


def flat(fast: set[str], gap: float):
    """Everything takes 4 us except ``fast``, which take 3 us and ``gap`` more for each place in their order."""

    def latency(config: KernelConfig) -> float:
        if config.key in fast:
            return 3.0 * (1 + gap * sorted(fast).index(config.key))
        return 4.0

    return latency


NEAR = {
    ToyConfig(num_warps=warps, num_stages=stages, split_k=2).key for warps in (1, 2, 8) for stages in (1, 2)
}


def test_a_tie_is_broken_by_order_and_not_by_luck(tmp_path: Path):
    picks = set()
    for seed in range(8):
        runner = ScriptedRunner(flat(NEAR, 0.0), noise=noise(0.003), seed=seed)
        asked = request(strategy="exhaustive", budget=BUDGETS["exhaustive"], seed=seed)
        ((outcome, _),) = run(tmp_path, asked, runner, name=f"s{seed}", publish=False)
        picks.add(outcome.winner.config_key)
        assert {reading.config for reading in outcome.winner.tie_set} == NEAR
    expected = min(NEAR, key=lambda key: tie_order(TOY, PROBLEM, ToyConfig.parse(key)))
    assert picks == {expected}


def test_two_sessions_agree_within_their_tie_sets(tmp_path: Path):
    """Gaps of 0.4 % under noise of 0.5 %: each winner lies in the other session's tie set, and no set is
    wider than 2 %.
    """
    for pair in range(10):
        winners = []
        for seed in (2 * pair, 2 * pair + 1):
            runner = ScriptedRunner(flat(NEAR, 0.004), noise=noise(0.005), seed=seed)
            asked = request(strategy="exhaustive", budget=BUDGETS["exhaustive"], seed=seed)
            ((outcome, _),) = run(tmp_path, asked, runner, name=f"s{seed}", publish=False)
            winners.append(outcome.winner)
        for one, other in (winners, winners[::-1]):
            assert one.config_key in {reading.config for reading in other.tie_set}
            ratios = [reading.ratio for reading in one.tie_set]
            assert max(ratios) / min(ratios) <= 1 + TIE_BAND


def test_the_true_best_is_not_lost_to_a_lucky_reading(tmp_path: Path):
    """One config is 4 % faster than many, noise is 3 %: single readings mislead, the interleaved rounds do
    not.
    """
    best = ToyConfig(num_warps=2, split_k=2).key

    def latency(config: KernelConfig) -> float:
        return 3.0 if config.key == best else 3.12

    wrong = 0
    for seed in range(6):
        runner = ScriptedRunner(latency, noise=noise(0.03), seed=seed)
        budget = replace(BUDGETS["exhaustive"], finalists=80, max_rounds=40)
        asked = request(strategy="exhaustive", budget=budget, seed=seed)
        ((outcome, _),) = run(tmp_path, asked, runner, name=f"s{seed}", publish=False)
        wrong += best not in {reading.config for reading in outcome.winner.tie_set}
    assert wrong <= 1


def test_elimination_saves_rounds(tmp_path: Path):
    runner = ScriptedRunner(rugged, noise=noise(0.001))
    ((outcome, _),) = run(tmp_path, request(strategy="exhaustive", budget=BUDGETS["exhaustive"]), runner)
    assert outcome.rounds < BUDGETS["exhaustive"].max_rounds + BUDGETS["exhaustive"].face_off_rounds


def test_the_previous_winner_stays_inside_a_tie(tmp_path: Path):
    """A retune that gains nothing changes nothing, twenty times out of twenty."""
    asked = request(strategy="exhaustive", budget=BUDGETS["exhaustive"])
    run(tmp_path, asked, ScriptedRunner(flat(NEAR, 0.001), noise=noise(0.004), seed=99), name="first")
    files = {path: path.read_bytes() for path in (tmp_path / "winners").rglob("*.json")}
    for seed in range(20):
        runner = ScriptedRunner(flat(NEAR, 0.001), noise=noise(0.004), seed=seed)
        again = request(strategy="exhaustive", budget=BUDGETS["exhaustive"], seed=seed)
        ((_, published),) = run(tmp_path, again, runner, name=f"again{seed}")
        assert published.reason == "unchanged"
    assert {path: path.read_bytes() for path in (tmp_path / "winners").rglob("*.json")} == files


def test_a_faster_config_replaces_the_previous_winner(tmp_path: Path):
    asked = request(strategy="exhaustive", budget=BUDGETS["exhaustive"])
    run(tmp_path, asked, ScriptedRunner(flat(NEAR, 0.001)), name="first")
    faster = ToyConfig(num_warps=8, num_stages=3).key
    runner = ScriptedRunner(lambda config: 1.0 if config.key == faster else 3.0)
    ((outcome, published),) = run(tmp_path, asked, runner, name="second")
    assert published.path is not None and outcome.winner.config_key == faster
    assert outcome.winner.previous.ratio == pytest.approx(3.0)
    assert outcome.winner.provenance.replaces == "first"


def test_evidence_in_a_winner_is_short(tmp_path: Path):
    best = min(SPACE.configs, key=rugged)
    said = "CompilationError: at 2:4:\ndef kernel():\n    ^\nrefused on purpose\n"
    runner = ScriptedRunner(rugged, faults={best.key: (Status.COMPILE_ERROR, said)})
    ((outcome, _),) = run(tmp_path, request(strategy="exhaustive"), runner)
    assert (
        outcome.winner.rejected["compile_error"].evidence
        == "CompilationError: at 2:4: ... refused on purpose"
    )


def test_a_late_failure_cannot_win(tmp_path: Path):
    best = min(SPACE.configs, key=rugged)
    runner = ScriptedRunner(rugged, late_faults={best.key: "misaligned address in round 1"})
    ((outcome, _),) = run(tmp_path, request(strategy="exhaustive", budget=BUDGETS["exhaustive"]), runner)
    assert outcome.winner.config_key != best.key
    assert outcome.winner.rejected["late"].evidence == "misaligned address in round 1"


def test_baselines_and_default_are_read_beside_the_winner(tmp_path: Path):
    runner = ScriptedRunner(rugged, baselines_us={"torch": 9.0})
    ((outcome, _),) = run(tmp_path, request(), runner)
    assert outcome.winner.baselines["torch"].latency_us == 9.0
    expected = rugged(SPACE.default) / rugged(ToyConfig.from_dict(dict(outcome.winner.config)))
    assert outcome.winner.default.ratio == pytest.approx(expected, abs=1e-3)


# --- failures ---------------------------------------------------------------------------------------------------


def test_all_failing_publishes_nothing_and_says_why(tmp_path: Path):
    runner = ScriptedRunner(rugged, faults={c.key: (Status.WRONG, "1 of 8 outputs") for c in SPACE.configs})
    ((outcome, published),) = run(tmp_path, request(strategy="exhaustive"), runner)
    assert outcome.winner is None and published.path is None
    assert "wrong, 1 of 8 outputs" in outcome.reason
    assert not (tmp_path / "winners").exists()


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_any_failure_of_the_best_config_is_survived_and_counted(tmp_path: Path, status: Status):
    best = min(SPACE.configs, key=rugged)
    runner = ScriptedRunner(rugged, faults={best.key: (status, "scripted")})
    ((outcome, _),) = run(tmp_path, request(strategy="exhaustive", budget=BUDGETS["exhaustive"]), runner)
    assert outcome.winner.config_key != best.key
    assert outcome.winner.rejected[status.value].example == best.key
    assert outcome.statuses == {"ok": len(SPACE.configs) - 1, status.value: 1}


def test_a_failing_default_is_survived(tmp_path: Path):
    runner = ScriptedRunner(rugged, faults={SPACE.default.key: (Status.CRASH, "signal 11")})
    ((outcome, published),) = run(tmp_path, request(), runner)
    assert outcome.winner.default is None and published.path is not None


def test_a_problem_that_does_not_fit_does_not_stop_the_others(tmp_path: Path):
    class Small(ScriptedRunner):
        def begin(self, space, timed):
            if space.problem.n > 2000:
                raise SetUpError("8960x1536", "needs more memory", "free some")
            super().begin(space, timed)

    results = run(tmp_path, request(PROBLEMS), Small(rugged))
    assert [outcome.winner is None for outcome, _ in results] == [False, True, False]
    assert "needs more memory" in results[1][0].reason


def test_the_order_of_the_space_does_not_decide(tmp_path: Path, monkeypatch):
    results = []
    for backwards in (False, True):
        order = list(TOY.configs(PROBLEM))
        monkeypatch.setattr(type(TOY), "configs", lambda *_, o=order, b=backwards: iter(o[::-1] if b else o))
        runner = ScriptedRunner(rugged, noise=noise(0.002))
        asked = request(strategy="exhaustive", budget=BUDGETS["exhaustive"])
        ((outcome, _),) = run(tmp_path / str(backwards), asked, runner)
        results.append((outcome.winner.config_key, {reading.config for reading in outcome.winner.tie_set}))
        monkeypatch.undo()
    assert results[0] == results[1]


def test_an_unknown_strategy():
    with pytest.raises(RoofgapError, match="'genetic'"):
        get_strategy("genetic")
