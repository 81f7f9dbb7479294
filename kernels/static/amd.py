"""AMD machine code: resources from the code object's metadata, instructions from LLVM's assembly text."""

from __future__ import annotations

import re

from roofgap.kernels.static.instructions import Instruction, Resources, resolve_branches
from roofgap.shapes.errors import RoofgapError

_LOC = re.compile(r"^\s*\.loc\s+\d+\s+(\d+)")
_LABEL = re.compile(r"^(\.LBB\w+):")
_INSTRUCTION = re.compile(r"^\s+(?P<op>[a-z]+_[a-z0-9_]+)\s*(?P<args>[^;]*)")
_WIDTHS = {
    "dwordx4": 16,
    "dwordx3": 12,
    "dwordx2": 8,
    "dword": 4,
    "ushort": 2,
    "sshort": 2,
    "short": 2,
    "ubyte": 1,
    "sbyte": 1,
}
_VECTOR_LOADS = ("global_load_", "buffer_load_", "flat_load_")

# First match wins.
_KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"(global|buffer|flat)_load", "load_global"),
        (r"(global|buffer|flat)_store", "store_global"),
        (r"(global|buffer|flat)_atomic", "atomics"),
        (r"scratch_", "spill"),
        (r"ds_(add|min|max|and|or|xor|cmpst|pk_add)", "atomics"),
        (r"ds_", "shared"),
        (r"v_s?mfma", "tensor"),
        (r"v_cvt", "convert"),
        (
            r"v_(pk_)?(fma|fmac|mac|mad|mul|add|sub|subrev|max|min)_(mix\w*_)?f(16|32|64)|v_dot|v_fma_mix|v_pk_fma",
            "fma",
        ),
        (r"v_cmp|s_cmp|s_cbranch|s_branch|s_endpgm|s_setpc|s_bitcmp", "control"),
        (r"s_barrier|s_waitcnt|buffer_wbl2|buffer_inv|buffer_gl", "barrier"),
        (
            r"s_(load|buffer_load|nop|sleep|setprio|sethalt|getreg|setreg|code_end)|v_read(first)?lane",
            "other",
        ),
        (r"[vs]_", "alu"),
    )
)


def read_resources(assembly: str) -> Resources:
    """What the metadata at the end of the assembly says the kernel needs.

    Raises:
        RoofgapError: a field is missing.
    """

    def field(pattern: str) -> int:
        match = re.search(pattern, assembly)
        if match is None:
            raise RoofgapError("AMD assembly", f"has no field {pattern}", "report it with the Triton version")
        return int(match[1])

    return Resources(
        registers=field(r"; TotalNumVgprs: (\d+)"),
        scalar_registers=field(r"; TotalNumSgprs: (\d+)"),
        spill_bytes=field(r"\.private_segment_fixed_size:\s*(\d+)"),
        shared_bytes=field(r"\.group_segment_fixed_size:\s*(\d+)"),
    )


def kind_of(opcode: str) -> str:
    """Class of an instruction; scalar ALU work counts as ``alu``."""
    return next((kind for pattern, kind in _KINDS if pattern.match(opcode)), "other")


def is_vector_alu(opcode: str) -> bool:
    """Whether the SIMD's vector ALU runs it; matrix instructions have a unit of their own."""
    return opcode.startswith("v_") and kind_of(opcode) != "tensor"


def load_width(opcode: str) -> int:
    """Bytes per lane of a vector load from global memory."""
    if not opcode.startswith(_VECTOR_LOADS):
        return 0
    return next((size for name, size in _WIDTHS.items() if f"_load_{name}" in opcode), 4)


def parse(assembly: str) -> list[Instruction]:
    """Instructions of the kernel in ``amdgcn`` text."""
    labels: dict[str, int] = {}
    rows: list[tuple[str, str, int]] = []
    line = 0
    for text in assembly.split(".end_amdhsa_kernel", maxsplit=1)[0].splitlines():
        if label := _LABEL.match(text):
            labels[label[1]] = len(rows)
        elif mark := _LOC.match(text):
            line = int(mark[1])
        elif match := _INSTRUCTION.match(text):
            rows.append((match["op"], match["args"], line))
    return resolve_branches(rows, labels, _branch_label, _build)


def _branch_label(opcode: str, operands: str) -> str | None:
    return operands.strip() if opcode.startswith(("s_cbranch", "s_branch")) else None


def _build(opcode: str, operands: str, line: int, target: int | None) -> Instruction:
    return Instruction(
        opcode=opcode, kind=kind_of(opcode), line=line, load_bytes=load_width(opcode), target=target
    )
