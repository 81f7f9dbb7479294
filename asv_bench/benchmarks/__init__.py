"""What is tracked from commit to commit. Lower is better everywhere: asv knows no other direction.

Modules with an underscore hold what the lanes share with ``roofgap gate``; the others are lanes, one a file.
Nothing here imports torch, triton or roofgap before a benchmark runs.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path


def _check_origin() -> None:
    # asv imports the suite beside the roofgap of the measured commit; another one would give false history.
    environment = os.environ.get("ASV_ENV_DIR")
    spec = find_spec("roofgap")
    if environment and not (spec and spec.origin and Path(spec.origin).is_relative_to(environment)):
        raise RuntimeError(
            f"roofgap comes from {spec and spec.origin}, not from asv's environment {environment}"
        )


def _register_type() -> None:
    # Here and not in an installed plug-in: the type is versioned with the suite.
    if find_spec("asv_runner") is not None:
        from asv_runner.benchmarks import benchmark_types

        from ._samples import SampledBenchmark

        if SampledBenchmark not in benchmark_types:
            benchmark_types.insert(0, SampledBenchmark)


_check_origin()
_register_type()
