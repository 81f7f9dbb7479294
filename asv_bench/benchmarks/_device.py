"""Device times of cells (variant, shape, m): checked, cold in L2, variants of one problem timed in turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ._cells import Cell
from ._config import own_config, source_hash, variant_named
from ._need import need
from ._reading import Reading, guarded

SAMPLES = 20  # asv's test of significance needs more than six a side
METRICS = {"latency_us": "us", "roof_gap": "x roof", "attainable_gap": "x attainable"}


class Gpu:
    """This process's GPU with what it attains: opened once, bandwidth and launch floor measured."""

    def __init__(self) -> None:
        torch = need("torch", "cuda")
        if not torch.is_available():
            raise NotImplementedError("no GPU that torch can use")
        self.policy = need("roofgap.tuning.measure.policy", "MeasurePolicy")()
        self.device = need("roofgap.tuning.measure.bandwidth", "open_device")()
        self.name = need("roofgap.tuning.environment", "gpu_name")(self.device.name)
        self.limits = need("roofgap.kernels.ops", "limits_of")(self.device.torch_device)
        self._ceilings: Any = None

    @property
    def ceilings(self) -> Any:
        """Roof and attainable times."""
        if self._ceilings is None:
            self._ceilings = need("roofgap.tuning.measure.gap", "Ceilings").of(self.device, self.policy)
        return self._ceilings

    def workload(self, shape: str, m: str) -> Any:
        """Operands of a problem."""
        problem = need("roofgap.shapes.problem", "Problem").parse(shape, m=int(m))
        return need("roofgap.tuning.measure.workload", "Workload")(problem, self.device)

    def prepare(self, workload: Any, name: str) -> tuple[Any, dict[str, Any]]:
        """A variant in its own config, checked and captured, and the facts that explain its time."""
        variant = variant_named(name)
        config, source = own_config(variant, workload.problem, self.name, self.limits)
        prepared = workload.prepare(variant, config, self.policy)
        return prepared, {
            "config": config.key,
            "config_source": source,
            "source_hash": source_hash(variant),
        }


def readings(cells: Sequence[Cell], gpu: Gpu | None = None) -> dict[Cell, Reading]:
    """A reading per cell; ``cells`` of one problem stand together.

    After an illegal access the CUDA context is lost, and every cell that follows fails by that name.
    """
    found: dict[Cell, Reading] = {}
    try:
        gpu = gpu or Gpu()
    except NotImplementedError as reason:
        return {cell: {"na": str(reason)} for cell in cells}
    for (shape, m), group in groupby(cells, key=lambda cell: (cell[1], cell[2])):
        listed = list(group)
        workload = guarded(lambda shape=shape, m=m: {"workload": gpu.workload(shape, m)})  # type: ignore[misc]
        if "workload" in workload:
            found |= _time_problem(gpu, workload["workload"], listed)
        else:
            found |= dict.fromkeys(listed, workload)
    return found


def _time_problem(gpu: Gpu, workload: Any, cells: Sequence[Cell]) -> dict[Cell, Reading]:
    found: dict[Cell, Reading] = {}
    ready: dict[Cell, tuple[Any, dict[str, Any]]] = {}
    for cell in cells:
        outcome = guarded(lambda cell=cell: {"ready": gpu.prepare(workload, cell[0])})  # type: ignore[misc]
        if "ready" in outcome:
            ready[cell] = outcome["ready"]
        else:
            found[cell] = outcome
    interleaved = need("roofgap.tuning.measure.interleaved", "measure_interleaved")
    timed = interleaved([prepared for prepared, _ in ready.values()], SAMPLES)
    for (cell, (prepared, facts)), samples in zip(ready.items(), timed, strict=True):
        found[cell] = guarded(
            lambda prepared=prepared, facts=facts, samples=samples: _read(  # type: ignore[misc]
                gpu, workload, prepared, facts, samples
            )
        )
    return found


def _read(gpu: Gpu, workload: Any, prepared: Any, facts: dict[str, Any], samples: Any) -> Reading:
    if hasattr(samples, "evidence"):
        return {"failed": f"{samples.status.value}: {samples.evidence}"}
    summarise = need("roofgap.tuning.measure.measurement", "summarise")
    row = gpu.ceilings.row(
        workload.problem,
        prepared.label,
        facts["config"],
        summarise(prepared, samples, gpu.device.state()),
    )
    probe_us = row["probe_us"]
    return {
        "metrics": {
            "latency_us": list(samples),
            "roof_gap": [sample / row["roof_us"] for sample in samples],
            "attainable_gap": [sample / probe_us for sample in samples] if probe_us else None,
        },
        "facts": {
            **facts,
            "rel_error": row["rel_error"],
            "labels": row["labels"],
            "probe_us": probe_us,
            "roof_us": row["roof_us"],
            "launches": prepared.launches,
        },
    }
