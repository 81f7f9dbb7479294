"""A benchmark type whose methods return samples, so that asv's own statistics apply to device times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from asv_runner.benchmarks._base import Benchmark, _get_first_attr


class SampledBenchmark(Benchmark):  # type: ignore[misc] # asv carries no types
    """``sampled_*`` methods: a sequence of numbers, each one sample.

    ``time_*`` would not do: it runs ``setup`` before every timed call and reads the host's clock. ``rounds`` of
    the class (default 1) is what asv interleaves commits by.
    """

    name_regex = re.compile(r"^sampled_.+$")

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        self.type = "time"
        self.unit = _get_first_attr(attr_sources, "unit", "us")
        self.rounds = int(_get_first_attr(attr_sources, "rounds", 1))

    def run(self, *params: Any) -> dict[str, Any]:
        """Samples in the form that asv computes median, quartiles and confidence interval from."""
        samples: Sequence[float] = self.func(*params)
        return {"samples": list(samples), "number": 1}
