"""Where the time of a step goes: every microsecond is one role's, idle, or the host's, and nothing is counted
twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roofgap.e2e.breakdown.roles import LINEARS, ROLES, assign
from roofgap.e2e.breakdown.timeline import Kernel
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.trial import Record


class RoleTime(Record):
    """One role in a step.

    Attributes:
        role: its name.
        launches: kernels and copies per step.
        us: time, microseconds per step; where kernels overlap, the one that began first has the time.
        read_bytes: bytes it must read per step, None where that is not modelled.
        in_model_gbps: read_bytes / us.
        isolated_us: its kernels measured alone, cold, one by one, summed over the step; None if they were
            not.
        isolated_gbps: read_bytes / isolated_us.
    """

    role: str
    launches: float
    us: float
    read_bytes: float | None = None
    in_model_gbps: float | None = None
    isolated_us: float | None = None
    isolated_gbps: float | None = None


class Breakdown(Record):
    """A mean step, from the start of its first kernel to the start of the next step's.

    Attributes:
        steps: steps averaged.
        roles: those that occur, in the order of ``ROLES``.
        idle_us: gaps between kernels while the next one was already queued.
        host_us: gaps in which it was not: the GPU waits for the host.
        total_us: all of these together.
        by_name: kernels per step whose role only their name told; large where a compiler made other kernels.
    """

    steps: int
    roles: tuple[RoleTime, ...]
    idle_us: float
    host_us: float
    total_us: float
    by_name: float = 0.0

    def us(self, *names: str) -> float:
        """Time of some roles together."""
        return sum(role.us for role in self.roles if role.role in names)

    @property
    def busy_us(self) -> float:
        """Time in which something runs."""
        return sum(role.us for role in self.roles)

    @property
    def launches(self) -> float:
        """Kernels and copies per step."""
        return sum(role.launches for role in self.roles)


def break_down(
    steps: Sequence[Sequence[Kernel]],
    template: Sequence[Kernel] | None = None,
    *,
    read_bytes: Mapping[str, float] | None = None,
    isolated_us: Mapping[str, float] | None = None,
) -> Breakdown:
    """Attributes the time of steps that followed one another.

    Args:
        steps: at least two; the last only says when the one before it was over.
        template: as ``roles.assign`` takes it.
        read_bytes: per role, bytes of a step.
        isolated_us: per role, microseconds of a step's kernels measured alone.

    Raises:
        RoofgapError: fewer than two steps, or an empty one.
    """
    if len(steps) < 2 or not all(steps):
        raise RoofgapError(
            f"{len(steps)} profiled steps, {sum(not step for step in steps)} of them empty",
            "must be at least two, none empty",
            "profile more steps",
        )
    us = dict.fromkeys(ROLES, 0.0)
    launches = dict.fromkeys(ROLES, 0)
    idle = host = 0.0
    assigned = [assign(step, template) for step in steps[:-1]]
    flat = [kernel for step, _ in assigned for kernel in step]
    following = steps[-1][0]
    reached = flat[0].start_us
    for kernel in [*flat, following]:
        gap = kernel.start_us - reached
        if gap > 0:
            waited = min(gap, max(0.0, kernel.launch_us - reached)) if kernel.launch_us is not None else 0.0
            host, idle = host + waited, idle + gap - waited
            reached = kernel.start_us
        if kernel is not following:
            assert kernel.role is not None
            us[kernel.role] += max(0.0, min(kernel.end_us, following.start_us) - reached)
            launches[kernel.role] += 1
            reached = max(reached, min(kernel.end_us, following.start_us))
    count = len(steps) - 1
    roles = tuple(
        _role(name, launches[name] / count, us[name] / count, read_bytes or {}, isolated_us or {})
        for name in ROLES
        if launches[name]
    )
    return Breakdown(
        steps=count,
        roles=roles,
        idle_us=idle / count,
        host_us=host / count,
        total_us=(following.start_us - flat[0].start_us) / count,
        by_name=sum(unknown for _, unknown in assigned) / count,
    )


def _role(
    name: str, launches: float, us: float, read_bytes: Mapping[str, float], isolated_us: Mapping[str, float]
) -> RoleTime:
    size, alone = read_bytes.get(name), isolated_us.get(name)
    return RoleTime(
        role=name,
        launches=launches,
        us=us,
        read_bytes=size,
        in_model_gbps=size / us / 1e3 if size is not None and us > 0 else None,
        isolated_us=alone,
        isolated_gbps=size / alone / 1e3 if size is not None and alone else None,
    )


def linear_us(breakdown: Breakdown) -> float:
    """Time of all matrix products of a step."""
    return breakdown.us(*LINEARS)
