"""Error of cells (variant, shape, format) against the fp64 reference, in Triton's interpreter: the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from ._cells import Cell
from ._config import own_config, source_hash, variant_named
from ._need import need
from ._reading import Reading, readings_of

SEED = 1
TOKENS = 2
DIGITS = 6  # the reference's own last digits depend on how a BLAS adds


def readings(cells: Sequence[Cell]) -> dict[Cell, Reading]:
    """A reading per cell."""
    return readings_of(cells, _measure)


def _measure(cell: Cell) -> Reading:
    name, shape, form = cell
    x_dtype, zero_mode = form.split()
    variant = variant_named(name)
    problem = need("roofgap.shapes.problem", "Problem").parse(
        shape, m=TOKENS, x_dtype=x_dtype, zero_mode=zero_mode
    )
    limits = need("roofgap.kernels.variant", "Limits")()
    config, _ = own_config(variant, problem, None, limits)
    weight = need("roofgap.kernels.inputs", "quantised_weight")(problem, SEED)
    x = need("roofgap.kernels.inputs", "random_x")(problem, SEED)
    operands = need("roofgap.kernels.inputs", "operands")(
        x, variant.layout.pack(weight), None, need("roofgap.kernels.inputs", "poisoned")(problem)
    )
    y = need("roofgap.kernels.ops", "run_plan")(variant, problem, config, operands)
    verdict = need("roofgap.kernels.tolerance", "judge")(
        y,
        need("roofgap.kernels.reference", "reference")(x, weight),
        k=problem.k,
        split_count=variant.split_count(problem, config),
        rounds_weights=variant.rounds_weights,
        **(
            {"factors_zero": True} if getattr(variant, "factors_zero", False) else {}
        ),  # older commits lack it
    )
    if not verdict.passed:
        return {"failed": f"wrong result: {verdict.detail}"}
    return {
        "metrics": {"relative_error": float(f"{verdict.relative_error:.{DIGITS}g}")},
        "facts": {"config": config.key, "config_source": "default", "source_hash": source_hash(variant)},
    }
