"""What SASS and AMD assembly have in common: a list of instructions, the loops in it, counts by class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

CLASSES = (
    "load_global",
    "store_global",
    "shared",
    "atomics",
    "alu",
    "convert",
    "fma",
    "tensor",
    "barrier",
    "control",
    "spill",
    "other",
)
"""Classes of instructions, in the order in which they are printed.

``alu`` integer arithmetic, logic, shifts, byte permutes, moves, selects; ``convert`` between number formats;
``fma`` floating-point arithmetic and integer dot products; ``tensor`` matrix units; ``shared`` shared memory
and warp shuffles; ``control`` branches and compares; ``spill`` local memory; ``other`` the rest (special
registers, constants).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one thread, and one program, of a kernel needs.

    Attributes:
        registers: 32-bit registers per thread; on AMD vector plus accumulator registers per lane.
        spill_bytes: local (AMD: scratch) memory per thread. Triton kernels have no local arrays, so this is
            what the assembler could not keep in registers.
        shared_bytes: shared memory per program, as far as the code object says.
        scalar_registers: per wave, AMD only.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int = 0
    scalar_registers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One machine instruction.

    Attributes:
        opcode: mnemonic with modifiers, e.g. ``LDG.E.128``.
        kind: one of ``CLASSES``.
        line: line of the Triton IR it was generated for, 0 if unknown.
        load_bytes: bytes per thread that it loads from global memory, else 0.
        target: index of the instruction it branches to, or None.
    """

    opcode: str
    kind: str
    line: int = 0
    load_bytes: int = 0
    target: int | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """A run of instructions ``[start, stop)``: a loop body with its branch, or a whole kernel."""

    start: int
    stop: int
    is_loop: bool

    def of(self, code: Sequence[Instruction]) -> Sequence[Instruction]:
        """The instructions of the region."""
        return code[self.start : self.stop]


def find_loops(code: Sequence[Instruction]) -> list[Region]:
    """One region per backward branch. A branch to itself, as after EXIT, is padding and not a loop."""
    return [
        Region(instruction.target, at + 1, True)
        for at, instruction in enumerate(code)
        if instruction.target is not None and instruction.target < at
    ]


def weight_bytes(code: Sequence[Instruction], lines: frozenset[int]) -> int:
    """Bytes per thread that global loads on the given IR lines fetch."""
    return sum(instruction.load_bytes for instruction in code if instruction.line in lines)


def shared_reads(code: Sequence[Instruction], lines: frozenset[int]) -> int:
    """Instructions on the given IR lines that touch shared memory."""
    return sum(instruction.kind == "shared" for instruction in code if instruction.line in lines)


def main_region(
    code: Sequence[Instruction],
    lines: frozenset[int],
    measure: Callable[[Sequence[Instruction], frozenset[int]], int] = weight_bytes,
) -> Region:
    """The loop that streams the weights: of the innermost loops with a load on ``lines``, the one that
    fetches most (an unrolled loop beside its remainder); the whole kernel if there is none.

    ``measure`` is what to look for on these lines and where there should be most of it.
    """
    loops = [loop for loop in find_loops(code) if measure(loop.of(code), lines)]
    innermost = [
        loop
        for loop in loops
        if not any(other != loop and loop.start <= other.start and other.stop <= loop.stop for other in loops)
    ]
    if not innermost:
        return Region(0, len(code), False)
    return max(innermost, key=lambda loop: (measure(loop.of(code), lines), -loop.start))


def count_classes(code: Sequence[Instruction]) -> dict[str, int]:
    """Instructions by class, every class present."""
    counts = dict.fromkeys(CLASSES, 0)
    for instruction in code:
        counts[instruction.kind] += 1
    return counts


def resolve_branches(
    lines: Sequence[tuple[str, str, int]],
    labels: dict[str, int],
    branch_label: Callable[[str, str], str | None],
    build: Callable[[str, str, int, int | None], Instruction],
) -> list[Instruction]:
    """Second pass of a listing: triples of opcode, operands and IR line become linked instructions."""
    code = []
    for opcode, operands, line in lines:
        label = branch_label(opcode, operands)
        code.append(build(opcode, operands, line, labels.get(label) if label else None))
    return code
