"""What the host pays before anything reaches a GPU. Noisy, hence samples: asv compares distributions."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from ._cells import VARIANTS
from ._config import use_own_winners, variant_named
from ._need import need

SAMPLES = 10
PLANS = 50


def sample(action: Callable[[], object], calls: int = 1) -> dict[str, Any]:
    """Seconds of a call, ``SAMPLES`` times over ``calls`` of them, in the form that asv's statistics want."""
    action()  # imports and caches are not what is compared
    samples = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        for _ in range(calls):
            action()
        samples.append((time.perf_counter() - start) / calls)
    return {"samples": samples, "number": 1}


class CommandStart:
    """A fresh interpreter that imports what ``roofgap --help`` imports."""

    version = "1"

    def setup(self) -> None:
        if self.start().returncode:
            raise NotImplementedError("this commit has no command line")

    def start(self) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-c", "import roofgap.cli.main"], check=False, stderr=subprocess.DEVNULL
        )

    def track_seconds(self) -> dict[str, Any]:
        return sample(self.start)

    track_seconds.unit = "seconds"  # type: ignore[attr-defined]
    track_seconds.rounds = 2  # type: ignore[attr-defined]


class ManifestLoad:
    """Reading and checking the largest shipped manifest."""

    version = "1"

    def setup(self) -> None:
        self.load = need("roofgap.shapes.manifest", "load_manifest")

    def track_seconds(self) -> dict[str, Any]:
        return sample(lambda: self.load("qwen2.5-72b"))

    track_seconds.unit = "seconds"  # type: ignore[attr-defined]
    track_seconds.rounds = 2  # type: ignore[attr-defined]


class Packing:
    """Canonical weight to a variant's layout, 1536 x 1536."""

    params = VARIANTS
    param_names = ("variant",)
    version = "1"

    def setup(self, variant: str) -> None:
        problem = need("roofgap.shapes.problem", "Problem").parse("1536x1536")
        self.weight = need("roofgap.kernels.inputs", "random_weight")(problem, 0)
        self.pack = variant_named(variant).layout.pack

    def track_seconds(self, variant: str) -> dict[str, Any]:
        return sample(lambda: self.pack(self.weight))

    track_seconds.unit = "seconds"  # type: ignore[attr-defined]
    track_seconds.rounds = 2  # type: ignore[attr-defined]


class Planning:
    """Default config and launch plan of a product, what every call pays before its first launch."""

    params = VARIANTS
    param_names = ("variant",)
    version = "1"

    def setup(self, variant: str) -> None:
        self.variant = variant_named(variant)
        self.problem = need("roofgap.shapes.problem", "Problem").parse("8960x1536")
        self.operands = need("roofgap.kernels.inputs", "meta_operands")(self.variant, self.problem)

    def plan(self) -> None:
        self.variant.plan(self.problem, self.variant.default_config(self.problem), self.operands)

    def track_seconds(self, variant: str) -> dict[str, Any]:
        return sample(self.plan, calls=PLANS)

    track_seconds.unit = "seconds"  # type: ignore[attr-defined]
    track_seconds.rounds = 2  # type: ignore[attr-defined]


class ConfigLookup:
    """A miss in every folder of winners: the first call of a shape that was never tuned."""

    version = "1"

    def setup(self) -> None:
        self.choose = need("roofgap.tuning.lookup", "choose")
        self.variant = variant_named("v3")
        self.problem = need("roofgap.shapes.problem", "Problem").parse("8960x1536")
        use_own_winners()

    def track_seconds(self) -> dict[str, Any]:
        return sample(lambda: self.choose(self.variant, self.problem, "no-such-gpu"))

    track_seconds.unit = "seconds"  # type: ignore[attr-defined]
    track_seconds.rounds = 2  # type: ignore[attr-defined]
