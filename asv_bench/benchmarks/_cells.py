"""The grid that is tracked: variants, shapes, targets, tokens. The same on every machine and in every tier.

``ROOFGAP_MANIFESTS`` (names joined by commas, or ``all``) adds the shapes of more models.
``ROOFGAP_LANE_TIER=quick`` measures a part of the grid; the other cells are n/a.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent
_MANIFESTS = _ROOT / "shapes" / "manifests"


def _variants() -> tuple[str, ...]:
    """Names in the tree's ``kernels/variants``, read and not imported: asv imports this for every cell."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(_ROOT.glob("kernels/variants/[!_]*.py")))
    return tuple(name for text in texts for name in re.findall(r'^    name = "([^"]+)"$', text, re.MULTILINE))


VARIANTS = _variants()
TARGETS = ("sm_80", "sm_86", "sm_90", "gfx942")
TOKENS = (1, 4, 16)
# N x K of qwen2.5-1.5b and of orch-fusion, a separate q|k|v and gate|up each.
SHAPES = (
    "1536x1536", "256x1536", "8960x1536", "1536x8960", "151936x1536",
    "1024x1024", "256x1024", "2816x1024", "1024x2816", "2103x1024",
)  # fmt: skip
# Small enough for Triton's interpreter, with full K tiles and with tails of N, K and group.
QUALITY_SHAPES = ("64x1536", "55x1096")
FORMATS = ("fp16 sym", "fp16 asym", "bf16 asym")
QUICK_SHAPES = ("8960x1536", "2103x1024")  # the largest linear; an odd N
QUICK_TARGETS = ("sm_86", "sm_90")

Cell = tuple[str, ...]


def shapes() -> tuple[str, ...]:
    """``SHAPES``, then those of the manifests in ``ROOFGAP_MANIFESTS`` that are not among them."""
    named = os.environ.get("ROOFGAP_MANIFESTS", "")
    stems = sorted(path.stem for path in _MANIFESTS.glob("*.json") if path.stem != "manifest.schema")
    chosen = stems if named == "all" else [name.strip() for name in named.split(",") if name.strip()]
    more = (
        f"{matrix['n']}x{matrix['k']}"
        for stem in chosen
        for matrix in json.loads((_MANIFESTS / f"{stem}.json").read_text(encoding="utf-8"))["matrices"]
    )
    return tuple(dict.fromkeys((*SHAPES, *more)))


def is_quick() -> bool:
    """Whether only a part of the grid is wanted."""
    return os.environ.get("ROOFGAP_LANE_TIER") == "quick"


def _chosen(everything: tuple[str, ...], quick: tuple[str, ...]) -> tuple[str, ...]:
    return quick if is_quick() else everything


def static_cells() -> list[Cell]:
    """(variant, shape, target)."""
    places = _chosen(TARGETS, QUICK_TARGETS)
    return [(v, s, t) for v in VARIANTS for s in _chosen(shapes(), QUICK_SHAPES) for t in places]


def traffic_cells() -> list[Cell]:
    """(variant, shape)."""
    return [(v, s) for v in VARIANTS for s in _chosen(shapes(), QUICK_SHAPES)]


def quality_cells() -> list[Cell]:
    """(variant, shape, format)."""
    return [(v, s, f) for v in VARIANTS for s in QUALITY_SHAPES for f in _chosen(FORMATS, FORMATS[:1])]


def device_cells() -> list[Cell]:
    """(variant, shape, m), problem by problem, so that variants of one problem are timed in turns."""
    tokens = TOKENS[:1] if is_quick() else TOKENS
    return [(v, s, str(m)) for s in _chosen(shapes(), QUICK_SHAPES) for m in tokens for v in VARIANTS]


def axes(lane: str) -> tuple[tuple[object, ...], ...]:
    """Parameters of the lane's class, in the order of a cell's parts."""
    last: dict[str, tuple[tuple[object, ...], ...]] = {
        "static": (shapes(), TARGETS),
        "traffic": (shapes(),),
        "quality": (QUALITY_SHAPES, FORMATS),
        "device": (shapes(), TOKENS),
    }
    return VARIANTS, *last[lane]


# What asv calls the metrics of a lane: prefix + name of the metric.
SERIES = {
    "static": "static.Static.track_",
    "traffic": "traffic.Traffic.track_",
    "quality": "quality.Quality.track_",
    "device": "device.Cold.sampled_",
}
