"""Times on this machine's GPU, weights cold in L2, each commit with its own winners. N/a without a GPU."""

from __future__ import annotations

from typing import Any

from . import _device
from ._cells import axes, device_cells
from ._reading import metric, require


class Cold:
    """One launch in a CUDA graph, every launch on its own copy of the weight; outputs checked."""

    params = axes("device")
    param_names = ("variant", "shape", "m")
    version = "1"
    timeout = 3600
    rounds = 2

    def setup_cache(self) -> dict[Any, Any]:
        return _device.readings(device_cells())

    setup_cache.timeout = 3600  # type: ignore[attr-defined]

    def setup(self, cache: Any, variant: str, shape: str, m: int) -> None:
        require(cache, variant, shape, m)

    def sampled_latency_us(self, cache: Any, *cell: Any) -> Any:
        return metric(cache, cell, "latency_us")

    def sampled_roof_gap(self, cache: Any, *cell: Any) -> Any:
        """Time / time the hardware allows."""
        return metric(cache, cell, "roof_gap")

    def sampled_attainable_gap(self, cache: Any, *cell: Any) -> Any:
        """Time / time of a kernel that only reads the same bytes."""
        return metric(cache, cell, "attainable_gap")


for _name, _unit in _device.METRICS.items():
    getattr(Cold, f"sampled_{_name}").unit = _unit
