"""The GPU runner with a worker that acts: everything about processes is real, only the device is not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acting_worker import acting_worker, broken_worker
from tuning_toys import PROBLEM, TOY, ToyConfig, request, rugged, run

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.variant import Limits
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning import gpu_runner
from roofgap.tuning.budget import BUDGETS
from roofgap.tuning.compile import Compiled
from roofgap.tuning.gpu_runner import GpuRunner, Worker
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.space import Space, build_space
from roofgap.tuning.status import Status
from roofgap.tuning.storage import digest
from roofgap.tuning.worker import Settings

BUDGET = replace(BUDGETS["quick"], trial_timeout_s=1.0)


class InstantFarm:
    """Compiles nothing; a config's code is its own, but for the reduction that a single slice does not have."""

    def __init__(self, compiled: dict[str, Compiled] | None = None) -> None:
        self._compiled = compiled or {}

    def compile(
        self, variant: Any, problem: Any, configs: Sequence[KernelConfig]
    ) -> Iterator[tuple[KernelConfig, Compiled]]:
        for config in configs:
            yield (
                config,
                self._compiled.get(config.key, Compiled(code_hash=digest(config.key), shared_bytes=1024)),
            )


@pytest.fixture(autouse=True)
def _forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked workers start at once. One test spawns them, as a run does."""
    if "spawned" not in request.node.name:
        monkeypatch.setattr(gpu_runner, "get_context", lambda method: multiprocessing.get_context("fork"))


@pytest.fixture
def space() -> Space:
    return build_space(TOY, PROBLEM, Limits())


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    settings = Settings(
        gpu=0, cache=str(tmp_path / "log"), policy=MeasurePolicy(), seed=0, parent=os.getpid()
    )
    worker = Worker(settings, acting_worker)
    yield worker
    worker.kill()


def make(worker: Worker, farm: Any = None, **budget: Any) -> GpuRunner:
    compiling: Any = farm or InstantFarm()  # stands in for the processes
    return GpuRunner(worker, compiling, replace(BUDGET, **budget))


GOOD = ToyConfig(num_warps=4)
CRASH, HANG, FAULT = (ToyConfig(num_warps=n, num_stages=2) for n in (8, 2, 1))


def log_of(tmp_path: Path) -> list[list[str]]:
    return [line.split(" ") for line in (tmp_path / "log").read_text().splitlines()]


@pytest.mark.parametrize(
    ("bad", "status", "said"),
    [
        (CRASH, Status.CRASH, "signal 11 (SIGSEGV) during trial"),
        (HANG, Status.TIMEOUT, "no answer to trial after 1 s"),
        (FAULT, Status.ILLEGAL_ACCESS, "illegal memory access"),
    ],
)
def test_good_bad_good(
    tmp_path: Path, space: Space, worker: Worker, bad: ToyConfig, status: Status, said: str
):
    """The bad one is named, its process is gone before the next launch, and the next one is right."""
    runner = make(worker)
    runner.begin(space, {})
    first_pid = worker.pid
    seen = []
    for trial in runner.explore([GOOD, bad, replace(GOOD, block_n=64)]):
        seen.append(trial)
        if trial.status is status:
            assert first_pid is not None and not Path(f"/proc/{first_pid}").exists()
            assert worker.pid is None
    assert [trial.status for trial in seen] == [Status.OK, status, Status.OK]
    assert said in (seen[1].evidence or "")
    assert seen[0].latency_us == rugged(GOOD)
    assert worker.replaced == 1
    pids = [pid for pid, _ in log_of(tmp_path)]
    assert pids[0] == pids[1] == str(first_pid) != pids[2]


def test_a_crash_in_a_round_is_blamed_on_the_one(space: Space, worker: Worker):
    runner = make(worker)
    runner.begin(space, {})
    answer = runner.duel([GOOD.key, CRASH.key, "@torch"], 0)
    assert answer.latency_us == (rugged(GOOD), None, 9.0)
    assert list(answer.evidence) == [CRASH.key]
    assert answer.evidence[CRASH.key].startswith("crash: ")


def test_machine_code_in_quarantine_is_not_launched(tmp_path: Path, space: Space, worker: Worker):
    runner = make(worker)
    runner.quarantine[digest(CRASH.key)] = "crashed before"
    runner.begin(space, {})
    (trial,) = runner.explore([CRASH])
    assert (trial.status, trial.evidence) == (Status.QUARANTINED, "crashed before")
    assert not (tmp_path / "log").exists()


def test_equal_code_is_timed_once(tmp_path: Path, space: Space, worker: Worker):
    twin = replace(GOOD, num_stages=3)
    farm = InstantFarm({key: Compiled(code_hash="same", shared_bytes=0) for key in (GOOD.key, twin.key)})
    runner = make(worker, farm)
    runner.begin(space, {})
    trials = list(runner.explore([GOOD, twin]))
    assert [trial.status for trial in trials] == [Status.OK, Status.DUPLICATE]
    assert GOOD.key in (trials[1].evidence or "")
    assert len(log_of(tmp_path)) == 1
    runner.begin(space, {"same": "a config of the journal"})
    (again,) = runner.explore([GOOD])
    assert again.status is Status.DUPLICATE


@pytest.mark.parametrize(
    ("compiled", "status"),
    [
        (Compiled(code_hash="x", shared_bytes=1 << 20), Status.PRUNED),
        (Compiled(code_hash="x", spill_bytes=8, shared_bytes=0), Status.PRUNED),
        (Compiled(status=Status.COMPILE_CRASH, evidence="signal 6 (SIGABRT)"), Status.COMPILE_CRASH),
    ],
)
def test_what_need_not_run_does_not(
    tmp_path: Path, space: Space, worker: Worker, compiled: Compiled, status: Status
):
    config = replace(GOOD, num_stages=3)
    runner = make(worker, InstantFarm({config.key: compiled}))
    runner.begin(space, {})
    (trial,) = runner.explore([config])
    assert trial.status is status and trial.evidence
    assert not (tmp_path / "log").exists()


def test_a_spilling_default_is_timed_all_the_same(space: Space, worker: Worker):
    default = space.default
    runner = make(worker, InstantFarm({default.key: Compiled(code_hash="x", spill_bytes=8, shared_bytes=0)}))
    runner.begin(space, {})
    ((trial),) = runner.explore([default])
    assert trial.status is not Status.PRUNED


def test_a_whole_run_survives_every_kind_of_fault(tmp_path: Path, worker: Worker, monkeypatch):
    good = [replace(GOOD, num_stages=1, block_n=n, num_warps=w) for n in (32, 64) for w in (1, 2, 4)]
    few = [good[0], CRASH, good[1], HANG, good[2], FAULT, *good[3:]]
    monkeypatch.setattr(type(TOY), "configs", lambda *_: iter(few))
    asked = request(strategy="exhaustive", budget=replace(BUDGET, max_rounds=6, face_off_rounds=1))
    ((outcome, published),) = run(tmp_path, asked, make(worker))
    assert published.path is not None
    # The default is a config of its own and runs as well.
    assert outcome.statuses == {"ok": 7, "crash": 1, "timeout": 1, "illegal_access": 1}
    assert outcome.winner.config_key == min(good, key=rugged).key
    assert (outcome.roof_us, outcome.probe_us) == (1.0, 2.0)
    assert worker.replaced == 3


def test_kill_of_the_worker_from_outside(space: Space, worker: Worker):
    runner = make(worker)
    runner.begin(space, {})
    trials = runner.explore([GOOD, replace(GOOD, block_n=64)])
    assert next(trials).status is Status.OK
    assert worker.pid is not None
    old = worker.pid
    os.kill(old, signal.SIGKILL)
    while worker.is_alive:
        time.sleep(0.01)
    assert next(trials).status is Status.OK, "no config is blamed for what happened between two trials"
    assert worker.pid != old


def test_kill_of_the_worker_during_a_trial(space: Space, worker: Worker):
    runner = make(worker, trial_timeout_s=30.0)
    runner.begin(space, {})
    pid = worker.pid
    assert pid is not None
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    (lost,) = runner.explore([HANG])
    assert lost.status is Status.CRASH and "signal 9 (SIGKILL)" in (lost.evidence or "")
    (again,) = runner.explore([GOOD])
    assert again.status is Status.OK


def test_a_spawned_worker(space: Space, worker: Worker):
    runner = make(worker)
    runner.begin(space, {})
    assert [trial.status for trial in runner.explore([GOOD])] == [Status.OK]


def test_a_gpu_that_fails_the_sentinel_stops_the_run(tmp_path: Path, space: Space):
    settings = Settings(gpu=0, cache="", policy=MeasurePolicy(), seed=0, parent=os.getpid())
    worker = Worker(settings, broken_worker)
    with pytest.raises(RoofgapError, match="256 ones"):
        make(worker).begin(space, {})
    assert worker.pid is None


def test_no_trial_while_the_old_process_lives(space: Space, worker: Worker, monkeypatch):
    """A worker that SIGKILL does not end (stuck in the driver) retires the GPU instead of being overlapped."""
    runner = make(worker)
    runner.begin(space, {})
    pid = worker.pid
    monkeypatch.setattr(gpu_runner, "KILL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    with pytest.raises(RoofgapError, match="stuck in the driver"):
        list(runner.explore([HANG, GOOD]))
    monkeypatch.undo()
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
