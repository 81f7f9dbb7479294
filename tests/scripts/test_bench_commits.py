"""``make bench`` with history: what it selects, where results go, which failures it names."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import time
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench(root: Path, tmp_path: Path) -> ModuleType:
    """The script in a tree of its own, with one committed result."""
    shutil.copytree(root / "scripts", tmp_path / "scripts")
    shutil.copy(root / "asv.conf.json", tmp_path)
    (tmp_path / "results" / "asv" / "box").mkdir(parents=True)
    (tmp_path / "results" / "asv" / "benchmarks.json").write_text("{}")
    (tmp_path / "results" / "asv" / "box" / "01234567-overlay.json").write_text('{"old": 1}')
    spec = importlib.util.spec_from_file_location("bench_script", tmp_path / "scripts" / "bench.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_bench_works_on_a_copy_of_the_committed_results(bench: ModuleType, tmp_path: Path) -> None:
    local = tmp_path / ".asv" / "results" / "box" / "01234567-overlay.json"
    for content in ('{"old": 1}', '{"mine": 2}'):
        with bench.local_results() as path:
            config = json.loads(path.read_text())
            assert Path(config.pop("results_dir")) == tmp_path / ".asv" / "results"
            assert path.parent == tmp_path, "asv changes into the folder of its configuration"
            assert set(config) < set(json.loads((tmp_path / "asv.conf.json").read_text()))
            assert local.read_text() == content
            local.write_text('{"mine": 2}')
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        ".asv",
        "asv.conf.json",
        "results",
        "scripts",
    ]
    assert (tmp_path / "results" / "asv" / "box" / "01234567-overlay.json").read_text() == '{"old": 1}'


def test_a_committed_result_recorded_again_replaces_its_copy(bench: ModuleType, tmp_path: Path) -> None:
    committed = tmp_path / "results" / "asv" / "box" / "01234567-overlay.json"
    copy = tmp_path / ".asv" / "results" / "box" / "01234567-overlay.json"
    with bench.local_results():
        pass
    committed.write_text('{"new": 2}')
    later = copy.stat().st_mtime_ns + 10**9
    os.utime(committed, ns=(later, later))
    with bench.local_results():
        assert copy.read_text() == '{"new": 2}'


def test_the_quick_tier_selects_its_cells_and_no_others(
    bench: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root / "asv_bench"))
    monkeypatch.setattr(bench, "has_gpu", lambda: True)
    monkeypatch.setenv("ROOFGAP_LANE_TIER", "quick")
    cells = importlib.import_module("benchmarks._cells")
    exact, timed = bench.selection()
    for lane, prefix in cells.SERIES.items():
        patterns = [re.compile(text) for text in (timed if lane == "device" else exact)]
        axes = cells.axes(lane)
        chosen = {
            tuple(map(str, cell))
            for cell in product(*axes)
            if any(one.search(f"{prefix}metric({', '.join(map(repr, cell))})") for one in patterns)
        }
        assert chosen == set(getattr(cells, f"{lane}_cells")()), lane


def test_failed_cells_are_named(bench: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / ".asv" / "results" / "box"
    folder.mkdir(parents=True)
    rows = {
        "a.A.track_x": [[1, None, float("nan")], [["'p'", "'q'", "'r'"]], "1"],
        "b.B.track_y": [None, [["'p'", "'q'"]], "1"],
    }
    stored = {"result_columns": ["result", "params", "version"], "results": rows}
    (folder / "89abcdef-overlay.json").write_text(json.dumps(stored))
    commit = "89abcdef" + "0" * 32
    assert bench.failed_cells([commit], 0.0) == [
        "89abcdef a.A.track_x('q')",
        "89abcdef b.B.track_y('p')",
        "89abcdef b.B.track_y('q')",
    ]
    assert bench.failed_cells([commit], time.time() + 60) == []
