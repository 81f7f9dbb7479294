"""Lets tests import the helper modules of this folder by name, and publishes one small site for all of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from site_toys import Site

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site of ``site_toys``."""
    pytest.importorskip("asv", reason="asv is not installed")
    import site_toys

    repo = tmp_path_factory.mktemp("site")
    hashes = site_toys.make_site(repo)
    done = site_toys.publish(repo)
    assert done.returncode == 0, done.stdout + done.stderr
    return site_toys.Site(repo, hashes, done.stdout)
