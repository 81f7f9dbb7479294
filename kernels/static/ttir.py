"""Finds in Triton IR which loads fetch packed codes, how many distinct words, and how often they run.

Machine code alone cannot tell a weight load from another load, nor a word that is loaded once from one that
is loaded eight times. Triton's IR can: every address is integer arithmetic on arguments, program ids, ranges
and loop counters. ``find_streams`` follows each load's pointer back to a kernel argument and evaluates its
addresses, exactly, for program 0 in the first iteration of its loops, with the arguments of the launch.
A load is a ``tt.load``, or an asynchronous copy (``cp.async``) in inline assembly, one per element.
"""

from __future__ import annotations

import re
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
_ASSEMBLY = "tt.elementwise_inline_asm"
_COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global \[\$\d+\], \[\$(?P<source>\d+)\], (?P<size>\d+)")
_CONSTRAINTS = re.compile(r'constraints = "(?P<kinds>[^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load of packed codes: where it stands, and what it fetches per element."""

    line: int
    shape: tuple[int, ...]
    element_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetch:
    """A load's operation, its pointers and its mask."""

    operation: Operation
    pointers: str
    mask: str | None
    element_bytes: int

    @property
    def load(self) -> Load:
        text = self.operation.text
        return Load(line=self.operation.line, shape=shape_of(text), element_bytes=self.element_bytes)


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
        readers: lines of the shared-memory reads in the loop beside this one, where this one copies into shared
            memory and does nothing else; empty otherwise.
        problem: why unique_bytes or trips is None.
    """

    loads: tuple[Load, ...]
    in_loop: bool
    asked_bytes: int
    unique_bytes: int | None
    trips: float | None
    stored_bytes: int
    readers: tuple[int, ...] = ()
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
    groups: dict[int, list[_Fetch]] = {}
    for operation in module.definitions.values():
        fetch = _fetch(module, operation)
        if fetch is not None and _root(module, fetch.pointers) in names:
            groups.setdefault(id(operation.loop), []).append(fetch)
    streams = [_stream(module, evaluator, group) for group in groups.values()]
    return sorted(streams, key=lambda stream: -(stream.asked_bytes * (stream.trips or 1)))


def _fetch(module: Module, operation: Operation) -> _Fetch | None:
    """What an operation loads from global memory, if it does."""
    if operation.op == "tt.load":
        mask = operation.operands[1] if len(operation.operands) > 1 else None
        size = element_bytes(operation.text)
        return _Fetch(operation=operation, pointers=operation.operands[0], mask=mask, element_bytes=size)
    copied = _COPY.search(operation.text) if operation.op == _ASSEMBLY else None
    if copied is None:
        return None
    constraints = _CONSTRAINTS.search(operation.text)
    assert constraints is not None
    outputs = constraints["kinds"].count("=")
    address = module.definitions.get(operation.operands[int(copied["source"]) - outputs])
    if address is None or address.op != "tt.ptr_to_int":
        return None
    return _Fetch(
        operation=operation, pointers=address.operands[0], mask=None, element_bytes=int(copied["size"])
    )


def _stream(module: Module, evaluator: Evaluator, fetches: list[_Fetch]) -> Stream:
    loop, loads = fetches[0].operation.loop, tuple(fetch.load for fetch in fetches)
    unique_bytes: int | None = None
    trips: float | None = None
    problem = None
    try:
        trips = _mean_trips(module, evaluator, loop)
        touched = [evaluator.addresses(fetch.pointers, fetch.mask) for fetch in fetches]
        unique_bytes = len(np.unique(np.concatenate(touched))) * loads[0].element_bytes
    except CannotEvaluateError as error:
        problem = str(error)
    copies = any(fetch.operation.op == _ASSEMBLY for fetch in fetches)
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
        readers=_readers(module, loop) if copies and loop is not None else (),
        problem=problem,
    )


def _readers(module: Module, loop: Loop) -> tuple[int, ...]:
    """Lines that read shared memory in the loops beside one that does not."""
    reads = [
        each
        for each in module.definitions.values()
        if each.op == _ASSEMBLY and "ld.shared" in each.text and each.loop is not None
    ]
    if any(each.loop is loop for each in reads):
        return ()
    return tuple(each.line for each in reads if each.loop is not None and each.loop.parent is loop.parent)


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
