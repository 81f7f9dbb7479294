"""The whole tuner on a real GPU: faults in one run, worker replacement, the compilers' cache, publication,
resumption.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty_kernels import EXPECTED, FAULTS, FAULTY
from tuning_toys import Silent

from roofgap.kernels.registry import get_variant
from roofgap.shapes.problem import Problem
from roofgap.tuning.budget import BUDGETS
from roofgap.tuning.gpu_session import make_request, open_gpus
from roofgap.tuning.journal import read_journal
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.space import build_space
from roofgap.tuning.status import Status
from roofgap.tuning.tune import tune
from roofgap.tuning.winner import Winner
from roofgap.tuning.winners_store import load_all

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SMALL = Problem(n=256, k=1536)
BUDGET = replace(
    BUDGETS["quick"], trial_timeout_s=10.0, compile_timeout_s=20.0, max_rounds=6, face_off_rounds=3
)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Any]:
    with open_gpus([0], BUDGET, policy=MeasurePolicy(), probe=False) as opened:
        yield opened


def run_on(gpu: Any, folder: Path, variant: Any, problem: Problem, strategy: str = "exhaustive") -> Any:
    hello, runners = gpu
    asked = make_request(variant, [problem], hello, strategy, BUDGET, seed=0)
    ((outcome, published),) = tune(
        asked,
        runners,
        journal_path=folder / "run.jsonl",
        winners=folder / "winners",
        date="2026-11-29T12:00:00+00:00",
        observer=Silent(),
    )
    return outcome, published


def test_every_fault_in_one_run_is_named_and_survived(gpu: Any, tmp_path: Path):
    outcome, published = run_on(gpu, tmp_path, FAULTY, SMALL)
    trials = [entry.data["trial"] for entry in read_journal(tmp_path / "run.jsonl") if entry.kind == "trial"]
    found = {trial["config"]["fault"]: (trial["status"], trial["evidence"]) for trial in trials}
    assert {fault: status for fault, (status, _) in found.items()} == FAULTS, found
    assert published.path is not None
    assert outcome.winner.config["fault"] == "none"
    assert outcome.winner.rel_error < 1e-2
    assert len(EXPECTED) == len(trials)


def test_good_illegal_good(gpu: Any, tmp_path: Path):
    """The config after a fault is as right as the one before it, in another process."""
    hello, (runner,) = gpu
    space_of = make_request(FAULTY, [SMALL], hello, "exhaustive", BUDGET, seed=0)
    space = build_space(FAULTY, SMALL, space_of.limits)
    runner.quarantine = {}
    by_fault = {config.to_dict()["fault"]: config for config in space.configs}
    runner.begin(space, {})
    (before,) = runner.explore([by_fault["none"]])
    (fault,) = runner.explore([by_fault["illegal_access"]])
    runner.begin(space, {})
    (after,) = runner.explore([by_fault["none"]])
    assert [trial.status for trial in (before, fault, after)] == [Status.OK, Status.ILLEGAL_ACCESS, Status.OK]
    assert after.rel_error == pytest.approx(before.rel_error)


def test_the_worker_finds_what_was_compiled_for_it(gpu: Any):
    """Nothing is compiled twice: after the compilers are through, a trial adds no kernel to the cache."""
    hello, (runner,) = gpu
    variant = get_variant("v3")
    limits = make_request(variant, [SMALL], hello, "racing", BUDGET, seed=0).limits
    space = build_space(variant, SMALL, limits)
    cache = Path(runner._worker._settings.cache)
    configs = list(space.configs[:: max(1, len(space.configs) // 6)])
    runner.begin(space, {})
    list(runner._farm.compile(variant, SMALL, configs))
    before = {path.name for path in cache.iterdir() if any(path.glob("*.cubin"))}
    trials = list(runner.explore(configs))
    after = {path.name for path in cache.iterdir() if any(path.glob("*.cubin"))}
    assert before == after
    assert any(trial.status is Status.OK for trial in trials)


@pytest.mark.parametrize("variant", ["v2", "v3"])
def test_tuning_publishes_and_a_finished_run_resumes(gpu: Any, tmp_path: Path, variant: str):
    outcome, published = run_on(gpu, tmp_path, get_variant(variant), SMALL, "racing")
    assert published.path is not None, published
    winner = next(iter(load_all(tmp_path / "winners").values()))
    assert isinstance(winner, Winner) and winner == outcome.winner
    assert winner.default is not None and winner.default.ratio >= 1 / (1 + winner.tie_band)
    assert max(reading.ratio for reading in winner.tie_set) <= 1.02
    assert winner.baselines["torch"].latency_us is not None
    again, said = run_on(gpu, tmp_path, get_variant(variant), SMALL, "racing")
    assert again == outcome and said.reason in ("unchanged", "published")  # the latter without NVML
