"""What the worker process does with a config, on a scripted device and in Triton's interpreter."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import pytest
import torch
from hazard_kernels import Accumulating, DirtyConfig

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning import worker as worker_module
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.status import Status
from roofgap.tuning.worker import Settings, _Bench, serve

PROBLEM = Problem(n=64, k=128)
POLICY = MeasurePolicy(min_launches=2, max_launches=2, replays=2, warmup_window=1, warmup_limit=2)
RIGHT = DirtyConfig(block_n=32, block_k=64, num_warps=1, zeroed=True)
DIRTY = DirtyConfig(block_n=32, block_k=64, num_warps=1)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="test_tuner_on_gpu covers it")


class Ticking(ScriptedDevice):
    """Every timed call takes 6 us; ``lost`` is what the next synchronisation raises."""

    lost: Exception | None = None

    def elapsed_us(self, work: Any, *, queued: bool) -> float | None:
        super().elapsed_us(work, queued=queued)
        return 6.0

    def synchronise(self) -> None:
        if self.lost is not None:
            raise self.lost


@pytest.fixture
def bench() -> _Bench:
    made = _Bench(Settings(gpu=0, cache="", policy=POLICY, seed=0, parent=os.getpid()))
    made.device = Ticking()  # type: ignore[assignment]
    made.problem(Accumulating(), PROBLEM)
    return made


def test_a_right_config_is_timed(bench: _Bench):
    reading = bench.trial(RIGHT)
    assert (reading.status, reading.latency_us) == (Status.OK, 3.0)
    assert reading.rel_error is not None and reading.rel_error < 1e-2
    assert reading.reproducible and reading.check_s > 0


def test_a_wrong_one_is_not(bench: _Bench):
    reading = bench.trial(DIRTY)
    assert (reading.status, reading.latency_us) == (Status.WRONG, None)
    assert reading.evidence and reading.check_s > 0


def test_a_fault_that_surfaces_later_is_still_a_fault(bench: _Bench):
    bench.device.lost = RuntimeError("CUDA error: an illegal memory access was encountered")  # type: ignore[attr-defined]
    reading = bench.trial(DIRTY)
    assert reading.status is Status.ILLEGAL_ACCESS and "illegal memory access" in (reading.evidence or "")


def test_a_round_of_configs_and_baseline(bench: _Bench):
    contenders = [(RIGHT.key, RIGHT), ("@torch", None), (DIRTY.key, DIRTY)]
    readings = bench.duel(contenders, 0)
    assert [reading.status for reading in readings] == [Status.OK, Status.OK, Status.WRONG]
    assert [reading.latency_us for reading in readings] == [3.0, 3.0, None]
    kept = dict(bench.prepared)
    assert set(kept) == {RIGHT.key, "@torch"}
    bench.duel(contenders[:2], 1)
    assert bench.prepared == kept
    bench.duel(contenders[:1], 2)
    assert set(bench.prepared) == {RIGHT.key}
    bench.problem(Accumulating(), PROBLEM)
    assert bench.prepared == {}


def test_the_pipe_carries_answers_errors_and_the_end(monkeypatch):
    """``serve`` itself, in a thread: a refused request is an answer, and a closed pipe ends it."""
    monkeypatch.setattr(os, "setpgid", lambda *_: None)
    monkeypatch.setattr(worker_module, "die_with_parent", lambda parent: None)
    monkeypatch.setattr(_Bench, "hello", lambda self: setattr(self, "device", Ticking()))
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    ours, theirs = multiprocessing.Pipe()
    settings = Settings(gpu=0, cache="", policy=POLICY, seed=0, parent=os.getpid())
    thread = threading.Thread(target=serve, args=(theirs, settings))
    thread.start()

    def ask(*message: Any) -> Any:
        ours.send(message)
        assert ours.poll(60)
        return ours.recv()

    assert ask("hello", ()) is None
    assert isinstance(ask("problem", (Accumulating(), PROBLEM.with_m(0))), RoofgapError)
    assert ask("problem", (Accumulating(), PROBLEM)) is None
    assert ask("trial", (RIGHT,)).status is Status.OK
    assert ask("trial", (DIRTY,)).status is Status.WRONG
    ours.close()
    thread.join(10)
    assert not thread.is_alive()
