from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from roofgap.cli.main import app
from roofgap.cli.targets import numbers_of, problems_of
from roofgap.kernels.config import KernelConfig
from roofgap.kernels.registry import get_variant
from roofgap.kernels.variant import Limits
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning import winners_store
from roofgap.tuning.lookup import current_provenance, identity_of
from roofgap.tuning.measure.policy import CHAINED
from roofgap.tuning.results import make_results
from roofgap.tuning.scripted import ScriptedRunner
from roofgap.tuning.status import Status
from roofgap.tuning.sweep import sweep_rows
from roofgap.tuning.trial import Trial
from roofgap.tuning.winner import Reading, Winner
from roofgap.tuning.worker import Hello

RUN = CliRunner()
V2 = get_variant("v2")
PROBLEM = Problem(n=256, k=512)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(winners_store.ENVIRONMENT, str(tmp_path / "winners"))
    monkeypatch.setattr(winners_store, "user_folder", lambda: tmp_path / "user")
    monkeypatch.setattr(winners_store, "shipped_folder", lambda: None)


def error_of(*arguments: str) -> RoofgapError:
    result = RUN.invoke(app, list(arguments))
    assert isinstance(result.exception, RoofgapError), result.output
    return result.exception


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("record", [[], ["--record-sweep", "out"], ["--strategy", "racing,exhaustive"]])
def test_without_a_gpu_the_error_points_at_what_works(tmp_path: Path, record: list[str]):
    error = error_of("tune", "1536x1536", "--variant", "v2", *record)
    assert "needs a GPU" in str(error) and "--replay" in str(error) and "inspect" in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune"], "needs SHAPE"),
        (["tune", "1536x1536"], "--variant"),
        (["tune", "1536x1536", "--variant", "v2", "--gpus", "x"], "gpus"),
        (["tune", "1536x1536", "--variant", "v2", "--strategy", "luck"], "luck"),
        (["tune", "--replay", "nowhere.json"], "nowhere.json"),
        (["tune", "--replay", "nowhere.json", "--seeds", "0"], "seeds"),
        (["tune", "--replay", "nowhere.json", "--strategy", "luck"], "luck"),
        (["winners", "explain", "8x8", "--variant", "v2", "--gpu", "h200", "--m", "0"], "m='0'"),
        (["winners", "explain", "8x8", "--variant", "nope", "--gpu", "h200"], "nope"),
        (["winners", "merge", "nowhere", "there"], "nowhere"),
        (["winners", "export", "--out", "t4.json", "--run", "none"], "none"),
        (["winners", "export", "--out", "t4.json", "--run", "../x"], "../x"),
    ],
)
def test_bad_input_is_one_error(arguments: list[str], said: str):
    assert said in str(error_of(*arguments))


def sweep_file(folder: Path) -> Path:
    trials = {
        config.key: Trial(
            config=config.to_dict(), status=Status.OK, latency_us=1.0 + 0.01 * at, p20_us=1.0, p80_us=1.1
        )
        for at, config in enumerate(V2.configs(PROBLEM, Limits()))
    }
    rows = sweep_rows("v2", PROBLEM, trials, None, V2.default_config(PROBLEM).key)
    path = folder / "h200" / "v2" / f"{PROBLEM.key}.json"
    make_results("h200", {}, rows).save(path)
    return path


