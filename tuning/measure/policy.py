"""How a time is taken. Part of every winner's identity: another policy can choose another config."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from roofgap.shapes.errors import RoofgapError

Mode = Literal["cold-graph", "chained-graph", "warm-graph", "eager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePolicy:
    """What one sample is, and how many make a measurement.

    Attributes:
        mode: ``cold-graph`` (one CUDA graph, every launch on its own copy of the weight, L2 cold),
            ``chained-graph`` (the same, kernels that can as programmatic dependent launches: each fetches its
            weight while the one before it ends), ``warm-graph`` (one CUDA graph, every launch on the same
            weight) or ``eager`` (cold, launched one by one: host cost included).
        min_bytes_factor: the copies of the weight together hold at least this many times the L2.
        min_launches: launches per sample even where fewer copies would do; dilutes the start of the graph.
        max_launches: limit of launches per sample; a problem that needs more is labelled ``cache-resident``.
        memory_fraction: share of the free memory that copies, outputs and workspaces may take.
        replays: samples of one measurement.
        warmup_window: the warm-up ends when the medians of the last two windows of this many samples agree
            to ``warmup_tolerance``, a relative difference.
        warmup_limit: samples after which the warm-up ends in any case.
        taint_repeats: how often a tainted measurement is repeated before it is reported as tainted.

    Raises:
        RoofgapError: a value outside its range.
    """

    mode: Mode = "cold-graph"
    min_bytes_factor: float = 3.0
    min_launches: int = 8
    max_launches: int = 1024
    memory_fraction: float = 0.5
    replays: int = 20
    warmup_window: int = 3
    warmup_tolerance: float = 0.01
    warmup_limit: int = 60
    taint_repeats: int = 3

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise RoofgapError(
                f"mode={self.mode!r}", "unknown name", f"use one of {', '.join(get_args(Mode))}"
            )
        rules = {
            "min_bytes_factor": (self.min_bytes_factor >= 1, "must be at least 1"),
            "min_launches": (self.min_launches >= 1, "must be at least 1"),
            "max_launches": (self.max_launches >= self.min_launches, "must be at least min_launches"),
            "memory_fraction": (0 < self.memory_fraction <= 1, "must be above 0 and at most 1"),
            "replays": (self.replays >= 1, "must be at least 1"),
            "warmup_window": (self.warmup_window >= 1, "must be at least 1"),
            "warmup_tolerance": (0 < self.warmup_tolerance < math.inf, "must be above 0"),
            "taint_repeats": (self.taint_repeats >= 0, "must be at least 0"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise RoofgapError(f"{name}={getattr(self, name)}", rule, "correct the measurement policy")

    @property
    def key(self) -> str:
        """What is measured, without how often: ``cold-graph-l2x3``. Identity of winners hangs on it."""
        return self.mode if self.mode == "warm-graph" else f"{self.mode}-l2x{self.min_bytes_factor:g}"

    @property
    def is_cold(self) -> bool:
        """Whether every launch reads its own copy of the weight."""
        return self.mode != "warm-graph"

    @property
    def is_chained(self) -> bool:
        """Whether kernels that can are programmatic dependent launches."""
        return self.mode == "chained-graph"

    @property
    def uses_graph(self) -> bool:
        """Whether launches are replayed from a CUDA graph."""
        return self.mode != "eager"

    def launches(self, read_bytes: int, held_bytes: int, l2_bytes: int, free_bytes: int) -> int:
        """Launches per sample (the same for every config of a problem unless memory is short).

        Args:
            read_bytes: bytes that one launch must read from DRAM: codes, scales and zeros.
            held_bytes: memory one launch holds: its copy of the weight, output and workspaces.
            l2_bytes: size of the L2.
            free_bytes: device memory that is free.

        Raises:
            RoofgapError: not even one launch fits into the memory.
        """
        fitting = int(free_bytes * self.memory_fraction) // max(held_bytes, 1)
        if fitting < 1:
            raise RoofgapError(
                f"{held_bytes:,} bytes per launch",
                f"must fit into {self.memory_fraction:.0%} of the {free_bytes:,} free bytes",
                "free device memory or raise memory_fraction",
            )
        cold = math.ceil(self.min_bytes_factor * l2_bytes / max(read_bytes, 1))
        return min(max(cold, self.min_launches), self.max_launches, fitting)

    def exceeds_cache(self, read_bytes: int, launches: int, l2_bytes: int) -> bool:
        """Whether all copies together are so large that L2 cannot have served them."""
        return self.is_cold and launches * read_bytes >= self.min_bytes_factor * l2_bytes


COLD = MeasurePolicy()
"""The default: one kernel after the other, one pass over weights that no cache holds."""

CHAINED = MeasurePolicy(mode="chained-graph")
"""What decoding sees in a graph of dependent launches (sm_90 on): a launch begins while the one before it ends."""


def policy_of(key: str) -> MeasurePolicy:
    """The policy with default counts that has this key.

    Raises:
        RoofgapError: none has.
    """
    known = {policy.key: policy for policy in (MeasurePolicy(mode=mode) for mode in get_args(Mode))}
    if key not in known:
        raise RoofgapError(f"policy {key!r}", "unknown", f"use one of {', '.join(known)}")
    return known[key]
