"""How far results are from the fp64 reference. Exact for one torch and Triton: any difference is a change."""

from __future__ import annotations

from typing import Any

from . import _quality
from ._cells import axes, quality_cells
from ._reading import metric, require
from ._traffic import interpret


class Quality:
    """Relative error over all outputs, M = 2, default config, one seed; a wrong result fails."""

    params = axes("quality")
    param_names = ("variant", "shape", "format")
    version = "1"
    timeout = 900

    def setup_cache(self) -> dict[Any, Any]:
        interpret()
        return _quality.readings(quality_cells())

    setup_cache.timeout = 900  # type: ignore[attr-defined]

    def setup(self, cache: Any, variant: str, shape: str, form: str) -> None:
        require(cache, variant, shape, form)

    def track_relative_error(self, cache: Any, *cell: str) -> Any:
        return metric(cache, cell, "relative_error")

    track_relative_error.unit = "||error|| / ||y||"  # type: ignore[attr-defined]
