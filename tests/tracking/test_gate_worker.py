"""The device lane and the live worker on a scripted GPU, and the worker's protocol as a process."""

from __future__ import annotations

import importlib
import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from roofgap.kernels.variant import Limits
from roofgap.shapes.device import Bandwidth
from roofgap.tracking.gate.checkout import Checkout
from roofgap.tracking.gate.live import LiveWorker, WorkerDiedError, cells_of
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.gap import Ceilings
from roofgap.tuning.measure.policy import MeasurePolicy

CELL = ("v2", "64x256", "1")


@pytest.fixture
def lanes(root: Path) -> tuple[ModuleType, ModuleType]:
    """The modules ``_device`` and ``_worker`` of the suite."""
    folder = str(root / "asv_bench")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("benchmarks._device"), importlib.import_module("benchmarks._worker")


@pytest.fixture
def gpu(lanes: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scripted GPU in the place of the real one: every launch takes 4 us, the roof of the cell is 1 us."""
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled here, and the scripted GPU lives on the CPU")
    monkeypatch.setattr(lanes[0], "SAMPLES", 8)
    made = lanes[0].Gpu.__new__(lanes[0].Gpu)
    made.device = ScriptedDevice(l2_bytes=256, work_us=4.0)
    made.policy = MeasurePolicy(min_launches=2, warmup_window=1, warmup_limit=2)
    made.name, made.limits = "h200", Limits()
    made._ceilings = Ceilings(Bandwidth(4800.0, "measured read"), 1.0, None)
    return made


def test_readings_hold_samples_gaps_and_facts(lanes: tuple[ModuleType, ModuleType], gpu: Any) -> None:
    cells = [CELL, ("v99", "64x256", "1"), ("tldot", "64x256", "1")]
    found = lanes[0].readings(cells, gpu)
    assert "no variant v99" in found[cells[1]]["na"]
    for cell in (cells[0], cells[2]):
        assert found[cell]["metrics"]["latency_us"] == pytest.approx([4.0] * 8)
        assert found[cell]["metrics"]["roof_gap"] == pytest.approx([4.0] * 8)
        assert found[cell]["metrics"]["attainable_gap"] is None
        assert found[cell]["facts"]["config_source"] == "default"
        assert 0 < found[cell]["facts"]["rel_error"] < 1e-2
    json.dumps([found[cell] for cell in cells], allow_nan=False)


def test_a_wrong_kernel_has_no_time(
    lanes: tuple[ModuleType, ModuleType], gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = importlib.import_module("roofgap.kernels.registry").VARIANTS
    monkeypatch.setattr(type(variants["v2"]), "plan", lambda *args: [])
    assert "failed" in lanes[0].readings([CELL], gpu)[CELL]


def test_the_worker_answers_line_by_line(
    lanes: tuple[ModuleType, ModuleType], gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_module = lanes[1]
    requests = [
        {"op": "cells", "lane": "device"},
        {"op": "prepare", "cell": list(CELL), "arms": 2},
        {"op": "sample", "arm": 1, "replays": 3},
        {"op": "release"},
        {"op": "sample", "arm": 1, "replays": 3},
        {"op": "prepare", "cell": ["v99", "64x256", "1"], "arms": 2},
        {"op": "readings", "lane": "quality", "cells": [["v99", "64x1536", "fp16 sym"]]},
    ]
    answers = io.StringIO()
    monkeypatch.setattr(worker_module, "Gpu", lambda: gpu)
    worker_module.serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    cells, prepared, sample, released, gone, absent, quality = map(
        json.loads, answers.getvalue().splitlines()
    )
    assert cells["series"] == "device.Cold.sampled_"
    assert prepared["facts"]["launches"] == 2
    assert sample == {"latency_us": pytest.approx(4.0)}
    assert released == {}
    assert "IndexError" in gone["failed"]
    assert "no variant v99" in absent["na"]
    assert "no variant v99" in quality["readings"][0]["na"]


@pytest.fixture
def scripted(tmp_path: Path) -> LiveWorker:
    """A live worker whose suite is a script that dies, hangs or prints when told to."""
    suite = tmp_path / "suite" / "benchmarks"
    suite.mkdir(parents=True)
    (suite / "__init__.py").touch()
    (suite / "_worker.py").write_text(
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        "    if request['op'] == 'die':\n"
        "        print('last words', file=sys.stderr, flush=True)\n"
        "        os._exit(9)\n"
        "    if request['op'] == 'hang':\n"
        "        time.sleep(60)\n"
        "    print(json.dumps({'cells': [['v2', 'x' * 100000]], 'pid': os.getpid()}), flush=True)\n"
    )
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    checkout = Checkout("c" * 40, tmp_path, tmp_path / "venv")
    return LiveWorker(checkout, suite.parent, interpret=False)


def test_one_process_serves_until_it_dies_and_another_follows(scripted: LiveWorker) -> None:
    with scripted as worker:
        first = worker.ask("hello", 30.0)["pid"]
        assert worker.ask("hello", 30.0)["pid"] == first
        assert cells_of(worker, "static") == [("v2", "x" * 100000)]
        with pytest.raises(WorkerDiedError, match=r"ended with 9: last words"):
            worker.ask("die", 30.0)
        assert worker.ask("hello", 30.0)["pid"] != first
        with pytest.raises(WorkerDiedError, match="no answer within"):
            worker.ask("hang", 0.5)
        assert worker.ask("hello", 30.0)["pid"] != first
