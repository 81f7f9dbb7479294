"""Lets tests, and the processes they spawn, import the helper modules of this folder by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)


@pytest.fixture(autouse=True, scope="module")
def _no_fsync() -> Iterator[None]:
    """A kill of a process loses nothing that was written, so tests need not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield
