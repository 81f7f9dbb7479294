"""The experiment on the gate, without a GPU: its plant fits the kernel, its calibration and its verdict work."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from roofgap.tracking.gate.stats import decide


@pytest.fixture(scope="module")
def experiment(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gate_experiment", root / "scripts" / "gate_experiment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gate_experiment"] = module
    spec.loader.exec_module(module)
    return module


class Side:
    """A commit whose cells take 20 us, and 0.1 % more per five busy steps."""

    def __init__(self, seed: int, busy: Mapping[Any, int] | None = None) -> None:
        self._random, self._busy, self._factor = np.random.default_rng(seed), busy or {}, 1.0

    def prepare(self, cell: tuple[str, ...]) -> dict[str, Any]:
        self._factor = 1 + self._busy.get(cell, 0) * 0.0002
        return {}

    def sample_us(self, arm: int) -> float:
        return 20.0 * self._factor * float(np.exp(self._random.normal(0, 0.004)))

    def release(self) -> None:
        pass


def test_the_plant_fits_the_kernel(experiment: ModuleType, root: Path) -> None:
    text = (root / experiment.KERNEL).read_text()
    assert [text.count(old) for old, _ in experiment.PLANTS] == [1, 1, 1]
    assert len(experiment.CELLS) >= 10


def test_calibration_finds_five_per_cent(experiment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "WorkerSide", lambda worker, busy: Side(7, busy))
    steps, effect = experiment.calibrate(Side(8), None, ("v2", "64x256", "1"))
    assert effect == pytest.approx(0.05, abs=0.006)
    assert steps % 2 == 1
    assert steps * 0.0002 == pytest.approx(0.05, abs=0.01)


def test_runs_are_judged_as_the_gate_judges(
    experiment: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = experiment.CELLS
    busy = dict.fromkeys(cells, 255)
    sides = {"a": Side(1), "again": Side(2), "planted": Side(3, busy)}
    samples = experiment.take(sides, cells, placements=2, runs=2)
    assert {len(listed) for listed in samples.values()} == {4}
    decisions = {kind: [decide(run) for run in listed] for kind, listed in samples.items()}
    assert experiment.summarise(decisions) == 0
    assert "A/A: 0 alarms in 4 runs of 10 cells" in capsys.readouterr().out
    row = experiment.row(
        "planted", 0, "v2/1536x1536/1", decisions["planted"][0]["v2/1536x1536/1"], {cells[0]: (255, 0.05)}
    )
    assert (row["n"], row["k"], row["m"], row["busy_steps"]) == (1536, 1536, 1, 255)
    assert row["effect"] == pytest.approx(0.051, abs=0.01)
    blind = {"again": decisions["again"], "planted": decisions["again"]}
    assert experiment.summarise(blind) == 1
