"""Instructions per weight: the machine loop that streams the weights, matched with its loads in the IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from roofgap.kernels.static import amd, sass
from roofgap.kernels.static.compile import CompiledLaunch
from roofgap.kernels.static.instructions import (
    CLASSES,
    Instruction,
    Region,
    count_classes,
    find_loops,
    main_region,
    shared_reads,
    weight_bytes,
)
from roofgap.kernels.static.layout import loaded_bytes_per_thread
from roofgap.kernels.static.targets import Target
from roofgap.kernels.static.ttir import Stream
from roofgap.shapes.problem import Problem

WEIGHTS_PER_BYTE = 2
_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class PerWeight:
    """What one launch spends on a weight.

    Attributes:
        by_class: thread-instructions per weight by class, and their ``total``.
        vector: those that AMD's vector ALU runs.
        integer: those that only NVIDIA's integer pipe runs.
        instructions_in_loop: instructions of the main loop, or of the kernel; with those of the loop that reads
            what the main loop copies into shared memory, for as many weights.
        weights: distinct weights one program takes from one trip through these instructions.
        loads_per_word: bytes asked for over distinct bytes.
        passes: weights processed by all programs over N x K, or None.
        load_bits: widest load of codes, or None if none was found in the code.
        stored_bytes_per_weight: bytes that the same loop stores.
        notes: caveats.
    """

    by_class: dict[str, float]
    vector: float
    integer: float
    instructions_in_loop: int
    weights: int
    loads_per_word: float
    passes: float | None
    load_bits: int | None
    stored_bytes_per_weight: float
    notes: tuple[str, ...]

    def issued(self, target: Target) -> float:
        """Thread-instructions per weight that compete for the issue slots which ``target.issue_lanes``
        counts."""
        return self.by_class["total"] if target.backend == "cuda" else self.vector


def per_weight(
    code: list[Instruction], stream: Stream, compiled: CompiledLaunch, problem: Problem
) -> PerWeight | None:
    """Counts for the largest weight stream of a launch, or None where the code has no load for it.

    The weights of one machine-loop trip are the distinct weights of one IR iteration times the iterations
    that the compiler put into one trip (unrolling). That factor is the bytes per thread which the machine
    loop loads over the bytes per thread which the layout gives one iteration. Where the loop only copies into
    shared memory, the loop that reads there counts too: its instructions per iteration, times this factor.
    """
    notes: list[str] = []
    region = main_region(code, stream.lines)
    body = region.of(code)
    loaded = weight_bytes(body, stream.lines)
    if not loaded:
        return None
    if stream.problem:
        notes.append(f"Assumes that each word is loaded once: cannot evaluate {stream.problem}.")
    unique_bytes = stream.unique_bytes or stream.asked_bytes
    loads_per_word = stream.asked_bytes / unique_bytes
    expected = loaded_bytes_per_thread(compiled.asm["ttgir"], stream.loads)
    if expected is None:
        expected = max(1, stream.asked_bytes // compiled.threads)
        notes.append(
            "The layout of the weight loads is not understood; threads are assumed to share them evenly."
        )
    unroll = _unroll(loaded / expected, loads_per_word, notes)
    weights = round(unique_bytes * WEIGHTS_PER_BYTE * unroll)
    if (
        any(loop.start > region.start and loop.stop < region.stop for loop in find_loops(code))
        and region.is_loop
    ):
        notes.append("The main loop holds another loop, counted as if it ran once.")
    bodies = [(body, 1.0), *_reading(code, stream, region, unroll, notes)]

    def spent(count: Callable[[Sequence[Instruction]], int]) -> float:
        """Instructions in all bodies, per trip of the first."""
        return sum(count(each) * times for each, times in bodies)

    scale = compiled.threads / weights
    classes = [(count_classes(each), times) for each, times in bodies]
    by_class = {kind: sum(counts[kind] * times for counts, times in classes) * scale for kind in CLASSES}
    passes = None
    if stream.trips is not None and stream.unique_bytes is not None:
        processed = unique_bytes * WEIGHTS_PER_BYTE * stream.trips * prod(compiled.launch.grid)
        passes = processed / (problem.n * problem.k)
    return PerWeight(
        by_class={"total": spent(len) * scale, **by_class},
        vector=spent(lambda each: sum(amd.is_vector_alu(one.opcode) for one in each)) * scale,
        integer=spent(lambda each: sum(sass.uses_int_pipe(one.opcode) for one in each)) * scale,
        instructions_in_loop=round(spent(len)),
        weights=weights,
        loads_per_word=loads_per_word,
        passes=passes,
        load_bits=8 * max(each.load_bytes for each in body if each.line in stream.lines),
        stored_bytes_per_weight=stream.stored_bytes / (unique_bytes * WEIGHTS_PER_BYTE),
        notes=tuple(notes),
    )


def _reading(
    code: list[Instruction], stream: Stream, region: Region, unroll: float, notes: list[str]
) -> list[tuple[Sequence[Instruction], float]]:
    """The loop that reads what ``region`` copies into shared memory, and how often it runs, beyond its place in the
    region, while that does so once.
    """
    if not stream.readers:
        return []
    lines = frozenset(stream.readers)
    reading = main_region(code, lines, shared_reads)
    if not reading.is_loop:
        if region.is_loop:
            notes.append(
                "The loop that reads the copied weights was not found; only copying them is counted."
            )
        return []
    body = reading.of(code)
    times = unroll * len(stream.readers) / shared_reads(body, lines)
    return [(body, times if region.is_loop else times - 1)]


def _unroll(ratio: float, loads_per_word: float, notes: list[str]) -> float:
    """IR iterations per trip. Loads that ask for one word several times may have been merged."""
    for factor in (ratio, ratio * loads_per_word):
        if factor >= 1 and abs(factor - round(factor)) <= _TOLERANCE * factor:
            return round(factor)
    notes.append(
        f"The loop loads {ratio:.3g} times what one iteration needs; counts per weight follow that figure."
    )
    return ratio
