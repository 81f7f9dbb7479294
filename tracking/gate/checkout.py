"""A commit in a folder of its own, with a venv that imports it. The user's checkout is not touched."""

from __future__ import annotations

import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from roofgap.shapes.errors import RoofgapError
from roofgap.tracking import venv

WORKER = Path("asv_bench", "benchmarks", "_worker.py")


@dataclass(frozen=True, slots=True)
class Checkout:
    """One commit ready to run. ``python`` imports that commit's roofgap and this machine's packages."""

    commit: str
    tree: Path
    venv: Path

    @property
    def python(self) -> Path:
        """Interpreter of the venv."""
        return self.venv / "bin" / "python"


def repository() -> Path:
    """Top folder of the repository around the current folder; it must hold the suite.

    Raises:
        RoofgapError: no repository, or not roofgap's.
    """
    try:
        top = Path(git(Path.cwd(), "rev-parse", "--show-toplevel"))
    except RoofgapError:
        raise RoofgapError(
            f"{Path.cwd()}", "is not in a git repository", "run it in a clone of roofgap"
        ) from None
    if not (top / WORKER).is_file():
        raise RoofgapError(f"{top}", f"holds no {WORKER}", "run it in a clone of roofgap")
    return top


def resolve(root: Path, revision: str) -> str:
    """Full hash of a revision.

    Raises:
        RoofgapError: there is none of that name.
    """
    try:
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except RoofgapError:
        raise RoofgapError(
            f"commit {revision!r}",
            "not in this repository",
            "a shallow clone has no parents: git fetch --unshallow",
        ) from None


def check_out(root: Path, commit: str, folder: Path) -> Checkout:
    """Puts a commit's files and a venv under ``folder``.

    Raises:
        RoofgapError: the commit holds no room of roofgap.
    """
    tree, archive = folder / "tree", folder / "commit.zip"
    folder.mkdir(parents=True)
    git(root, "archive", "--format=zip", f"--output={archive}", commit)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tree)
    archive.unlink()
    checkout = Checkout(commit, tree, folder / "venv")
    venv.make(checkout.venv)
    try:
        venv.install(tree, checkout.venv)
    except FileNotFoundError as error:
        raise RoofgapError(f"commit {commit[:10]}", str(error), "choose a later commit") from None
    return checkout


def git(root: Path, *arguments: str) -> str:
    """Output of a git command.

    Raises:
        RoofgapError: it failed, or there is no git.
    """
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RoofgapError("git", "is not installed", "install it") from None
    if done.returncode:
        raise RoofgapError(f"git {arguments[0]}", done.stderr.strip() or "failed", "see the message")
    return done.stdout.strip()
