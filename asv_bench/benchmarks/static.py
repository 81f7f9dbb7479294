"""What kernels cost, read from code compiled for named GPUs. Deterministic: any difference is a change."""

from __future__ import annotations

from typing import Any

from . import _static
from ._cells import axes, static_cells
from ._reading import metric, require


class Static:
    """The main launch of each variant, M = 1, group 128, fp16, in the commit's own config for the target."""

    params = axes("static")
    param_names = ("variant", "shape", "target")
    version = "1"
    timeout = 1800

    def setup_cache(self) -> dict[Any, Any]:
        return _static.readings(static_cells())

    setup_cache.timeout = 1800  # type: ignore[attr-defined]

    def setup(self, cache: Any, variant: str, shape: str, target: str) -> None:
        require(cache, variant, shape, target)

    def track_registers(self, cache: Any, *cell: str) -> Any:
        return metric(cache, cell, "registers")

    def track_spill_bytes(self, cache: Any, *cell: str) -> Any:
        return metric(cache, cell, "spill_bytes")

    def track_shared_bytes(self, cache: Any, *cell: str) -> Any:
        return metric(cache, cell, "shared_bytes")

    def track_instructions_per_weight(self, cache: Any, *cell: str) -> Any:
        return metric(cache, cell, "instructions_per_weight")

    def track_narrow_lanes(self, cache: Any, *cell: str) -> Any:
        """32-bit lanes by which the widest weight load falls short of 128 bits: 0 to 3."""
        return metric(cache, cell, "narrow_lanes")


for _name, _unit in _static.METRICS.items():
    getattr(Static, f"track_{_name}").unit = _unit
