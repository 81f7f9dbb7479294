"""Whether a kernel can keep the memory busy: instructions spent per weight against those the GPU can issue.

While a GPU streams a weight of b bytes at bandwidth B, its SMs issue S x L x f x b / B thread-instructions
(S multiprocessors, L lanes issued per clock, f clock). A kernel that spends more per weight is bound by
issue, however good its memory accesses are; one that spends less can be bound by bandwidth, and is if enough
loads are in flight.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from roofgap.kernels.static.targets import Target
from roofgap.shapes.device import DeviceProfile

Bound = Literal["bandwidth-bound", "issue-bound"]


class Pipe(BaseModel):
    """One thing that instructions compete for.

    Attributes:
        name: ``issue`` (every instruction; on AMD every vector instruction) or ``int`` (the integer pipe).
        lanes: thread-instructions per SM and clock.
        affordable: thread-instructions per weight at full bandwidth.
        spent: thread-instructions per weight of the kernel.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["issue", "int"]
    lanes: int
    affordable: float
    spent: float

    @property
    def load(self) -> float:
        """Share of the pipe that full bandwidth needs; above 1 it is not reached."""
        return self.spent / self.affordable


class Budget(BaseModel):
    """The comparison on one GPU.

    Attributes:
        device: name of the device profile.
        sm_count: multiprocessors.
        clock_mhz: clock they are assumed to run at.
        bandwidth_gbps: memory bandwidth, 1e9 bytes/s.
        bandwidth_source: where that figure comes from.
        bytes_per_weight: bytes moved per weight: codes, their share of scales and zeros, and what the loop
            stores.
        weight_passes: how often the programs together process each weight (see ``LaunchMetrics``).
        pipes: what the kernel spends of each pipe, all passes together.
        attainable: highest share of the bandwidth that the busiest pipe allows, at most 1.
        bound: the verdict.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    sm_count: int
    clock_mhz: float
    bandwidth_gbps: float
    bandwidth_source: str
    bytes_per_weight: float
    weight_passes: float
    pipes: tuple[Pipe, ...]
    attainable: float
    bound: Bound

    def reasoning(self) -> list[str]:
        """The verdict in sentences with its numbers."""
        issue = self.pipes[0]
        weights = self.bandwidth_gbps / self.bytes_per_weight
        lines = [
            f"{self.device} streams {self.bandwidth_gbps:,.0f} GB/s ({self.bandwidth_source}); at "
            f"{self.bytes_per_weight:.4g} bytes per weight that is {weights:,.0f} billion weights a second.",
            f"Its {self.sm_count} SMs issue {issue.lanes} thread-instructions each per clock at "
            f"{self.clock_mhz:,.0f} MHz: {issue.affordable:.2f} per weight at full bandwidth. "
            f"The kernel spends {issue.spent:.2f}, {issue.load:.0%} of the issue slots.",
        ]
        if abs(self.weight_passes - 1) > 0.005:
            lines.append(
                f"That is {issue.spent / self.weight_passes:.2f} in each of {self.weight_passes:.3g} passes over the "
                "weights, by padded tiles or by programs for other rows of x."
            )
        lines += [
            f"The integer pipe takes {pipe.lanes} of them per clock: {pipe.affordable:.2f} per weight. "
            f"The kernel spends at least {pipe.spent:.2f}, {pipe.load:.0%} of it."
            for pipe in self.pipes[1:]
        ]
        if self.bound == "issue-bound":
            busiest = max(self.pipes, key=lambda pipe: pipe.load)
            what = "instruction issue" if busiest.name == "issue" else "the integer pipe"
            lines.append(f"Issue-bound: {what} stops it at {self.attainable:.0%} of the bandwidth at best.")
        else:
            lines.append(
                "Bandwidth-bound: the instructions fit beside the memory stream, so memory sets the pace if "
                "enough loads are in flight."
            )
        return lines


def weigh(
    target: Target,
    device: DeviceProfile,
    *,
    bytes_per_weight: float,
    spent: float,
    spent_int: float | None,
    weight_passes: float = 1.0,
) -> Budget:
    """Sets what a kernel spends against what a GPU affords.

    Args:
        target: what the kernel was compiled for.
        device: a GPU of that architecture. The clock is the measured one where there is one, else the highest
            advertised.
        bytes_per_weight: bytes moved per weight.
        spent: thread-instructions per weight and pass that compete for issue.
        spent_int: those of them that must run on the integer pipe, or None if not counted.
        weight_passes: passes over the weights.

    Raises:
        RoofgapError: the device has no bandwidth.
    """
    bandwidth = device.bandwidth()
    clock_mhz = (device.measured and device.measured.sm_clock_mhz) or device.boost_clock_mhz
    per_lane = device.sm_count * clock_mhz * 1e6 * bytes_per_weight / (bandwidth.gbps * 1e9)
    lanes: dict[Literal["issue", "int"], tuple[int | None, float | None]] = {
        "issue": (target.issue_lanes, spent),
        "int": (target.int_lanes, spent_int),
    }
    pipes = [
        Pipe(name=name, lanes=count, affordable=count * per_lane, spent=each * weight_passes)
        for name, (count, each) in lanes.items()
        if count is not None and each is not None
    ]
    load = max(pipe.load for pipe in pipes)
    return Budget(
        device=device.name,
        sm_count=device.sm_count,
        clock_mhz=clock_mhz,
        bandwidth_gbps=bandwidth.gbps,
        bandwidth_source=bandwidth.source,
        bytes_per_weight=bytes_per_weight,
        weight_passes=weight_passes,
        pipes=tuple(pipes),
        attainable=min(1.0, 1 / load) if load else 1.0,
        bound="issue-bound" if load > 1 else "bandwidth-bound",
    )
