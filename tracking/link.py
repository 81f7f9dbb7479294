"""Puts a source tree in place as ``roofgap`` in a site-packages folder: links only; no build, network or pip.

Runs as a program too (``python tracking/link.py TREE SITE_PACKAGES``), with the standard library alone.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def link(tree: Path, site_packages: Path) -> list[str]:
    """Makes ``import roofgap`` mean the rooms of ``tree``, and nothing but them.

    A room is a top-level folder that holds ``py.typed``. The package gets an ``__init__.py``, unlike an
    installed one: a namespace package would take rooms that the tree lacks from any other roofgap on
    ``sys.path``.

    Returns:
        The names of the rooms.

    Raises:
        FileNotFoundError: ``tree`` holds no room.
    """
    rooms = sorted(marker.parent.name for marker in tree.glob("*/py.typed"))
    if not rooms:
        raise FileNotFoundError(f"{tree} holds no room of roofgap (a folder with py.typed)")
    package = site_packages / "roofgap"
    if package.exists():
        shutil.rmtree(package)
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for room in rooms:
        (package / room).symlink_to(tree.resolve() / room, target_is_directory=True)
    return rooms


if __name__ == "__main__":
    link(Path(sys.argv[1]), Path(sys.argv[2]))
