"""The asv environment that links each commit's rooms: asv can use it, and no other roofgap leaks in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roofgap.tracking.link import link

BENCHMARK = """
class Value:
    version = "1"
    def setup(self):
        from importlib.util import find_spec
        if find_spec("roofgap.kernels"):
            raise RuntimeError("a room that this commit lacks came from another roofgap")
    def track_value(self):
        from roofgap.shapes.value import VALUE
        import pydantic, roofgap
        assert roofgap.__file__.startswith(__import__("os").environ["ASV_ENV_DIR"])
        return VALUE
    track_value.unit = "us"
"""


def write_room(tree: Path, room: str, value: int = 0) -> None:
    """A room with one module."""
    folder = tree / room
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "py.typed").touch()
    (folder / "__init__.py").touch()
    (folder / "value.py").write_text(f"VALUE = {value}\n")


def test_link_replaces_the_rooms_of_an_earlier_tree(tmp_path: Path) -> None:
    old, new, site = tmp_path / "old", tmp_path / "new", tmp_path / "site"
    write_room(old, "shapes", 1)
    write_room(old, "kernels", 1)
    write_room(new, "shapes", 2)
    assert link(old, site) == ["kernels", "shapes"]
    assert link(new, site) == ["shapes"]
    code = (
        "import importlib.util as u, roofgap.shapes.value as v;print(v.VALUE, u.find_spec('roofgap.kernels'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["2", "None"]
    assert (old / "kernels" / "value.py").exists(), "linking must not delete what was linked"


def test_link_refuses_a_tree_without_rooms(tmp_path: Path) -> None:
    (tmp_path / "site" / "roofgap").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no room"):
        link(tmp_path, tmp_path / "site")
    assert (tmp_path / "site" / "roofgap").exists(), "refused, so nothing is taken away"


def test_configuration_has_no_unknown_keys(root: Path) -> None:
    """asv accepts a misspelt key without a word."""
    config = pytest.importorskip("asv.config", reason="asv is not installed")
    known = set(vars(config.Config())) | {"version", "project_url", "overlay_track"}
    assert set(json.loads((root / "asv.conf.json").read_text())) <= known


MOVED = """
class Value:
    version = "1"
    def track_value(self):
        from importlib import import_module
        from importlib.util import find_spec
        places = [p for p in ("roofgap.shapes.value", "roofgap.kernels.deep.value") if find_package(p) and find_spec(p)]
        assert len(places) == 1, f"a module of the other commit is still there: {places}"
        return import_module(places[0]).VALUE
    track_value.unit = "us"

def find_package(name):
    from importlib.util import find_spec
    parents = name.split(".")[:-1]
    return all(find_spec(".".join(parents[:count])) for count in range(1, len(parents) + 1))
"""


def continuous(
    tmp_path: Path, root: Path, benchmark: str, *commits: Callable[[Path], None]
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """``asv continuous`` over two commits of a repository of its own: what it printed and what it stored."""
    pytest.importorskip("asv", reason="asv is not installed")
    repo = tmp_path / "repo"
    suite = repo / "asv_bench" / "benchmarks"
    suite.mkdir(parents=True)
    (suite / "__init__.py").touch()
    (suite / "value.py").write_text(benchmark)
    config = json.loads((root / "asv.conf.json").read_text())
    (repo / "asv.conf.json").write_text(json.dumps(config))
    environment = {**os.environ, "HOME": str(tmp_path), "PIP_NO_INDEX": "1"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=repo, env=environment, capture_output=True, text=True, check=False, timeout=120
        )

    run("git", "init", "-q", "-b", "main")
    for change in commits:
        change(repo)
        run("git", "add", "-A")
        run("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "change")
    asv = (sys.executable, "-m", "asv")
    run(*asv, "machine", "--yes")
    done = run(*asv, "continuous", "HEAD~1", "HEAD")
    stored = [
        json.loads(path.read_text()) for path in (repo / config["results_dir"]).glob("*/*-overlay-*.json")
    ]
    return done, stored


def test_continuous_measures_each_commit_with_its_own_roofgap(tmp_path: Path, root: Path) -> None:
    done, results = continuous(
        tmp_path,
        root,
        BENCHMARK,
        lambda repo: write_room(repo, "shapes", 100),
        lambda repo: write_room(repo, "shapes", 150),
    )
    assert done.returncode == 1, done.stdout + done.stderr  # 1: something got slower
    assert sorted(result["results"]["value.Value.track_value"][0] for result in results) == [[100], [150]]
    assert all("torch" in result["requirements"] for result in results)


def test_continuous_follows_moved_files_new_rooms_and_changed_dependencies(
    tmp_path: Path, root: Path
) -> None:
    def before(repo: Path) -> None:
        write_room(repo, "shapes", 100)
        (repo / "shapes" / "base.py").write_text("BASE = 1\n")

    def after(repo: Path) -> None:
        """The module moves into a sub-package of a new room and imports another of our modules."""
        write_room(repo, "kernels")
        deep = repo / "kernels" / "deep"
        deep.mkdir()
        (deep / "__init__.py").touch()
        (repo / "shapes" / "value.py").unlink()
        (repo / "shapes" / "base.py").write_text("BASE = 150\n")
        (deep / "value.py").write_text("from roofgap.shapes.base import BASE as VALUE\n")

    done, results = continuous(tmp_path, root, MOVED, before, after)
    assert done.returncode == 1, done.stdout + done.stderr
    assert sorted(result["results"]["value.Value.track_value"][0] for result in results) == [[100], [150]]


def test_another_triton_is_another_series(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's name, which asv files results and draws lines by, differs; so does the folder of its venv."""
    config = pytest.importorskip("asv.config", reason="asv is not installed")
    from asv.results import get_filename

    from roofgap.tracking import environment
    from roofgap.tracking.venv import HOST_PYTHON

    conf = config.Config.from_json(json.loads((root / "asv.conf.json").read_text()))
    conf.env_dir = str(tmp_path)

    def overlay(triton: str) -> environment.Overlay:
        versions = {"torch": "2.11.0", "triton": triton}
        monkeypatch.setattr(
            environment, "tracked_versions", lambda names: {name: versions[name] for name in names}
        )
        return environment.Overlay(conf, HOST_PYTHON, {}, {})

    before, after = overlay("3.6.0"), overlay("3.7.1")
    assert (before.requirements["triton"], after.requirements["triton"]) == ("3.6.0", "3.7.1")
    assert before.dir_name != after.dir_name
    files = [get_filename("box", "0" * 40, each.name) for each in (before, after)]
    assert files[0] != files[1]
    assert all("triton" in name for name in files)
    assert overlay("3.6.0").name == before.name
