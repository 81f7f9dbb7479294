"""A model's matrices measured alone, cold, one launch each: what the same kernels reach outside of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from roofgap.shapes.accounting import WeightFormat, bias_bytes
from roofgap.shapes.manifest import Manifest, Matrix
from roofgap.shapes.problem import Problem

if TYPE_CHECKING:
    from roofgap.kernels.variant import Variant
    from roofgap.tuning.measure.device import Device


def role_bytes(
    manifest: Manifest,
    weights: WeightFormat,
    head: WeightFormat,
    *,
    kv_bytes: float = 0.0,
    norm_bytes: float = 0.0,
) -> dict[str, float]:
    """Bytes a step reads by role: each matrix with its scales, zeros and bias, the cache, the norms.

    Args:
        manifest: with q|k|v and gate|up joined where the arm joins them.
        weights: format of the linears.
        head: format of the head.
        kv_bytes: keys and values of the context.
        norm_bytes: weights of all norms.
    """
    found = {
        str(matrix.role): float(
            matrix.count
            * (
                (head if matrix.role == "head" else weights).matrix_bytes(matrix.n, matrix.k).total
                + bias_bytes(matrix)
            )
        )
        for matrix in manifest.matrices
    }
    return found | {"attention": kv_bytes, "norms": norm_bytes}


def isolated_us(
    problems: Sequence[tuple[Matrix, Problem]], variants: Mapping[str, Variant | None], device: Device
) -> dict[str, float]:
    """Microseconds of a step's matrix products by role: the cold median of one, times their number.

    A problem is measured once per process and variant. A role whose measurement fails is left out; the waterfall
    then does not split.

    Args:
        problems: as ``Manifest.problems`` gives them.
        variants: by role, the variant that multiplies; None for torch's dense matmul. Roles not in it are left
            out.
        device: where.
    """
    found: dict[str, float] = {}
    for matrix, problem in problems:
        if matrix.role not in variants:
            continue
        once = _median_us(problem, variants[matrix.role], device)  # type: ignore[arg-type]  # hashed by identity
        if once is not None:
            found[str(matrix.role)] = matrix.count * once
    return found


@lru_cache(maxsize=1024)
def _median_us(problem: Problem, variant: Variant | None, device: Device) -> float | None:
    """Of one launch with the config that the model runs; None where it failed."""
    from roofgap.kernels.ops import find_config
    from roofgap.tuning.measure.failure import MeasureError
    from roofgap.tuning.measure.interleaved import measure_interleaved
    from roofgap.tuning.measure.policy import COLD
    from roofgap.tuning.measure.stats import Spread
    from roofgap.tuning.measure.workload import Workload

    workload = Workload(problem, device)
    try:
        if variant is None:
            ready = workload.prepare_torch(COLD)
        else:
            ready = workload.prepare(variant, find_config(variant, problem, device.torch_device), COLD)
    except MeasureError:
        return None
    (samples,) = measure_interleaved([ready], COLD.replays)
    return Spread.of(samples).p50 if isinstance(samples, tuple) else None
