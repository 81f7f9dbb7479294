"""All peers by name, in the order in which they are run: those that have never lost a CUDA context first."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from roofgap.shapes.files import unknown_name
from roofgap.tuning.peers.gemlite import GemLite, Setting
from roofgap.tuning.peers.marlin import Marlin
from roofgap.tuning.peers.nf4 import NF4, NF4Gemv
from roofgap.tuning.peers.peer import Peer
from roofgap.tuning.peers.tinygemm import TinyGemm

TORCH = "torch"
"""cuBLAS through torch on the dense 16-bit weight; a peer like the others, though not a 4-bit one."""
REQUIRED = (TORCH, TinyGemm.name, NF4.name, GemLite.name, Marlin.name)
"""Without any of these a ratio to the best peer does not count."""

GEMLITE_CONFIGS, MARLIN = "ROOFGAP_GEMLITE_CONFIGS", "ROOFGAP_MARLIN"


def _given_path(variable: str) -> Path | None:
    return Path(text) if (text := os.environ.get(variable)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """How peers are found and tuned.

    Attributes:
        gemlite_setting: of GemLite's tuner, None for what it comes with.
        gemlite_configs: file of GemLite's configs to read and to add to; ``$ROOFGAP_GEMLITE_CONFIGS`` by default.
        gemlite_workers: processes that compile ahead of it.
        marlin: where Marlin's ops come from (`Marlin`); ``$ROOFGAP_MARLIN`` by default.
    """

    gemlite_setting: Setting | None = None
    gemlite_configs: Path | None = field(default_factory=lambda: _given_path(GEMLITE_CONFIGS))
    gemlite_workers: int = 0
    marlin: str | None = field(default_factory=lambda: os.environ.get(MARLIN) or None)


def make_peers(settings: PeerSettings | None = None) -> dict[str, Peer]:
    """Every 4-bit peer by name."""
    use = settings or PeerSettings()
    peers: tuple[Peer, ...] = (
        TinyGemm(),
        NF4(),
        NF4Gemv(),
        Marlin(use.marlin),
        GemLite(use.gemlite_setting, use.gemlite_configs, use.gemlite_workers),
    )
    return {peer.name: peer for peer in peers}


PEER_NAMES = (TORCH, *make_peers())


def choose_peers(names: str) -> tuple[str, ...]:
    """Names joined by commas, or ``all``, in the order of the registry.

    Raises:
        RoofgapError: no such peer.
    """
    if names == "all":
        return PEER_NAMES
    given = [name.strip() for name in names.split(",") if name.strip()]
    for name in given:
        if name not in PEER_NAMES:
            raise unknown_name("peer", name, PEER_NAMES)
    return tuple(name for name in PEER_NAMES if name in given)


def spare_cores() -> int:
    """Cores to compile on: all but two, which drive the device."""
    return max(1, len(os.sched_getaffinity(0)) - 2)
