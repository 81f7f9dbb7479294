"""Lets tests, and the processes they spawn, import the helper modules of this folder by name."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)
