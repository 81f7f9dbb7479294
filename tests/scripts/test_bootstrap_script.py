"""``scripts/bootstrap.py --system-site``: no network, once, and again whenever what it made is not what is wanted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FILES = ("constraints.txt", "pyproject.toml", "setup.py", "scripts/bootstrap.py", "tracking/link.py")
ROOMS = ("shapes", "cli", "tracking")


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Path:
    """The files that setting up needs, and some rooms."""
    tree = tmp_path / "tree"
    for room in ROOMS:
        shutil.copytree(root / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / name, tree / name)
    return tree


def bootstrap(tree: Path) -> str:
    """What it said; nothing when there was nothing to do."""
    command = [sys.executable, "scripts/bootstrap.py", "--system-site"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_set_up_once_and_again_when_needed(tree: Path) -> None:
    assert "setting up" in bootstrap(tree)
    code = "import roofgap.shapes.problem as m, pydantic; print(m.__file__)"
    run = [str(tree / ".venv" / "bin" / "python"), "-c", code]
    found = subprocess.run(run, cwd="/", capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found).resolve() == (tree / "shapes" / "problem.py").resolve()

    assert bootstrap(tree) == ""

    with (tree / "constraints.txt").open("a") as file:
        file.write("# another pin\n")
    assert "pins changed" in bootstrap(tree)
    assert bootstrap(tree) == ""

    (tree / ".venv" / "roofgap-stamp").unlink()  # as an interrupted run leaves it
    assert "setting up" in bootstrap(tree)

    moved = tree.rename(tree.with_name("moved"))
    assert "setting up" in bootstrap(moved)
