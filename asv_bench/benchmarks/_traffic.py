"""Bytes that cells (variant, shape) move, counted in Triton's interpreter on a cut of the shape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ._cells import Cell
from ._config import source_hash, variant_named
from ._need import need
from ._reading import Reading, readings_of

METRICS = {
    "bytes_over_minimum": "bytes asked / least bytes",
    "distinct_over_minimum": "distinct bytes / least bytes",
    "loads_per_code": "loads",
}


def interpret() -> None:
    """Kernels defined from now on are interpreted; Triton asks when it defines one."""
    os.environ["TRITON_INTERPRET"] = "1"


def readings(cells: Sequence[Cell]) -> dict[Cell, Reading]:
    """A reading per cell. Shapes that are cut to the same one are counted once."""
    counted: dict[tuple[str, Any], Reading] = {}

    def measure(cell: Cell) -> Reading:
        name, shape = cell
        problem = need("roofgap.shapes.cut", "cut_problem")(
            need("roofgap.shapes.problem", "Problem").parse(shape)
        )
        variant = variant_named(name)
        if reason := variant.supports(problem):
            raise NotImplementedError(reason)
        key = (name, problem)
        if key not in counted:
            counted[key] = _read(variant, need("roofgap.kernels.traffic.run", "count_traffic")(name, problem))
        return counted[key]

    return readings_of(cells, measure)


def _read(variant: Any, traffic: Any) -> Reading:
    return {
        "metrics": {
            "bytes_over_minimum": traffic.asked_to_minimum,
            "distinct_over_minimum": traffic.cached_to_minimum,
            "loads_per_code": traffic.codes_ratio,
        },
        "facts": {
            "config": ",".join(f"{name}={value}" for name, value in traffic.config.items()),
            "config_source": "default",
            "source_hash": source_hash(variant),
            "counted_on": traffic.problem.shape,
            "bytes": {f"{row.tensor} {row.kind}": row.asked_bytes for row in traffic.rows},
        },
    }
