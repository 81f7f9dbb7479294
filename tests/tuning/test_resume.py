"""Kills at every kind of moment: nothing acknowledged is lost, and the resumed run ends like the uninterrupted one."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from tuning_toys import PROBLEMS, Silent, ToyConfig, request, rugged, run, table

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning import journal as journal_module
from roofgap.tuning.budget import Budget
from roofgap.tuning.journal import read_journal
from roofgap.tuning.scripted import ScriptedRunner
from roofgap.tuning.space import Space
from roofgap.tuning.status import Status
from roofgap.tuning.tune import tune

CRASHER = ToyConfig(num_warps=2, block_n=64).key
TWIN = ToyConfig(num_warps=2, block_n=64, num_stages=3).key
TRIALS = 14
TINY = Budget(name="tiny", trials=TRIALS, first=8, beam=2, finalists=3, max_rounds=7, face_off_rounds=2)
ASKED = request(PROBLEMS[:2], budget=TINY)
KILL_POINTS = 500


def runner(kind: type[ScriptedRunner] = ScriptedRunner) -> ScriptedRunner:
    return kind(
        rugged,
        noise=lambda config: 0.01,
        faults={CRASHER: (Status.CRASH, "signal 9")},
        baselines_us={"torch": 9.0},
    )


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the package may catch it and go on."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], bytes, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("whole")
    results = run(folder, ASKED, runner())
    return table(results), (folder / "run.jsonl").read_bytes(), files(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "winners").rglob("*.json"))}


def acknowledged(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("chunk", range(10))
def test_killed_while_writing(tmp_path: Path, monkeypatch, uninterrupted, chunk: int):
    """500 random (line, byte) points: the process dies having written a part of a line, all of it, or not synced it."""
    expected, whole, winners = uninterrupted
    lines = whole.count(b"\n")
    chance = random.Random(chunk)
    for number in range(KILL_POINTS // 10):
        folder = tmp_path / str(number)
        fatal, share, after_sync = chance.randrange(lines), chance.random(), chance.random() < 0.3
        count = 0

        def write(handle: int, data: bytes, *, fatal=fatal, share=share, after_sync=after_sync) -> None:
            nonlocal count
            mine, count = count, count + 1
            if mine != fatal:
                os.write(handle, data)
                return
            os.write(handle, data if after_sync else data[: int(share * len(data))])
            raise Killed

        monkeypatch.setattr(journal_module, "write_all", write)
        with pytest.raises(Killed):
            run(folder, ASKED, runner())
        monkeypatch.undo()
        before = acknowledged(folder / "run.jsonl")
        kept = read_journal(folder / "run.jsonl")
        assert before == fatal + after_sync
        again = runner()
        assert table(run(folder, ASKED, again)) == expected
        assert (folder / "run.jsonl").read_bytes() == whole
        assert files(folder) == winners
        assert len(again.launched) == 2 * TRIALS - sum(entry.kind == "trial" for entry in kept)


def test_killed_between_decision_and_publication(tmp_path: Path, monkeypatch, uninterrupted):
    def dies(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("roofgap.tuning.winners_store.publish", dies)
    with pytest.raises(Killed):
        run(tmp_path, ASKED, runner())
    monkeypatch.undo()
    assert table(run(tmp_path, ASKED, runner())) == uninterrupted[0]
    assert files(tmp_path) == uninterrupted[2]


def slow_child(folder: Path) -> None:
    """A run whose lines reach the disk in two halves with a pause between them."""
    real = journal_module.write_all

    def slow(handle: int, data: bytes) -> None:
        real(handle, data[: len(data) // 2])
        time.sleep(0.01)
        real(handle, data[len(data) // 2 :])

    journal_module.write_all = slow
    run(folder, ASKED, runner())


def test_sigkill_of_the_driver(tmp_path: Path, uninterrupted):
    """A real process and a real SIGKILL at random moments, again and again until the run is through."""
    expected, whole, winners = uninterrupted
    path = tmp_path / "run.jsonl"
    chance, kills, kept = random.Random(5), 0, 0
    for _ in range(40):
        child = multiprocessing.get_context("fork").Process(target=slow_child, args=(tmp_path,))
        child.start()
        child.join(timeout=0.05 + 0.15 * chance.random())
        if child.is_alive():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.join()
        now = acknowledged(path)
        assert now >= kept
        assert now == 0 or whole.startswith(b"".join(path.read_bytes().splitlines(True)[:now]))
        kept = now
    assert kills > 1
    assert table(run(tmp_path, ASKED, runner())) == expected
    assert path.read_bytes() == whole
    assert files(tmp_path) == winners


def test_a_finished_run_is_resumed_without_the_device(tmp_path: Path, uninterrupted):
    run(tmp_path, ASKED, runner())
    idle = runner()
    assert table(run(tmp_path, ASKED, idle)) == uninterrupted[0]
    assert idle.launched == []


def test_dangerous_code_is_not_launched_again(tmp_path: Path):
    """The crash is acknowledged, the driver dies, and the resumed run knows the code under its other name too."""

    def twins() -> ScriptedRunner:
        crash = dict.fromkeys((CRASHER, TWIN), (Status.CRASH, "signal 9"))
        return ScriptedRunner(
            rugged, faults=crash, code=lambda config: config.key.replace("num_stages=3", "num_stages=2")
        )

    class Stop(Silent):
        def tried(self, problem, trial, replayed):
            if trial.status is Status.CRASH:
                raise Killed

    asked = request(strategy="exhaustive")
    with pytest.raises(Killed):
        tune(asked, [twins()], journal_path=tmp_path / "run.jsonl", winners=None, date="d", observer=Stop())
    again = twins()
    ((outcome, _),) = run(tmp_path, asked, again, publish=False)
    assert (outcome.statuses["crash"], outcome.statuses["quarantined"]) == (1, 1)
    assert not {CRASHER, TWIN} & {key for _, key in again.launched}
    assert "crash as" in outcome.winner.rejected["quarantined"].evidence


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (request(PROBLEMS[:2], seed=1, budget=TINY), "seed is 0, wanted 1"),
        (request(PROBLEMS[:2], strategy="local", budget=TINY), "strategy is racing, wanted local"),
        (request(PROBLEMS[:1], budget=TINY), "shapes is"),
    ],
)
def test_a_journal_of_another_request_is_refused(tmp_path: Path, other, said: str):
    run(tmp_path, ASKED, runner())
    with pytest.raises(RoofgapError, match=said):
        run(tmp_path, other, runner())


def test_a_changed_kernel_is_not_mixed_into_an_old_run(tmp_path: Path, monkeypatch):
    run(tmp_path, ASKED, runner())
    monkeypatch.setattr("roofgap.tuning.tune.source_hash", lambda variant: "another")
    with pytest.raises(RoofgapError, match="source or the space has changed"):
        run(tmp_path, ASKED, runner())


def test_two_tuners_in_one_folder(tmp_path: Path):
    """Two runs with journals of their own publish into the same winners at once; every file is whole, none is lost."""
    results, errors = {}, []
    all_began = threading.Barrier(3, timeout=60)  # each has looked at the empty folder before any publishes

    class Together(ScriptedRunner):
        waited = False

        def begin(self, space: Space, timed: dict[str, str]) -> None:
            if not self.waited:
                all_began.wait()
                self.waited = True
            super().begin(space, timed)

    def one(name: str) -> None:
        try:
            results[name] = run(tmp_path, ASKED, runner(Together), name=name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    reasons = [published.reason for name in results for _, published in results[name]]
    assert reasons.count("published") == 2
    assert len(files(tmp_path)) == 2


def test_several_runners_share_the_problems(tmp_path: Path, uninterrupted):
    both = [runner(), runner()]
    results = tune(
        ASKED,
        both,
        journal_path=tmp_path / "run.jsonl",
        winners=None,
        date="2026-11-29T12:00:00+00:00",
        observer=Silent(),
    )
    assert [outcome.problem for outcome, _ in results] == [problem.key for problem in PROBLEMS[:2]]
    assert {key for one in both for key, _ in one.launched} == {problem.key for problem in PROBLEMS[:2]}


def test_a_full_disk_stops_the_run_and_it_resumes(tmp_path: Path, monkeypatch, uninterrupted):
    real, count = os.fsync, 0

    def full(handle: int) -> None:
        nonlocal count
        count += 1
        if count > 15:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RoofgapError, match="No space left"):
        run(tmp_path, ASKED, runner())
    monkeypatch.undo()
    assert len(read_journal(tmp_path / "run.jsonl")) > 10
    assert table(run(tmp_path, ASKED, runner())) == uninterrupted[0]
