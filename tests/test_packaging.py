"""What is built holds what the tree holds, and nothing named ``kernels`` reaches the top level of imports."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("build", reason="the build front end is not installed")
pytest.importorskip("setuptools", minversion="77", reason="setuptools 77 or newer is needed to build")

ROOMS = ("shapes", "kernels", "tuning", "tracking", "e2e", "cli")
SOURCE_ONLY = ("tests", "asv_bench", "scripts", "docs", "Makefile", "constraints.txt", "asv.conf.json")
NEVER = {".git", ".venv", ".asv", ".roofgap", "build", "dist", "results", "__pycache__"}


def copy_tree(root: Path, target: Path) -> Path:
    """The source tree without what is generated."""

    def skip(_: str, names: list[str]) -> set[str]:
        return {name for name in names if name in NEVER or name.endswith((".egg-info", "_cache", ".pyc"))}

    shutil.copytree(root, target, symlinks=True, ignore=skip)
    return target


def build(tree: Path, out: Path, *kinds: str) -> None:
    """Builds offline with the installed setuptools; without ``kinds`` an sdist, and a wheel from it."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(out)],
        cwd=tree,
        env={**os.environ, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def wheel_files(folder: Path) -> set[str]:
    """Names in the wheel of a folder, without its metadata."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def room_files(tree: Path) -> set[str]:
    """Every file of every room, as the wheel should name it."""
    return {
        f"roofgap/{path.relative_to(tree).as_posix()}"
        for room in ROOMS
        for path in (tree / room).rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.fixture(scope="module")
def tree(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(root, tmp_path_factory.mktemp("source") / "roofgap")


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist and the wheel made from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    build(tree, out)
    return out


def test_wheel_made_from_the_sdist_holds_every_file_of_the_rooms(tree: Path, built: Path) -> None:
    assert wheel_files(built) == room_files(tree)
    assert any(name.startswith("roofgap/shapes/manifests/") for name in wheel_files(built))


def test_wheel_made_from_the_tree_is_the_same(tree: Path, built: Path, tmp_path: Path) -> None:
    build(tree, tmp_path, "--wheel")
    assert wheel_files(tmp_path) == wheel_files(built)


def test_sdist_is_the_whole_source(tree: Path, built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        path.relative_to(tree).as_posix()
        for top in (*ROOMS, *SOURCE_ONLY)
        for path in ((tree / top).rglob("*") if (tree / top).is_dir() else [tree / top])
        if path.is_file() and not path.name.startswith(".")
    }
    assert not expected - names


def test_new_subpackages_and_data_are_packed_and_forgotten_ones_noticed(tree: Path, tmp_path: Path) -> None:
    planted = copy_tree(tree, tmp_path / "planted")
    for name in (
        "kernels/planted/__init__.py",
        "kernels/planted/deep/__init__.py",
        "e2e/planted/deep/data.json",
    ):
        (planted / name).parent.mkdir(parents=True, exist_ok=True)
        (planted / name).write_text("")
    (planted / "tuning" / "forgotten").mkdir()
    (planted / "tuning" / "forgotten" / "module.py").write_text("")  # no __init__.py: not a package
    build(planted, tmp_path / "out", "--wheel")
    packed = wheel_files(tmp_path / "out")
    assert {"roofgap/kernels/planted/deep/__init__.py", "roofgap/e2e/planted/deep/data.json"} <= packed
    assert room_files(planted) - packed == {"roofgap/tuning/forgotten/module.py"}


def test_installed_wheel_serves_manifests_and_the_command(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    target = tmp_path / "target"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
    ]
    subprocess.run([*install, str(wheel)], check=True)
    read = (
        "import json; from importlib.resources import files;"
        "text = files('roofgap.shapes').joinpath('manifests', 'orch-fusion.json').read_text();"
        "print(json.loads(text)['model'])"
    )
    # -S: no site-packages, so nothing but the wheel can answer.
    isolated = run(tmp_path, sys.executable, "-S", "-c", read, PYTHONPATH=str(target))
    assert isolated == "orch-fusion"
    origin = run(
        tmp_path,
        sys.executable,
        "-c",
        "import roofgap.cli.main as m; print(m.__file__)",
        PYTHONPATH=str(target),
    )
    assert Path(origin).is_relative_to(target)
    assert "Usage" in run(tmp_path, str(target / "bin" / "roofgap"), "--help", PYTHONPATH=str(target))


def run(cwd: Path, *command: str, **env: str) -> str:
    """Stdout of a command that must succeed."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ORIGIN = "import importlib.util as u; s = u.find_spec('kernels'); print(s and s.origin)"


def outside(root: Path, origin: str) -> bool:
    """Whether what ``find_spec`` says is nothing, or somebody else's package."""
    return origin == "None" or not Path(origin).is_relative_to(root)


def test_kernels_at_the_root_has_no_origin(root: Path) -> None:
    assert run(root, sys.executable, "-c", ORIGIN) == "None"


def test_pytest_does_not_see_a_top_level_kernels(root: Path) -> None:
    spec = find_spec("kernels")
    assert outside(root, str(spec and spec.origin))


def test_spawned_child_does_not_see_a_top_level_kernels(root: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spec = pool.apply(find_spec, ("kernels",))
    assert outside(root, str(spec and spec.origin))


def test_console_script_does_not_see_a_top_level_kernels(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "script"  # started as a file, like the scripts pip writes
    script.parent.mkdir()
    script.write_text("import importlib.util as u\ns = u.find_spec('kernels')\nprint(s)\n")
    assert run(root, sys.executable, str(script)) == "None"


@pytest.mark.slow
def test_transformers_takes_us_for_nobody_else(root: Path) -> None:
    pytest.importorskip("transformers")
    code = (
        "import json, sys; from transformers import LlamaForCausalLM;"
        "print(json.dumps([getattr(m, '__file__', None) or '' for m in list(sys.modules.values())]))"
    )
    files = json.loads(run(root, sys.executable, "-c", code))
    # The name may resolve to the folder, which says nothing; no file of ours may run.
    rooms = [root / room for room in ROOMS]
    assert not [file for file in files for room in rooms if file and Path(file).is_relative_to(room)]
