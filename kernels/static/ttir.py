"""Finds in Triton IR which loads fetch packed codes, how many distinct words, and how often they run.

Machine code alone cannot tell a weight load from another load, nor a word that is loaded once from one that
is loaded eight times. Triton's IR can: every address is integer arithmetic on arguments, program ids, ranges
and loop counters. ``find_streams`` follows each load's pointer back to a kernel argument and evaluates its
addresses, exactly, for program 0 in the first iteration of its loops, with the arguments of the launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from roofgap.kernels.static.addresses import POINTER_STEPS, Evaluator
from roofgap.kernels.static.ir import (
    CannotEvaluateError,
    Loop,
    Module,
    Operation,
    element_bytes,
    parse_module,
    shape_of,
)

_SHORT_AXIS = 64  # programs of an axis whose trip counts are worth averaging


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A ``tt.load`` of packed codes."""

    line: int
    shape: tuple[int, ...]
    element_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """All loads of packed codes in one innermost loop (or outside any).

    Attributes:
        loads: the loads, in program order.
        in_loop: whether a loop repeats them.
        asked_bytes: bytes per program and iteration that the loads ask for, masked lanes included.
        unique_bytes: distinct bytes of these, masked lanes excluded; None if an address could not be
            evaluated.
        trips: how often a program runs them, averaged over the programs along short axes of the grid
            (split-K): the product of the trip counts of the loops around; None if unknown.
        stored_bytes: bytes per program that stores in the same loop write (all stores of the kernel if not
            in_loop).
        problem: why unique_bytes or trips is None.
    """

    loads: tuple[Load, ...]
    in_loop: bool
    asked_bytes: int
    unique_bytes: int | None
    trips: float | None
    stored_bytes: int
    problem: str | None = None

    @property
    def lines(self) -> frozenset[int]:
        """IR lines of the loads."""
        return frozenset(load.line for load in self.loads)


def find_streams(
    text: str, values: Sequence[Any], codes: frozenset[int], grid: Sequence[int]
) -> list[Stream]:
    """Weight streams of a kernel, the largest (bytes per program over all iterations) first.

    Args:
        text: Triton IR of the kernel.
        values: what each function argument is, in order: an int, or None for pointers and floats.
        codes: positions of the arguments that point to packed codes.
        grid: programs per axis.
    """
    module = parse_module(text)
    names = {module.arguments[at] for at in codes}
    known = dict(zip(module.arguments, values, strict=True))
    evaluator = Evaluator(module, known, grid)
    groups: dict[int, list[Operation]] = {}
    loops: dict[int, Loop | None] = {}
    for operation in module.definitions.values():
        if operation.op == "tt.load" and _root(module, operation.operands[0]) in names:
            groups.setdefault(id(operation.loop), []).append(operation)
            loops[id(operation.loop)] = operation.loop
    streams = [_stream(module, evaluator, loops[key], group) for key, group in groups.items()]
    return sorted(streams, key=lambda stream: -(stream.asked_bytes * (stream.trips or 1)))


def _stream(module: Module, evaluator: Evaluator, loop: Loop | None, operations: list[Operation]) -> Stream:
    loads = tuple(
        Load(line=operation.line, shape=shape_of(operation.text), element_bytes=element_bytes(operation.text))
        for operation in operations
    )
    unique_bytes: int | None = None
    trips: float | None = None
    problem = None
    try:
        trips = _mean_trips(module, evaluator, loop)
        touched = [evaluator.addresses(operation) for operation in operations]
        element = loads[0].element_bytes
        unique_bytes = len(np.unique(np.concatenate(touched))) * element
    except CannotEvaluateError as error:
        problem = str(error)
    return Stream(
        loads=loads,
        in_loop=loop is not None,
        asked_bytes=sum(prod(load.shape) * load.element_bytes for load in loads),
        unique_bytes=unique_bytes,
        trips=trips,
        stored_bytes=sum(
            prod(shape_of(store.text)) * element_bytes(store.text)
            for store in module.stores
            if loop is None or store.loop is loop
        ),
        problem=problem,
    )


def _mean_trips(module: Module, first: Evaluator, loop: Loop | None) -> float:
    """Trips of program 0, scaled by how those of the others along each short axis compare with it."""
    base = first.trips(loop)
    mean = float(base)
    for axis, programs in enumerate(first.grid):
        if base and 1 < programs <= _SHORT_AXIS:
            trips = [
                Evaluator(module, first.arguments, first.grid, (axis, program)).trips(loop)
                for program in range(programs)
            ]
            mean *= sum(trips) / programs / base
    return mean


def _root(module: Module, name: str) -> str | None:
    """The function argument that a pointer derives from."""
    while name not in module.arguments:
        if name in module.aliases:
            name = module.aliases[name]
            continue
        operation = module.definitions.get(name)
        if operation is None or operation.op not in POINTER_STEPS:
            return None
        name = operation.operands[0]
    return name