def test_replay_compares_all_strategies(tmp_path: Path):
    sweep_file(tmp_path / "sweeps")
    arguments = ["tune", "--replay", str(tmp_path / "sweeps"), "--strategy", "all", "--seeds", "1"]
    result = RUN.invoke(app, [*arguments, "--budget", "quick", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert {row["strategy"] for row in document["summary"]} == {"racing", "local", "random", "exhaustive"}
    assert all("worst_regret_pct" in row and "median_trials" in row for row in document["rows"])
    table = RUN.invoke(app, [*arguments, "--budget", "quick"])
    assert "median_regret_pct" in table.stdout and "racing" in table.stdout


def a_winner() -> Winner:
    config = V2.default_config(PROBLEM)
    return Winner(
        identity=identity_of(V2, PROBLEM, "h200"),
        provenance=current_provenance(V2, PROBLEM),
        config=config.to_dict(),
        latency_us=1.5,
        p20_us=1.4,
        p80_us=1.6,
        tie_band=0.02,
        tie_set=(Reading(config=config.key, latency_us=1.5, ratio=1.0),),
    )


def test_winners_show_check_explain_export_merge(tmp_path: Path):
    folder = tmp_path / "winners"
    assert "no winners" in RUN.invoke(app, ["winners", "show"]).stdout
    winners_store.save(folder, a_winner())
    (row,) = json.loads(RUN.invoke(app, ["winners", "show", "--json"]).stdout)
    assert (row["problem"], row["latency_us"]) == (PROBLEM.key, 1.5)

    explained = RUN.invoke(app, ["winners", "explain", "256x512", "--variant", "v2", "--gpu", "NVIDIA H200"])
    assert "hit" in explained.stdout and "1.500 us" in explained.stdout

    assert RUN.invoke(app, ["winners", "export", "--out", "t4.json"]).exit_code == 0
    (result,) = json.loads(Path("t4.json").read_text())["results"]
    assert result["times"]["runtimes"] == [0.0015]

    assert "1 copied" in RUN.invoke(app, ["winners", "merge", str(folder), "other"]).stdout
    assert "0 copied" in RUN.invoke(app, ["winners", "merge", str(folder), "other"]).stdout

    # No driver here, so that no winner can be called validated.
    (checked,) = json.loads(RUN.invoke(app, ["winners", "check", "--json"]).stdout)
    assert checked["verdict"] == ("validated" if torch.cuda.is_available() else "unvalidated")
    winners_store.path_in(folder, a_winner().identity).write_text("{")
    result = RUN.invoke(app, ["winners", "check"])
    assert result.exit_code == 1 and "damaged" in result.stdout
    assert "damaged" in str(error_of("winners", "show"))


def valley(config: KernelConfig) -> float:
    values = config.to_dict()
    return (
        3.0
        + 0.3 * abs(math.log2(int(values["block_n"])) - 6)
        + 0.2 * abs(math.log2(int(values["num_warps"])) - 2)
    )


@pytest.fixture
def scripted_gpu(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedRunner]:
    """``roofgap tune`` finds a GPU here: a script."""
    runners = [ScriptedRunner(valley, noise=lambda config: 0.003, baselines_us={"torch": 9.0})]
    hello = Hello(
        name="NVIDIA H200",
        uuid="GPU-0",
        versions={"driver": "1", "cuda": "13.0", "torch": "2.11", "triton": "3.6"},
        target=("cuda", 90, 32),
        sm_count=132,
        shared_bytes=232448,
        warp_size=32,
        max_cluster=8,
        read_gbps=4000.0,
    )

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[tuple[Hello, list[ScriptedRunner]]]:
        yield hello, runners

    monkeypatch.setattr("roofgap.tuning.gpu_session.require_gpu", lambda indices: None)
    monkeypatch.setattr("roofgap.tuning.gpu_session.open_gpus", opened)
    monkeypatch.setattr("os.fsync", lambda handle: None)
    return runners


def test_tune_publishes_prints_and_resumes(tmp_path: Path, scripted_gpu: list[ScriptedRunner]):
    arguments = ["tune", "256x512", "--variant", "v2", "--m", "1,2", "--budget", "quick", "--run", "one"]
    result = RUN.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert (
        "published" in result.stdout
        and "over_torch" in result.stdout
        and "waiting for compilers" in result.stdout
    )
    assert "best" in result.stderr
    files = sorted((tmp_path / "winners").rglob("*.json"))
    assert [path.parent.parent.name for path in files] == ["h200", "h200"]
    launched = len(scripted_gpu[0].launched)
    assert "exists" in str(error_of(*arguments))

    again = RUN.invoke(app, ["tune", "--resume", "one", "--json"])
    assert again.exit_code == 0, again.output
    document = json.loads(again.stdout)
    assert [row["said"] for row in document["rows"]] == ["unchanged", "unchanged"]
    assert len(document["outcomes"]) == 2 and len(scripted_gpu[0].launched) == launched

    assert RUN.invoke(app, ["winners", "export", "--out", "t4.json", "--run", "one"]).exit_code == 0
    assert len(json.loads(Path("t4.json").read_text())["results"]) == launched


def test_chained_winners_are_filed_apart_and_resumed_as_such(
    tmp_path: Path, scripted_gpu: list[ScriptedRunner]
):
    arguments = ["tune", "256x512", "--variant", "v2", "--budget", "quick", "--run", "c", "--chained"]
    assert RUN.invoke(app, arguments).exit_code == 0
    (path,) = (tmp_path / "winners").rglob("*.json")
    assert path.name == f"{PROBLEM.key}@{CHAINED.key}.json"
    launched = len(scripted_gpu[0].launched)
    again = json.loads(RUN.invoke(app, ["tune", "--resume", "c", "--json"]).stdout)
    assert [row["said"] for row in again["rows"]] == ["unchanged"]
    assert len(scripted_gpu[0].launched) == launched


def test_tune_two_strategies_are_set_beside_each_other(scripted_gpu: list[ScriptedRunner]):
    arguments = [
        "tune",
        "256x512",
        "--variant",
        "v2",
        "--strategy",
        "racing,exhaustive",
        "--run",
        "two",
        "--json",
    ]
    (row,) = json.loads(RUN.invoke(app, arguments).stdout)["audit"]
    assert row["agree"] is True and abs(row["regret_pct"]) < 2
    assert row["first_trials"] < row["second_trials"]


def test_tune_buckets(scripted_gpu: list[ScriptedRunner]):
    arguments = [
        "tune",
        "256x512",
        "--variant",
        "gemm",
        "--m",
        "1,16",
        "--check-buckets",
        "--budget",
        "quick",
        "--json",
    ]
    document = json.loads(RUN.invoke(app, [*arguments, "--no-publish", "--json"]).stdout)
    assert [row["problem"] for row in document["audit"]] == [PROBLEM.with_m(9).key]
    assert not Path("winners").exists()


def test_tune_records_a_sweep_that_can_be_replayed(scripted_gpu: list[ScriptedRunner]):
    recorded = RUN.invoke(app, ["tune", "256x512", "--variant", "v2", "--record-sweep", "sweeps"])
    assert recorded.exit_code == 0, recorded.output
    replayed = RUN.invoke(
        app, ["tune", "--replay", "sweeps", "--strategy", "racing,random", "--seeds", "1", "--json"]
    )
    assert {row["strategy"] for row in json.loads(replayed.stdout)["summary"]} == {"racing", "random"}


def test_a_variant_that_cannot_is_said_and_left_out(scripted_gpu: list[ScriptedRunner]):
    result = RUN.invoke(app, ["tune", "256x512", "--variant", "v2", "--m", "1,4096", "--budget", "quick"])
    limit = V2.max_m
    assert ("left out" in result.stderr) == (limit is not None and limit < 4096)


def test_targets():
    assert numbers_of("m", "1,16,1") == [1, 16]
    assert [problem.m for problem in problems_of("8x16", "1,2")] == [1, 2]
    both = problems_of("8x16, 16x16,8x16", "1")
    assert [(problem.n, problem.k) for problem in both] == [(8, 16), (16, 16)]
    whole, fused = problems_of("qwen2.5-1.5b", "1"), problems_of("qwen2.5-1.5b", "1", fused=True)
    assert (8960, 1536) in {(problem.n, problem.k) for problem in whole}
    assert (17920, 1536) in {(problem.n, problem.k) for problem in fused}
    both = problems_of("qwen2.5-1.5b", "1", also_fused=True)
    assert both[: len(whole)] == whole and set(both) == {*whole, *fused} and len(set(both)) == len(both)
    assert len(set(whole)) == len(whole)
