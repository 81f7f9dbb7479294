"""Tiny decoders: two layers, hidden 64, vocabulary 128."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from roofgap.e2e.models import ModelSource
from roofgap.shapes.manifest import Architecture, Evidence, Manifest, build_manifest

# Tiny matrices gain nothing from threads, and waiting for one another costs more than the work.
torch.set_num_threads(1)

TinyManifest = Callable[..., Manifest]


@pytest.fixture(scope="session")
def tiny_manifest() -> TinyManifest:
    """Manifest of a tiny model; keyword arguments change its architecture."""

    def make(**changes: Any) -> Manifest:
        numbers: dict[str, Any] = {
            "layers": 2, "hidden": 64, "intermediate": 128, "heads": 4, "kv_heads": 2, "head_dim": 16,
            "vocab": 128, "tied": True, "qkv_bias": True, "o_bias": False, "mlp_bias": False,
        }  # fmt: skip
        architecture = Architecture(**(numbers | changes))
        evidence = Evidence(kind="measured", source="made up")
        known = {name: evidence for name, value in architecture if value is not None}
        return build_manifest("tiny", architecture, known, title="tiny", source="made up", revision="1")

    return make


@pytest.fixture(scope="session")
def tiny_source(tiny_manifest: TinyManifest) -> Callable[..., ModelSource]:
    """A tiny model with seeded random weights."""
    return lambda seed=0, **changes: ModelSource(tiny_manifest(**changes), seed=seed)
