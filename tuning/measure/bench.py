"""Contenders on one problem: prepared together, timed in turns, each with its gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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


class Timed(Protocol):
    """What can be timed on a problem beside others."""

    @property
    def name(self) -> str:
        """The ``variant`` of its row."""

    @property
    def facts(self) -> Mapping[str, Cell]:
        """Further cells of its row, known once it was prepared."""

    def prepare(self, workload: Workload, policy: MeasurePolicy) -> Prepared:
        """Ready to be timed; raises what went wrong."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A variant with a config, or torch's dense matmul (both None)."""

    variant: Variant | None
    config: KernelConfig | None

    @property
    def name(self) -> str:
        """``torch`` or the variant's name."""
        return "torch" if self.variant is None else self.variant.name

    @property
    def facts(self) -> Mapping[str, Cell]:
        """The config."""
        return {"config": self.config.key if self.config else None}

    def prepare(self, workload: Workload, policy: MeasurePolicy) -> Prepared:
        """Ready to be timed; raises what went wrong."""
        if self.variant is None or self.config is None:
            return workload.prepare_torch(policy)
        return workload.prepare(self.variant, self.config, policy)


def bench(
    workload: Workload, contenders: Sequence[Timed], policy: MeasurePolicy, ceilings: Ceilings
) -> list[dict[str, Cell]]:
    """One row per contender, in their order. A failure is a row with its status and evidence.

    After ``illegal_access`` the CUDA context of the process is lost, and the rows that follow say so too.
    """
    ready = [prepare(contender, workload, policy) for contender in contenders]
    return time_in_turns(workload, contenders, ready, policy, ceilings)


def prepare(contender: Timed, workload: Workload, policy: MeasurePolicy) -> Prepared | Failure:
    """The contender ready to be timed, or why it is not."""
    try:
        return contender.prepare(workload, policy)
    except Exception as error:
        return classify(error)


def time_in_turns(
    workload: Workload,
    contenders: Sequence[Timed],
    ready: Sequence[Prepared | Failure],
    policy: MeasurePolicy,
    ceilings: Ceilings,
) -> list[dict[str, Cell]]:
    """The rows of contenders that were prepared or failed."""
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
        {**ceilings.row(workload.problem, each.name, None, outcome), **_bytes(outcome), **each.facts}
        for each, outcome in zip(contenders, outcomes, strict=True)
    ]
    torch_us = next((row.get("latency_us") for row in rows if row["variant"] == "torch"), None)
    return [row | {"speedup_over_torch": ratio(torch_us, row.get("latency_us"))} for row in rows]


def _bytes(outcome: Measurement | Failure) -> dict[str, Cell]:
    """What each launch reads of the weight in the contender's own format."""
    return {"weight_bytes": outcome.read_bytes} if isinstance(outcome, Measurement) else {}


def ratio(numerator: Cell, denominator: Cell) -> float | None:
    """Of two times, None where one is missing."""
    return (
        numerator / denominator if isinstance(numerator, float) and isinstance(denominator, float) else None
    )
