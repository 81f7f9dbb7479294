"""What ``SHAPE|MANIFEST`` and ``--m`` on the command line mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.shapes.problem import Problem


def problems_of(
    target: str, m: str, *, fused: bool = False, bias: bool = False, **fields: Any
) -> list[Problem]:
    """Distinct problems of shapes ``NxK`` and manifests joined by commas, for each M in turn.

    Raises:
        RoofgapError: neither a shape nor a manifest, or a field outside its rule.
    """
    if "," in target:
        names = [name.strip() for name in target.split(",")]
        found = (
            problem for name in names for problem in problems_of(name, m, fused=fused, bias=bias, **fields)
        )
        return list(dict.fromkeys(found))
    from roofgap.shapes.manifest import load_manifest
    from roofgap.shapes.problem import Problem

    if re.fullmatch(r"\d+x\d+", target):
        return [Problem.parse(target, m=rows, bias=bias, **fields) for rows in numbers_of("m", m)]
    manifest = load_manifest(target)
    return list(
        dict.fromkeys(
            problem
            for rows in numbers_of("m", m)
            for _, problem in manifest.problems(m=rows, fused=fused, **fields)
        )
    )


def numbers_of(name: str, text: str, least: int = 1) -> list[int]:
    """``"1,16"`` as numbers, each once.

    Raises:
        RoofgapError: not whole numbers of at least ``least``.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < least:
        raise RoofgapError(
            f"{name}={text!r}",
            f"must be whole numbers of at least {least}, joined by commas",
            "write it like 1,4",
        )
    return list(dict.fromkeys(found))
