"""Recorded sweeps and strategies compared on them. The sweeps here are made up; recorded ones live under results/."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuning_toys import request, run

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.registry import get_variant
from roofgap.kernels.variant import Limits
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.budget import BUDGETS, Budget
from roofgap.tuning.replay import compare_strategies, replay
from roofgap.tuning.scripted import ScriptedRunner
from roofgap.tuning.search.registry import STRATEGIES
from roofgap.tuning.status import Status
from roofgap.tuning.sweep import Sweep, load_sweep, record, sweep_path, sweep_rows
from roofgap.tuning.t4 import from_trials, from_winners
from roofgap.tuning.trial import Trial

V2 = get_variant("v2")
PROBLEM = Problem(n=1536, k=1536)
QUICK = Budget(name="quick", trials=40, first=20, beam=3, finalists=5, max_rounds=7, face_off_rounds=2)


def latency(config: KernelConfig) -> float:
    values = config.to_dict()
    away = abs(math.log2(int(values["block_n"])) - 6) + abs(math.log2(int(values["num_warps"])) - 2)
    return 3.0 * (1 + 0.1 * away + 0.03 * abs(math.log2(int(values["block_k"])) - 7))


WRONG = next(c for c in V2.configs(PROBLEM, Limits()) if c.num_warps == 1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of v2 written by the path that a GPU's takes: journal, then file."""
    folder = tmp_path_factory.mktemp("sweep")
    runner = ScriptedRunner(
        latency,
        noise=lambda config: 0.005,
        faults={WRONG.key: (Status.WRONG, "12 output words still hold the poison")},
        baselines_us={"torch": 9.0},
    )
    asked = request((PROBLEM,), strategy="exhaustive", variant=V2)
    results = run(folder, asked, runner, publish=False)
    (path,) = record(
        folder, folder / "run.jsonl", asked, [outcome for outcome, _ in results], {"torch": "2.11"}
    )
    assert path == sweep_path(folder, "h200", "v2", PROBLEM)
    return path


def test_what_was_recorded_is_read_back(recorded: Path):
    sweep = load_sweep(recorded)
    assert (sweep.gpu, sweep.variant, sweep.problem) == ("h200", V2, PROBLEM)
    assert set(sweep.trials) == {config.key for config in V2.configs(PROBLEM, Limits())}
    assert sweep.trials[WRONG.key].status is Status.WRONG
    assert sweep.default == V2.default_config(PROBLEM).key
    assert sweep.baselines_us == {"torch": 9.0}
    assert sweep.best_us == pytest.approx(min(map(latency, V2.configs(PROBLEM, Limits()))), rel=0.02)


def test_the_file_is_small_and_flat(recorded: Path):
    document = json.loads(recorded.read_text())
    assert set(document) == {"schema", "gpu", "versions", "date", "commit", "command", "rows"}
    assert all(not isinstance(value, dict | list) for row in document["rows"] for value in row.values())
    assert recorded.stat().st_size < 300 * len(document["rows"])


def test_a_duplicate_is_recorded_with_the_time_of_its_twin():
    ok = Trial(config={"a": 1}, status=Status.OK, latency_us=2.0, code_hash="h")
    twin = Trial(config={"a": 2}, status=Status.DUPLICATE, evidence="as a=1", code_hash="h")
    rows = sweep_rows("v2", PROBLEM, {"a=1": ok, "a=2": twin}, None, "a=1")
    assert [(row["config"], row["status"], row["latency_us"]) for row in rows] == [
        ("a=1", "ok", 2.0),
        ("a=2", "ok", 2.0),
    ]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_replays_repeat_themselves(recorded: Path, strategy: str):
    sweep = load_sweep(recorded)
    first, again = (replay(sweep, strategy, QUICK, seed=3) for _ in range(2))
    assert first == again
    assert first.regret == pytest.approx(sweep.regret(V2.config_type.parse(first.pick)))
    assert first.trials <= (len(sweep.trials) if strategy == "exhaustive" else 40)


def test_strategies_side_by_side(recorded: Path):
    rows, summary = compare_strategies([load_sweep(recorded)], list(STRATEGIES), QUICK, seeds=2)
    cells: list[dict[str, Any]] = [{**row} for row in rows]
    assert {row["strategy"] for row in rows} == set(STRATEGIES) and len(summary) == 4
    by_name: dict[Any, dict[str, Any]] = {row["strategy"]: {**row} for row in summary}
    assert by_name["exhaustive"]["median_regret_pct"] <= 1.0
    assert by_name["racing"]["median_trials"] < by_name["exhaustive"]["median_trials"]
    assert all(row["worst_regret_pct"] >= row["median_regret_pct"] >= 0 for row in cells)


def test_the_recorded_space_is_searched_even_if_the_variant_has_moved_on(recorded: Path, monkeypatch):
    monkeypatch.setattr(type(V2), "space", lambda self, problem: {"block_n": (64,)})
    sweep = load_sweep(recorded)
    assert len(sweep.space().configs) == len(sweep.trials)


def _edit(recorded: Path, tmp_path: Path, change: Any) -> Path:
    document = json.loads(recorded.read_text())
    change(document)
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(schema=99),
        lambda d: d.update(rows=[]),
        lambda d: d["rows"][0].pop("n"),
        lambda d: d["rows"][0].update(variant="gone"),
        lambda d: d["rows"][1].update(status="splendid"),
        lambda d: d["rows"][1].update(config="block_n"),
        lambda d: [row.pop("default", None) for row in d["rows"]],
        lambda d: d.update(
            rows=[{**row, "status": "wrong", "evidence": "e", "latency_us": None} for row in d["rows"]]
        ),
    ],
)
def test_a_damaged_sweep_is_one_error_that_names_the_file(recorded: Path, tmp_path: Path, change: Any):
    path = _edit(recorded, tmp_path, change)
    with pytest.raises(RoofgapError):
        load_sweep(path)


def test_t4_documents_have_what_the_schema_requires(recorded: Path):
    sweep = load_sweep(recorded)
    document = from_trials(((PROBLEM.key, trial) for trial in sweep.trials.values()), "2026-11-29")
    assert document["schema_version"] == "1.0.0" and from_winners([])["results"] == []
    allowed = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
    for result in document["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= set(result)
        assert result["invalidity"] in allowed
        assert (result["invalidity"] == "correct") == bool(result["correctness"])
    (bad,) = [result for result in document["results"] if not result["correctness"]]
    assert bad["invalidity"] == "correctness" and bad["times"]["runtimes"] == []


def test_every_status_has_a_t4_word():
    allowed = {"timeout", "compile", "runtime", "correctness", "constraints"}
    trials = [Trial(config={}, status=one, evidence="e") for one in Status if one is not Status.OK]
    results = from_trials((("p", trial) for trial in trials), "d")["results"]
    assert {result["invalidity"] for result in results} == allowed


def test_one_sweep_with_another_seed_is_another_session(recorded: Path):
    sweep = load_sweep(recorded)
    assert isinstance(sweep, Sweep)
    picks = {replay(sweep, "random", replace(QUICK, trials=12), seed).pick for seed in range(6)}
    assert len(picks) > 1
    assert BUDGETS["quick"].trials == 48
