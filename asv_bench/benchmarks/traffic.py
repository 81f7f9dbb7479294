"""Bytes that a call moves, as its programs ask for them. Exact: any difference is a change."""

from __future__ import annotations

from typing import Any

from . import _traffic
from ._cells import axes, traffic_cells
from ._reading import metric, require


class Traffic:
    """The default config at M = 1, on shapes cut to 256 x 1536 with their groups and tails kept."""

    params = axes("traffic")
    param_names = ("variant", "shape")
    version = "1"
    timeout = 900

    def setup_cache(self) -> dict[Any, Any]:
        _traffic.interpret()
        return _traffic.readings(traffic_cells())

    setup_cache.timeout = 900  # type: ignore[attr-defined]

    def setup(self, cache: Any, variant: str, shape: str) -> None:
        require(cache, variant, shape)

    def track_bytes_over_minimum(self, cache: Any, *cell: str) -> Any:
        return metric(cache, cell, "bytes_over_minimum")

    def track_distinct_over_minimum(self, cache: Any, *cell: str) -> Any:
        return metric(cache, cell, "distinct_over_minimum")

    def track_loads_per_code(self, cache: Any, *cell: str) -> Any:
        """How often each packed word is asked for."""
        return metric(cache, cell, "loads_per_code")


for _name, _unit in _traffic.METRICS.items():
    getattr(Traffic, f"track_{_name}").unit = _unit
