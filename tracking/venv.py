"""A bare venv that sees the packages of this interpreter, with one commit's roofgap in front of them.

What asv's environment and the gate's workers run in. Needs no network, no pip and nothing but the standard library.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from roofgap.tracking.link import link

HOST_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def host_packages() -> list[str]:
    """Folders of installed packages that this interpreter sees, in its order; whatever they are called."""
    return [entry for entry in sys.path if entry and any(Path(entry).glob("*.dist-info"))]


def tracked_versions(names: list[str]) -> dict[str, str]:
    """Installed versions of the packages that decide a measurement; ``none`` for an absent one."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def site_packages(venv: Path) -> Path:
    """Where a venv keeps its packages: roofgap's links and the list of host folders, nothing else."""
    return venv / "lib" / f"python{HOST_PYTHON}" / "site-packages"


def is_ready(venv: Path) -> bool:
    """Whether the venv exists, for this very interpreter and its folders."""
    try:
        present = (site_packages(venv) / "host.pth").read_text() == _host_lines()
    except FileNotFoundError:
        return False
    return present and (venv / "bin" / "python").exists()


def make(venv: Path) -> None:
    """Creates the venv; an earlier one stays as it is where it fits."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site_packages(venv) / "host.pth").write_text(_host_lines())


def install(tree: Path, venv: Path) -> list[str]:
    """Makes ``roofgap`` in the venv mean the rooms of ``tree``, and returns their names.

    Raises:
        FileNotFoundError: ``tree`` holds no room.
    """
    return link(tree, site_packages(venv))


def _host_lines() -> str:
    # Plain paths: .pth files inside those folders stay unread, so an editable roofgap there is not seen.
    return "\n".join(host_packages()) + "\n"
