"""Roof gap and attainable gap: a time beside what the hardware allows and beside what a pure read attains."""

from __future__ import annotations

from dataclasses import dataclass

from roofgap.shapes.device import Bandwidth
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import ELEMENT_BYTES, Problem
from roofgap.shapes.roofline import floor_us
from roofgap.tuning.measure.bandwidth import launch_floor
from roofgap.tuning.measure.device import Device
from roofgap.tuning.measure.failure import Failure, MeasureError
from roofgap.tuning.measure.measurement import Measurement
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.probe import StreamProbe
from roofgap.tuning.results import Cell


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this GPU allows, measured in this process. Build it with ``Ceilings.of``.

    Attributes:
        bandwidth: read-only bandwidth.
        launch_floor_us: time of an empty kernel in a graph, a dependent launch under a chained policy.
        probe: attainable time per byte count, or None under a policy that is not a cold graph.
    """

    bandwidth: Bandwidth
    launch_floor_us: float
    probe: StreamProbe | None

    @classmethod
    def of(cls, device: Device, policy: MeasurePolicy) -> Ceilings:
        """Measures what is missing; the device's read bandwidth must be known (``bandwidth.open_device``)."""
        if device.read_gbps is None:
            raise RoofgapError(
                device.name, "has no measured read bandwidth yet", "open it with open_device()"
            )
        probe = StreamProbe(device, policy) if policy.is_cold and policy.uses_graph else None
        floor = launch_floor(device, chained=policy.is_chained)
        return cls(Bandwidth(device.read_gbps, "measured read"), floor.latency_us, probe)

    def roof_us(self, problem: Problem) -> float:
        """max(bytes / read bandwidth, launch floor): weight and bias read once, activations in cache."""
        bias_bytes = problem.n * ELEMENT_BYTES[problem.x_dtype] if problem.bias else 0
        return floor_us(problem.weight_bytes + bias_bytes, self.bandwidth, self.launch_floor_us)

    def row(
        self, problem: Problem, variant: str, config: str | None, outcome: Measurement | Failure
    ) -> dict[str, Cell]:
        """One flat record of an outcome. A time that the probe cannot match makes it sweep again.

        Gaps of the dense baseline are against the 4-bit problem's bytes, like everyone's.
        """
        row: dict[str, Cell] = {
            "variant": variant,
            "config": config,
            "n": problem.n,
            "k": problem.k,
            "m": problem.m,
            "dtype": problem.x_dtype,
            "group_size": problem.group_size,
            "zero_mode": problem.zero_mode,
            "floor_us": self.launch_floor_us,
            "roof_us": self.roof_us(problem),
        }
        if isinstance(outcome, Failure):
            return row | {"status": outcome.status.value, "evidence": outcome.evidence}
        probe_us, labels = None, list(outcome.labels)
        if self.probe is not None:
            try:
                probe_us = self.probe.beside(problem.weight_bytes, outcome.latency_us, variant).latency_us
            except MeasureError as error:
                labels.append(f"no probe: {error}")
        return row | {
            "latency_us": outcome.latency_us,
            "p20_us": outcome.p20_us,
            "p80_us": outcome.p80_us,
            "probe_us": probe_us,
            "roof_gap": outcome.latency_us / self.roof_us(problem),
            "attainable_gap": outcome.latency_us / probe_us if probe_us else None,
            "read_gbps": outcome.read_gbps,
            "rel_error": outcome.rel_error,
            "reproducible": outcome.reproducible,
            "policy": outcome.policy,
            "samples": outcome.samples,
            "sm_clock_mhz": outcome.state.sm_clock_mhz,
            "labels": "; ".join(labels) or None,
            "status": "ok",
        }
