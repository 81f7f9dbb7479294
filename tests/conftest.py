"""Suite-wide setup: where Triton runs, what the ``gpu`` marker needs, a repository root off ``sys.path``."""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
# `python -m pytest` puts the repository root first on sys.path: a top-level `kernels` would be importable.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]


def _gpu_missing() -> str | None:
    """Why no test marked ``gpu`` can run here, or None."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "no GPU that torch can use"
    return None


GPU_MISSING = _gpu_missing()
if GPU_MISSING:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read by triton when a kernel is defined


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a GPU, with the reason, where there is none."""
    if GPU_MISSING is None:
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {GPU_MISSING}"))


if find_spec("pytest_benchmark") is None:

    @pytest.fixture
    def benchmark() -> None:
        """Stands in for the plug-in's fixture, so that what would be timed is skipped and not an error."""
        pytest.skip("pytest-benchmark is not installed")


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository root."""
    return ROOT


@pytest.fixture
def busy_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that has more to do than to read answers: each takes its time."""
    receive = Connection.recv

    def slowly(pipe: Connection) -> Any:
        message = receive(pipe)
        time.sleep(0.05)
        return message

    monkeypatch.setattr(Connection, "recv", slowly)
