"""Lets tests, and the processes they spawn, import the helper modules of this folder by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)


@pytest.fixture
def tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: v4's kernel with inline assembly, in the interpreter."""
    import ptx_machine
    from kernel_cases import DEVICE

    from roofgap.kernels.variants import v4

    if DEVICE.type == "cpu":
        ptx_machine.install(monkeypatch)
        monkeypatch.setattr(v4, "interpreted", lambda: False)
