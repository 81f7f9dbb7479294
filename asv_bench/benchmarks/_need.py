"""How a benchmark asks for a part of roofgap that the measured commit may not have."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def need(module: str, name: str) -> Any:
    """The attribute ``name`` of ``module``.

    Raises:
        NotImplementedError: the commit, or the machine, lacks it. Raised in ``setup``, asv records n/a.
    """
    try:
        return getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise NotImplementedError(str(error)) from error
