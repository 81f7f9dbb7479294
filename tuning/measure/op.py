"""One op made ready to be timed: instances with operands of their own, poisoned outputs, one graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roofgap.kernels.step import dependent_launches
from roofgap.tuning.measure.arena import Arena, poison_scratch
from roofgap.tuning.measure.device import Device, Graph, Work
from roofgap.tuning.measure.failure import MeasureError
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.status import Status

if TYPE_CHECKING:
    import torch

HOST_LATE_LIMIT = 12


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison with the reference found.

    Attributes:
        passed: whether every output is within its tolerance.
        rel_error: largest error relative to the reference, as the comparison defines it.
        evidence: what is wrong, empty if nothing is.
    """

    passed: bool
    rel_error: float | None = None
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Instance:
    """One launch of the op: ``run`` reads its operands, may use ``scratch`` and must fill its output."""

    run: Work
    scratch: tuple[torch.Tensor, ...] = ()


Factory = Callable[[int, "torch.Tensor"], Instance]
"""``factory(i, output)`` builds the i-th instance on the i-th copy of the operands."""

Check = Callable[["torch.Tensor"], Verdict]
"""Compares outputs [instances, *shape] with the reference. Must judge every one of them."""


class Prepared:
    """An op that can be sampled. Build it with ``prepare``.

    Attributes:
        label: how messages name it.
        launches: launches per sample.
        read_bytes: bytes each launch must read from DRAM.
        rel_error: largest error of any output seen so far.
        warmup_us: samples of the warm-up so far.
        reproducible: whether all outputs seen so far are bit-identical; all instances have the same operands.
    """

    def __init__(
        self,
        *,
        label: str,
        device: Device,
        policy: MeasurePolicy,
        instances: list[Instance],
        arena: Arena,
        check: Check,
        read_bytes: int,
    ) -> None:
        self.label, self.device, self.policy = label, device, policy
        self.launches = len(instances)
        self.read_bytes = read_bytes
        self.rel_error = 0.0
        self.reproducible = True
        self.warmup_us: list[float] = []
        self._instances, self._arena, self._check = instances, arena, check
        self._first: torch.Tensor | None = None
        self._first_is_judged = False
        scratch = [tensor for instance in instances for tensor in instance.scratch]
        self._poison: list[Work] = [arena.poison, *(_filler(tensor) for tensor in scratch)]
        self._poison_graph: Graph | None = None
        self._graph: Graph | None = None

    def capture(self) -> None:
        """Captures all launches into one graph, and the poisoning into another.

        Raises:
            MeasureError: the graph holds fewer nodes than launches, so something ran elsewhere than in it.
        """
        self._poison_graph = self.device.capture(self._poison)
        with dependent_launches(self.policy.is_chained):
            self._graph = self.device.capture([instance.run for instance in self._instances])
        if self._graph.nodes is not None and self._graph.nodes < self.launches:
            raise MeasureError(
                Status.IMPLAUSIBLE,
                f"{self.label}: the captured graph holds {self._graph.nodes} nodes for {self.launches} "
                "launches; the op does not launch on the current stream",
            )

    def sample(self) -> float:
        """Poisons, runs all launches, checks every output, and returns microseconds per launch.

        Raises:
            MeasureError: a wrong, unwritten or out-of-bounds output, or a host that is always late.
        """
        for _ in range(HOST_LATE_LIMIT):
            self._refresh()
            elapsed = self.device.elapsed_us(self._launch, queued=self._graph is not None)
            self._verify()
            if elapsed is not None:
                return elapsed / self.launches
        raise MeasureError(
            Status.ERROR,
            f"{self.label}: the host queues too slowly to keep its cost outside of the device's time",
        )

    def try_once(self) -> None:
        """Runs the first instance outside any graph, which compiles it, and checks its output.

        Raises:
            MeasureError: as ``sample``.
        """
        for fill in self._poison:
            fill()
        with dependent_launches(self.policy.is_chained):
            self._instances[0].run()
        self.device.synchronise()
        self._judge(self._arena.outputs[:1], "first launch")

    def _refresh(self) -> None:
        if self._poison_graph is not None:
            self._poison_graph.replay()
        else:
            for fill in self._poison:
                fill()

    def _launch(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            for instance in self._instances:
                instance.run()

    def _verify(self) -> None:
        arena = self._arena
        if self._first is None:
            self._first = arena.bits[:1].clone()
        unwritten, overwritten, differing = _to_host(
            arena.unwritten(), arena.overwritten(), (arena.bits != self._first).sum()
        )
        if unwritten:
            raise MeasureError(
                Status.WRONG,
                f"{self.label}: {unwritten} output elements still hold the poison from before the launch",
            )
        if overwritten:
            raise MeasureError(
                Status.WRONG, f"{self.label}: {overwritten} guard elements beside outputs were overwritten"
            )
        self.reproducible = self.reproducible and not differing
        if differing or not self._first_is_judged:  # equal bits have been judged before
            self._judge(arena.outputs, f"one of {self.launches} launches")
            self._first_is_judged = True

    def _judge(self, outputs: torch.Tensor, which: str) -> None:
        verdict = self._check(outputs)
        if not verdict.passed:
            raise MeasureError(Status.WRONG, f"{self.label}, {which}: {verdict.evidence}")
        self.rel_error = max(self.rel_error, verdict.rel_error or 0.0)


def prepare(
    factory: Factory,
    *,
    label: str,
    device: Device,
    policy: MeasurePolicy,
    launches: int,
    read_bytes: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    check: Check,
) -> Prepared:
    """Builds the instances, runs and checks the first, and captures the graph.

    Args:
        factory: builds instance i on its own copy of the operands; all copies hold the same values.
        label: how messages name the op.
        device: where it runs.
        policy: how it will be timed.
        launches: instances per sample, from ``MeasurePolicy.launches``.
        read_bytes: bytes each launch must read from DRAM.
        shape: shape of one output, of at least one element.
        dtype: dtype of the output, of at least two bytes.
        check: compares outputs with the reference.

    Raises:
        MeasureError: the first output is wrong, or the graph holds no work.
    """
    arena = Arena(launches, shape, dtype, device.torch_device)
    instances = [factory(index, arena.outputs[index]) for index in range(launches)]
    prepared = Prepared(
        label=label,
        device=device,
        policy=policy,
        instances=instances,
        arena=arena,
        check=check,
        read_bytes=read_bytes,
    )
    prepared.try_once()
    if policy.uses_graph:
        prepared.capture()
    return prepared


def _filler(tensor: torch.Tensor) -> Work:
    return lambda: poison_scratch(tensor)


def _to_host(*counts: torch.Tensor) -> tuple[int, ...]:
    """Several 0-d counts in one transfer."""
    import torch

    return tuple(int(count) for count in torch.stack(counts).tolist())
