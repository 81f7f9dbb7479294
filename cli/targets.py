"""What ``SHAPE|MANIFEST`` and ``--m`` on the command line mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.shapes.problem import Problem


def problems_of(
    target: str, m: str, *, fused: bool = False, also_fused: bool = False, bias: bool = False, **fields: Any
) -> list[Problem]:
    """Distinct problems of shapes ``NxK`` and manifests joined by commas, for each M in turn.

    Args:
        fused: a manifest's q|k|v and gate|up joined, and not apart.
        also_fused: first apart, then joined.

    Raises:
        RoofgapError: neither a shape nor a manifest, or a field outside its rule.
    """
    from roofgap.shapes.manifest import load_manifest
    from roofgap.shapes.problem import Problem

    found: dict[Problem, None] = {}
    tokens = numbers_of("m", m)
    for name in target.split(","):
        shape = name.strip()
        if re.fullmatch(r"\d+x\d+", shape):
            found |= dict.fromkeys(Problem.parse(shape, m=rows, bias=bias, **fields) for rows in tokens)
            continue
        manifest = load_manifest(shape)
        for joined in (False, True) if also_fused else (fused,):
            for rows in tokens:
                found |= {problem: None for _, problem in manifest.problems(m=rows, fused=joined, **fields)}
    return list(found)


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
