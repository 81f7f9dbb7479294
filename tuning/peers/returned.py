"""Outputs that an op returns instead of writing where it is told: the graph owns them; they are watched alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from roofgap.tuning.measure.arena import BITS, POISON, Arena
from roofgap.tuning.measure.device import Device
from roofgap.tuning.measure.failure import MeasureError
from roofgap.tuning.measure.op import Check, Instance, Prepared
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.status import Status

Call = Callable[[], torch.Tensor]


class Returned:
    """What ``Arena`` is to ops that write into a given output. It holds a reference to every tensor returned, so
    that no two of a graph share memory; a captured op returns a tensor whose address stays, to which every replay
    writes.

    There are no guards beside them: memory is the allocator's.
    """

    def __init__(self, calls: list[Call], shape: tuple[int, ...], dtype: torch.dtype, label: str) -> None:
        self._calls, self._shape, self._dtype, self._label = calls, shape, dtype, label
        self.tensors: dict[int, torch.Tensor] = {}

    def instance(self, index: int) -> Instance:
        """Calls the op and keeps what it returns."""

        def run() -> None:
            tensor = self._calls[index]()
            if tuple(tensor.shape) != self._shape or tensor.dtype != self._dtype:
                raise MeasureError(
                    Status.WRONG,
                    f"{self._label}: returned {tensor.dtype} {list(tensor.shape)} instead of {self._dtype} "
                    f"{list(self._shape)}",
                )
            self.tensors[index] = tensor

        return Instance(run)

    @property
    def outputs(self) -> torch.Tensor:
        """[count, *shape], a copy."""
        return torch.stack([self.tensors[index] for index in sorted(self.tensors)])

    @property
    def bits(self) -> torch.Tensor:
        """[count, elements] as integers, a copy."""
        return self.outputs.flatten(1).view(BITS[self._dtype.itemsize])

    def require_own(self) -> None:
        """Every call must have returned memory of its own.

        Raises:
            MeasureError: two outputs share memory.
        """
        places = {tensor.data_ptr() for tensor in self.tensors.values()}
        if len(places) != len(self._calls):
            raise MeasureError(
                Status.WRONG, f"{self._label}: {len(self._calls)} launches returned {len(places)} outputs"
            )

    def poison(self) -> None:
        """Overwrites every output returned so far."""
        for tensor in self.tensors.values():
            tensor.view(torch.int16).fill_(POISON)

    def unwritten(self) -> torch.Tensor:
        """Number of output elements that still hold poison; 0-d."""
        halves = self.outputs.view(torch.int16)
        return (halves == POISON).sum()

    def overwritten(self) -> torch.Tensor:
        """No guards, so none was touched; 0-d."""
        return torch.zeros((), dtype=torch.int64, device=self.tensors[0].device)


class PreparedReturning(Prepared):
    """A ``Prepared`` whose poisoning is captured after the launches, when their outputs have addresses."""

    def capture(self) -> None:
        """The launches, then the poisoning of what they return: before, only the first output was known."""
        super().capture()
        self._poison_graph = self.device.capture(self._poison)

    def sample(self) -> float:
        """As ``Prepared.sample``; outputs that share memory are wrong too."""
        elapsed = super().sample()
        cast("Returned", self._arena).require_own()
        return elapsed


def prepare_returning(
    calls: list[Call],
    *,
    label: str,
    device: Device,
    policy: MeasurePolicy,
    read_bytes: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    check: Check,
) -> Prepared:
    """``op.prepare`` for calls that return their output, each on its own copy of the operands.

    The first launch is judged by its values alone; the poison shows from the first replay on.

    Raises:
        MeasureError: the first output is wrong, the graph holds no work, or outputs share memory.
    """
    returned = Returned(calls, shape, dtype, label)
    prepared = PreparedReturning(
        label=label,
        device=device,
        policy=policy,
        instances=[returned.instance(index) for index in range(len(calls))],
        arena=cast("Arena", returned),
        check=check,
        read_bytes=read_bytes,
    )
    prepared.try_once()
    if policy.uses_graph:
        prepared.capture()
    return prepared
