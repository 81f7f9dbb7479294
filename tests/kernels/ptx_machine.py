"""Executes the PTX of v4 on the CPU, a warp at a time, so that the kernel itself runs in Triton's interpreter.

Knows the instructions that v4 uses and no others (PTX ISA, chapter 9; fragments of mma.m16n8k16: section 9.7.14).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from triton.runtime.interpreter import TensorHandle

LANES = np.arange(32)
Registers = dict[str, Any]
"""By name, one value per lane: arrays [warps, 32]."""

INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    "mov.b32": lambda a: a,
    "mov.u32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "shl.b32": lambda a, b: a << b,
    "setp.eq.u32": lambda a, b: a == b,
    "selp.f32": lambda a, b, p: np.where(p, a, b),
}


def run(asm: str, operands: Registers) -> Registers:
    """The registers after the text."""
    registers = dict(operands)

    def value(name: str) -> Any:
        if name.startswith("0f"):
            return np.full((1, 32), int(name[2:], 16), dtype=np.uint32).view(np.float32)
        if name == "%laneid":
            return LANES.astype(np.uint32)[None]
        if name[0].isdigit():
            return np.full((1, 32), int(name, 0), dtype=np.uint32)
        return registers[name]

    for line in asm.strip("{}\n").split("\n"):
        opcode, rest = line.rstrip(";").split(" ", 1)
        if opcode == ".reg":
            continue
        groups = re.findall(r"\{([^}]*)\}|([^,{}\s]+)", rest)
        to, *sources = [(group or single).replace(" ", "").split(",") for group, single in groups]
        given = [[value(name) for name in source] for source in sources]
        if opcode.startswith("mma.sync.aligned.m16n8k16.row.col.f32."):
            registers |= dict(zip(to, mma(given[0], given[1], given[2], opcode.split(".")[-2]), strict=True))
        elif opcode == "lop3.b32":
            assert sources[3] == ["0xEA"]  # the table of (a & b) | c
            registers[to[0]] = given[0][0] & given[1][0] | given[2][0]
        else:
            registers[to[0]] = INSTRUCTIONS[opcode](*(one for (one,) in given))
    return registers


def halves(word: Any, kind: str) -> tuple[Any, Any]:
    """The lower and upper 16 bits of every word, as fp32."""
    lower, upper = word & np.uint32(0xFFFF), word >> np.uint32(16)
    if kind == "bf16":
        return (lower << np.uint32(16)).view(np.float32), (upper << np.uint32(16)).view(np.float32)
    return lower.astype(np.uint16).view(np.float16).astype(np.float32), upper.astype(np.uint16).view(
        np.float16
    ).astype(np.float32)


def mma(a: list[Any], b: list[Any], c: list[Any], kind: str) -> list[Any]:
    """D = A B + C with A [16, 16], B [16, 8], C and D [16, 8] spread over the lanes."""
    group, quarter = LANES // 4, LANES % 4
    warps = max(len(word) for word in a + b)
    left, right = np.zeros((warps, 16, 16), dtype=np.float32), np.zeros((warps, 16, 8), dtype=np.float32)
    for index, word in enumerate(a):
        for odd, half in enumerate(halves(word, kind)):
            left[:, group + index % 2 * 8, quarter * 2 + odd + index // 2 * 8] = half
    for index, word in enumerate(b):
        for odd, half in enumerate(halves(word, kind)):
            right[:, quarter * 2 + odd + index * 8, group] = half
    product = left @ right
    return [product[:, group + i // 2 * 8, quarter * 2 + i % 2] + c[i] for i in range(4)]


class Results:
    """What ``inline_asm_elementwise`` asks its results of."""

    def __init__(self, handles: list[TensorHandle]) -> None:
        self._handles = handles

    def get_result(self, index: int) -> TensorHandle:
        """The handle of one output."""
        return self._handles[index]


def create_inline_asm(
    self: object,
    asm: str,
    constraints: str,
    values: list[TensorHandle],
    types: list[Any],
    pure: bool,
    pack: int,
) -> Results:
    """Stands in for the one that the interpreter lacks; the last two axes are lanes and their ``pack`` elements."""
    shape, outputs = values[0].data.shape, len(types)
    assert constraints.count("f") == pack * outputs
    assert constraints.count("r") == pack * len(values)
    assert (shape[-1], shape[-2] % 32) == (pack, 0)
    operands = {
        f"${pack * (outputs + index) + i}": value.data.astype(np.uint32, casting="unsafe").reshape(
            -1, 32, pack
        )[..., i]
        for index, value in enumerate(values)
        for i in range(pack)
    }
    after = run(str(asm), operands)
    handles = []
    for index, kind in enumerate(types):
        warps = [
            np.broadcast_to(after[f"${pack * index + i}"], operands[f"${pack * outputs}"].shape)
            for i in range(pack)
        ]
        data = np.stack(warps, axis=-1).astype(np.float32).reshape(shape)
        handles.append(TensorHandle(data, kind.scalar if hasattr(kind, "scalar") else kind))
    return Results(handles)
