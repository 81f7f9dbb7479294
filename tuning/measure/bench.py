"""Contenders on one problem: prepared together, timed in turns, each with its gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.variant import Variant
from roofgap.tuning.measure.failure import Failure, classify
from roofgap.tuning.measure.gap import Ceilings
from roofgap.tuning.measure.interleaved import measure_interleaved
from roofgap.tuning.measure.measurement import Measurement, summarise
from roofgap.tuning.measure.op import Prepared
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.workload import Workload
from roofgap.tuning.results import Cell


@dataclass(frozen=True, slots=True)
class Contender:
    """A variant with a config, or torch's dense matmul (both None)."""

    variant: Variant | None
    config: KernelConfig | None

    @property
    def name(self) -> str:
        """``torch`` or the variant's name."""
        return "torch" if self.variant is None else self.variant.name

    def prepare(self, workload: Workload, policy: MeasurePolicy) -> Prepared:
        """Ready to be timed; raises what went wrong."""
        if self.variant is None or self.config is None:
            return workload.prepare_torch(policy)
        return workload.prepare(self.variant, self.config, policy)


def bench(
    workload: Workload, contenders: Sequence[Contender], policy: MeasurePolicy, ceilings: Ceilings
) -> list[dict[str, Cell]]:
    """One row per contender, in their order. A failure is a row with its status and evidence.

    After ``illegal_access`` the CUDA context of the process is lost, and the rows that follow say so too.
    """
    ready = [_prepare(contender, workload, policy) for contender in contenders]
    timed = [prepared for prepared in ready if isinstance(prepared, Prepared)]
    readings = iter(measure_interleaved(timed, policy.replays))
    state = workload.device.state()
    outcomes: list[Measurement | Failure] = []
    for prepared in ready:
        if isinstance(prepared, Failure):
            outcomes.append(prepared)
            continue
        reading = next(readings)
        outcomes.append(reading if isinstance(reading, Failure) else summarise(prepared, reading, state))
    rows = [
        ceilings.row(workload.problem, each.name, each.config.key if each.config else None, outcome)
        for each, outcome in zip(contenders, outcomes, strict=True)
    ]
    torch_us = next((row.get("latency_us") for row in rows if row["variant"] == "torch"), None)
    return [row | {"speedup_over_torch": _ratio(torch_us, row.get("latency_us"))} for row in rows]


def _ratio(numerator: Cell, denominator: Cell) -> float | None:
    return (
        numerator / denominator if isinstance(numerator, float) and isinstance(denominator, float) else None
    )


def _prepare(contender: Contender, workload: Workload, policy: MeasurePolicy) -> Prepared | Failure:
    try:
        return contender.prepare(workload, policy)
    except Exception as error:
        return classify(error)
