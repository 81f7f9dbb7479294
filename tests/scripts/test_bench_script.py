"""``make bench`` without history: an archive still gets numbers, and a broken benchmark is said to be one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def bench(root: Path, tree: Path) -> subprocess.CompletedProcess[str]:
    """Runs the script on a copy of the suite that no repository holds."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    shutil.copytree(root / "scripts", tree / "scripts")
    shutil.copy(root / "asv.conf.json", tree)
    return subprocess.run(
        [sys.executable, "scripts/bench.py"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_archive_is_measured_alone(root: Path, tmp_path: Path) -> None:
    suite = tmp_path / "tree" / "asv_bench" / "benchmarks"
    suite.mkdir(parents=True)
    whole = root / "asv_bench" / "benchmarks"
    for file in (*whole.glob("_*.py"), whole / "roofline.py"):  # the lane that takes no time
        shutil.copy(file, suite)
    done = bench(root, tmp_path / "tree")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no git history" in done.stderr
    assert "roofline.TokenFloor.track_us(orch-fusion, rtx-3060)" in done.stdout


def test_broken_benchmark_is_a_failure_and_an_absent_part_is_not(root: Path, tmp_path: Path) -> None:
    suite = tmp_path / "tree" / "asv_bench" / "benchmarks"
    suite.mkdir(parents=True)
    (suite / "__init__.py").touch()
    (suite / "cases.py").write_text(
        "class Cases:\n"
        "    params = ['good', 'absent', 'broken']\n"
        "    def setup_cache(self):\n"
        "        return {'good': 2.5}\n"
        "    def setup(self, cache, case):\n"
        "        if case == 'absent':\n"
        "            raise NotImplementedError('no GPU')\n"
        "    def track_value(self, cache, case):\n"
        "        return cache[case]\n"
        "    track_value.unit = 'us'\n"
    )
    done = bench(root, tmp_path / "tree")
    assert done.returncode == 1
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert lines["cases.Cases.track_value(good)"].endswith("2.5 us")
    assert "n/a (no GPU)" in lines["cases.Cases.track_value(absent)"]
    assert "failed (KeyError" in lines["cases.Cases.track_value(broken)"]
