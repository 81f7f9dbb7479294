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

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.results import read_results


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
    *_, decisions = experiment.judge(sides, cells, placements=2, runs=2)
    assert {len(listed) for listed in decisions.values()} == {4}
    assert experiment.summarise(decisions) == 0
    assert "A/A: 0 alarms in 4 runs of 10 cells" in capsys.readouterr().out
    row = experiment.row(
        "planted", 0, "v2/1536x1536/1", decisions["planted"][0]["v2/1536x1536/1"], {cells[0]: (255, 0.05)}
    )
    assert (row["n"], row["k"], row["m"], row["busy_steps"]) == (1536, 1536, 1, 255)
    assert row["effect"] == pytest.approx(0.051, abs=0.01)
    blind = {"again": decisions["again"], "planted": decisions["again"]}
    assert experiment.summarise(blind) == 1


class Worker:
    """A live worker without a process; ``about`` is all it is asked."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self, question: str, timeout_s: float) -> dict[str, Any]:
        assert question == "about"
        return {"gpu": "h200", "versions": {"torch": "2.11.0"}}


@pytest.fixture
def ready(experiment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with sides of ours in place of its workers and checkouts."""
    monkeypatch.setattr(experiment, "plant", lambda root, clone: clone)
    monkeypatch.setattr(experiment, "resolve", lambda clone, commit: commit)
    monkeypatch.setattr(experiment, "check_out", lambda clone, commit, folder: folder)
    monkeypatch.setattr(experiment, "LiveWorker", Worker)
    monkeypatch.setattr(experiment, "WorkerSide", lambda worker, busy=None: Side(id(worker) % 1000, busy))
    monkeypatch.setattr(experiment, "calibrate", lambda before, worker, cell: (255, 0.05))
    return experiment


def test_a_finished_experiment_leaves_one_file(ready: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "h200.json"
    assert ready.experiment(tmp_path, ready.CELLS[:2], placements=2, runs=2, out=out) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["h200.json"]
    rows = read_results(out).rows
    assert len(rows) == 2 * 4 * 2
    assert {row["run"] for row in rows} == {0, 1, 2, 3}


def test_what_was_measured_survives_being_cut_off(
    ready: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, taken = ready.take, list[Any]()

    def cut_off(*args: Any) -> Any:
        if taken:
            raise RoofgapError("worker", "ended", "look at its log")
        taken.append(take(*args))
        return taken[0]

    monkeypatch.setattr(ready, "take", cut_off)
    with pytest.raises(RoofgapError):
        ready.experiment(tmp_path, ready.CELLS[:2], placements=3, runs=2, out=tmp_path / "h200.json")
    assert [path.name for path in tmp_path.iterdir()] == ["h200.partial.json"]
    rows = read_results(tmp_path / "h200.partial.json").rows
    assert len(rows) == 2 * 2 * 2
    assert {row["run"] for row in rows} == {0, 1}


@pytest.mark.parametrize("option", ["--placements", "--runs", "--cells"])
def test_nothing_to_measure_is_refused(
    experiment: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["gate_experiment.py", "--out", str(tmp_path / "x.json"), option, "0"])
    with pytest.raises(SystemExit) as stopped:
        experiment.main()
    assert stopped.value.code == 2
