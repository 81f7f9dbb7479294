"""Executes the PTX of v4 on the CPU, a program at a time, so that the kernel itself runs in Triton's interpreter.

Knows the instructions that v4 uses and no others (PTX ISA, chapter 9; fragments of mma.m16n8k16 and m16n8k32: section
9.7.14).
``install`` puts it in the interpreter's place for inline assembly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from ptx_memory import Memory, RaceError
from triton._C.libtriton import interpreter
from triton.runtime.interpreter import TensorHandle

from roofgap.kernels.step import Launch

LANES = np.arange(32)
Registers = dict[str, Any]
"""By name, one value per thread: arrays [warps, 32] of uint32, uint64, float32 or bool."""


def _lower_half(a: Any) -> Any:
    return a & np.uint32(0xFFFF)


def _permuted(a: Any, b: Any, selector: Any) -> Any:
    """Four of the eight bytes of two words; without the bits that would spread a byte's sign."""
    assert not (selector & np.uint32(0xFFFF8888)).any()
    both, result = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32), np.uint32(0)
    for shift in np.arange(0, 32, 8, dtype=np.uint32):
        byte = (selector >> shift // np.uint32(2) & np.uint32(7)).astype(np.uint64)
        result = result | (both >> np.uint64(8) * byte & np.uint64(0xFF)).astype(np.uint32) << shift
    return result


def _larger_halves(a: Any, b: Any, infinity: int) -> Any:
    """The larger float of each half, 0x7FFF where either is a NaN; -0 is below 0."""
    result = np.uint32(0)
    for shift in np.array([0, 16], dtype=np.uint32):
        one, other = (_lower_half(word >> shift).astype(np.int32) for word in (a, b))
        magnitudes = np.maximum(one & 0x7FFF, other & 0x7FFF)
        ranks = [np.where(bits > 0x7FFF, ~(bits & 0x7FFF), bits) for bits in (one, other)]
        larger = np.where(ranks[0] < ranks[1], other, one)
        result = result | np.where(magnitudes > infinity, 0x7FFF, larger).astype(np.uint32) << shift
    return result


def _half_products(a: Any, b: Any) -> Any:
    """Products of each half as fp16."""
    result = np.uint32(0)
    for shift in np.array([0, 16], dtype=np.uint32):
        one, other = (_lower_half(word >> shift).astype(np.uint16).view(np.float16) for word in (a, b))
        result = result | (one * other).view(np.uint16).astype(np.uint32) << shift
    return result


def _warp_max(a: Any, lanes: Any) -> Any:
    assert (lanes == 0xFFFFFFFF).all()
    return a.astype(np.int32).max(axis=1, keepdims=True).astype(np.uint32)


INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    "mov.b32": lambda a: a,
    "mov.u32": lambda a: a,
    "mov.f32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "xor.b32": lambda a, b: a ^ b,
    "prmt.b32": _permuted,
    "shr.u32": lambda a, b: a >> b,
    "shl.b32": lambda a, b: a << b,
    "add.u32": lambda a, b: a + b,
    "mad.lo.u32": lambda a, b, c: a * b + c,
    "cvt.u32.u16": _lower_half,
    "cvt.u16.u32": _lower_half,
    "setp.eq.u32": lambda a, b: a == b,
    "setp.ne.s32": lambda a, b: a != b,
    "setp.lt.u32": lambda a, b: a < b,
    "selp.f32": lambda a, b, p: np.where(p, a, b),
    "add.f32": lambda a, b: a + b,
    "mul.rn.f16x2": _half_products,
    "abs.f16x2": lambda a: a & np.uint32(0x7FFF7FFF),
    "abs.bf16x2": lambda a: a & np.uint32(0x7FFF7FFF),
    "max.NaN.f16x2": lambda a, b: _larger_halves(a, b, 0x7C00),
    "max.NaN.bf16x2": lambda a, b: _larger_halves(a, b, 0x7F80),
    "redux.sync.max.s32": _warp_max,
    "fma.rn.f32": lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float32),
}
LOADS: dict[str, tuple[Any, int]] = {
    "ld.shared.b16": (np.uint16, 1),
    "ld.shared.b32": (np.uint32, 1),
    "ld.shared.f32": (np.float32, 1),
    "ld.shared.v4.b32": (np.uint32, 4),
}
STORES: dict[str, Any] = {
    "st.shared.b16": np.uint16,
    "st.shared.b32": np.uint32,
    "st.shared.f32": np.float32,
    "st.shared::cluster.f32": np.float32,
}
_STATEMENT = re.compile(r"(?:@(?P<guard>\w+) )?(?P<opcode>\S+)\s*(?P<rest>.*)", re.DOTALL)
_SHARED = re.compile(r"\.shared \.align 16 \.b8 (?P<name>\w+)\[(?P<size>\d+)\]")
_OPERAND = re.compile(r"\{(?P<list>[^}]*)\}|(?P<one>\[[^\]]*\]|[^,{}\s]+)")


def run(asm: str, operands: Registers, memory: Memory | None = None) -> Registers:
    """The registers after the text."""
    machine = _Machine(operands, Memory() if memory is None else memory)
    with np.errstate(all="ignore"):  # infinities are what some tests are about
        for statement in asm.split(";"):
            text = statement.strip().removeprefix("{").strip()
            if text not in ("", "}") and not text.startswith(".reg"):
                machine.execute(text)
    return machine.registers


def numbered(values: list[Any], first: int) -> Registers:
    """Operands from ``$first`` on."""
    return {f"${first + i}": value for i, value in enumerate(values)}


class _Machine:
    """Registers and memory, and what one statement does to them."""

    def __init__(self, operands: Registers, memory: Memory) -> None:
        self.registers, self._memory = dict(operands), memory
        warps = max((len(value) for value in operands.values()), default=1)
        self._threads = np.arange(32 * warps, dtype=np.uint32).reshape(warps, 32)

    def execute(self, text: str) -> None:
        """One statement, its predicate included."""
        if declared := _SHARED.fullmatch(text):
            self._assign([declared["name"]], [np.uint32(self._memory.declare(int(declared["size"])))])
            return
        match = _STATEMENT.fullmatch(text)
        assert match is not None, text
        opcode, rest = match["opcode"], match["rest"]
        guard = np.ones(self._threads.shape, dtype=bool)
        if match["guard"]:
            guard = self._value(match["guard"])
        parts = [
            [name.strip() for name in (found["list"] or found["one"]).split(",")]
            for found in _OPERAND.finditer(rest)
        ]
        if opcode == "prefetch.global.L2":  # leaves no trace
            return
        if opcode.startswith("barrier.cluster."):
            assert guard.all() and opcode.endswith(".aligned")
            if opcode.startswith("barrier.cluster.arrive."):
                self._memory.arrive(opcode.split(".")[3])
            else:  # which acquires unless it says otherwise
                assert opcode in ("barrier.cluster.wait.aligned", "barrier.cluster.wait.acquire.aligned")
                self._memory.wait_cluster()
        elif opcode.startswith(("bar.", "cp.async.commit", "cp.async.wait")):
            assert guard.all()
            self._synchronise(opcode, rest)
        elif opcode.startswith(("cp.async", "ld.", "st.")):
            self._access(opcode, parts, guard)
        elif opcode == "mapa.shared::cluster.u32":
            at, program = (self._value(part[0]) for part in parts[1:])
            self._assign(parts[0], [self._memory.mapped(at, program)])
        else:
            assert guard.all() or ".sync." not in opcode
            given = [[self._value(name) for name in part] for part in parts[1:]]
            self._assign(parts[0], _computed(opcode, given), guard)

    def _synchronise(self, opcode: str, rest: str) -> None:
        if opcode == "bar.warp.sync":
            assert rest == "0xffffffff"
            self._memory.warp_barrier()
        elif opcode == "bar.sync":
            assert rest == "0"
            self._memory.barrier()
        elif opcode == "cp.async.commit_group":
            self._memory.commit()
        else:
            assert opcode == "cp.async.wait_group"
            self._memory.wait(int(rest))

    def _access(self, opcode: str, parts: list[list[str]], guard: Any) -> None:
        thread = self._threads[guard]
        if not thread.size:
            return
        if opcode in LOADS:
            kind, count = LOADS[opcode]
            at = self._value(parts[1][0])[guard]
            if (at % (np.dtype(kind).itemsize * count)).any():
                raise RaceError(f"{opcode} of a misaligned address")
            for i, name in enumerate(parts[0]):
                found = np.zeros(self._threads.shape, dtype=kind)
                found[guard] = self._memory.load(at + np.uint32(i * found.itemsize), thread, np.dtype(kind))
                self._assign([name], [found.astype(np.uint32) if kind == np.uint16 else found], guard)
        elif opcode in STORES:
            given = self._value(parts[1][0])[guard].astype(STORES[opcode])
            far = "::cluster" in opcode
            self._memory.store(self._value(parts[0][0])[guard], thread, given, far=far)
        elif opcode == "st.global.b16":
            halves_of = self._value(parts[1][0])[guard].astype(np.uint16)
            at = self._value(parts[0][0])[guard]
            self._memory.store_global(at)
            interpreter.store(at, halves_of, np.ones(len(thread), dtype=bool))
        else:
            cache, size = opcode.split(".")[2], int(parts[2][0])
            assert opcode == f"cp.async.{cache}.shared.global"
            assert size in ({"ca": (4, 8, 16), "cg": (16,)}[cache])
            given = self._value(parts[3][0] if len(parts) > 3 else str(size))
            to, source = self._value(parts[0][0]), self._value(parts[1][0])
            self._memory.copy(to[guard], source[guard], thread, size, given[guard])

    def _value(self, name: str) -> Any:
        """A register, an immediate, or an address with a displacement."""
        base, _, offset = name.strip("[]").partition(" + ")
        if base == "%tid.x":
            found: Any = self._threads % np.uint32(self._memory.threads)
        elif base == "%cluster_ctarank":
            found = self._memory.program_of(self._threads)
        elif base.startswith("0f"):
            found = np.array(int(base[2:], 16), dtype=np.uint32).view(np.float32)
        elif base[0].isdigit():
            found = np.uint32(int(base, 0))
        else:
            found = self.registers[base]
        found = np.broadcast_to(found, self._threads.shape)
        return found + np.uint32(int(offset)) if offset else found

    def _assign(self, names: list[str], results: list[Any], guard: Any = True) -> None:
        for name, result in zip(names, results, strict=True):
            kept = result if np.all(guard) else np.where(guard, result, self._value(name))
            self.registers[name] = np.broadcast_to(kept, self._threads.shape)


def _computed(opcode: str, given: list[list[Any]]) -> list[Any]:
    if opcode.startswith("mma.sync.aligned.m16n8k16.row.col.f32."):
        return mma(given[0], given[1], given[2], opcode.split(".")[-2])
    if opcode == "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32":
        return byte_mma(given[0], given[1], given[2])
    values = [one for (one,) in given]
    if opcode == "lop3.b32":
        assert (values[3] == 0xEA).all()  # the table of (a & b) | c
        return [values[0] & values[1] | values[2]]
    return [INSTRUCTIONS[opcode](*values)]


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
    warps = len(a[0])
    left, right = np.zeros((warps, 16, 16), dtype=np.float32), np.zeros((warps, 16, 8), dtype=np.float32)
    for index, word in enumerate(a):
        for odd, half in enumerate(halves(word, kind)):
            left[:, group + index % 2 * 8, quarter * 2 + odd + index // 2 * 8] = half
    for index, word in enumerate(b):
        for odd, half in enumerate(halves(word, kind)):
            right[:, quarter * 2 + odd + index * 8, group] = half
    product = left @ right
    return [product[:, group + i // 2 * 8, quarter * 2 + i % 2] + c[i] for i in range(4)]


def byte_mma(a: list[Any], b: list[Any], c: list[Any]) -> list[Any]:
    """D = A B + C modulo 2^32 with A [16, 32] of uint8, B [32, 8] of int8, C and D [16, 8] spread over the lanes."""
    group, quarter = LANES // 4, LANES % 4
    warps = len(a[0])
    left, right = np.zeros((warps, 16, 32), dtype=np.float32), np.zeros((warps, 32, 8), dtype=np.float32)
    for index, word in enumerate(a):
        for i in range(4):
            byte = (word >> np.uint32(8 * i)).astype(np.uint8)
            left[:, group + index % 2 * 8, quarter * 4 + i + index // 2 * 16] = byte
    for index, word in enumerate(b):
        for i in range(4):
            byte = (word >> np.uint32(8 * i)).astype(np.uint8).view(np.int8)
            right[:, quarter * 4 + i + index * 16, group] = byte
    product = (left @ right).astype(np.int32).view(np.uint32)  # exact: below 2^24
    return [product[:, group + i // 2 * 8, quarter * 2 + i % 2] + c[i] for i in range(4)]


class Results:
    """What ``inline_asm_elementwise`` asks its results of."""

    def __init__(self, handles: list[TensorHandle]) -> None:
        self._handles = handles

    def get_result(self, index: int) -> TensorHandle:
        """The handle of one output."""
        return self._handles[index]


class Programs:
    """Stands in for the interpreter's builder where it lacks inline assembly."""

    def __init__(self) -> None:
        self._index: object = None
        self.cluster, self.threads = 1, 1024
        self.memory = Memory()

    def create_inline_asm(
        self,
        builder: Any,
        asm: str,
        constraints: str,
        values: list[TensorHandle],
        types: list[Any],
        pack: int,
    ) -> Results:
        """Runs a text for all threads of the program that the interpreter is in."""
        if builder.grid_idx is not self._index:  # a new tuple for every program
            self._index, self.memory = builder.grid_idx, Memory(self.cluster, self.threads)
        kinds, outputs = constraints.replace("=", "").replace("&", "").split(","), len(types)
        assert (pack, len(kinds)) == (1, outputs + len(values))
        shape = values[0].data.shape if values else (1,)
        operands = {
            f"${outputs + i}": _register(value.data, kinds[outputs + i]).reshape(-1, 32)
            for i, value in enumerate(values)
        }
        after = run(str(asm), operands, self.memory)
        handles = []
        for i, kind in enumerate(types):
            data = after[f"${i}"]
            assert data.dtype == (np.float32 if kinds[i] == "f" else np.uint32)
            data = data if kinds[i] == "f" else data.view(np.int32)
            data = data.reshape(shape) if values else data.ravel()[:1]
            handles.append(TensorHandle(data.copy(), kind.scalar))
        return Results(handles)


def _register(data: Any, kind: str) -> Any:
    """What a register of a constraint's kind holds."""
    if kind == "f":
        assert data.dtype == np.float32
        return data
    assert data.dtype.itemsize == (8 if kind == "l" else 4)
    return data.view(np.uint64 if kind == "l" else np.uint32)


def install(patch: Any) -> Programs:
    """Lets the interpreter run inline assembly, for as long as a pytest ``MonkeyPatch`` lasts."""
    from triton.language import core
    from triton.runtime.interpreter import InterpreterBuilder

    programs = Programs()

    def create_inline_asm(
        builder: Any, asm: str, constraints: str, values: Any, types: Any, _pure: bool, pack: int
    ) -> Results:
        return programs.create_inline_asm(builder, asm, constraints, values, types, pack)

    run_launch = Launch.run

    def run(launch: Launch) -> None:
        programs.cluster, programs.threads = launch.cluster, 32 * launch.num_warps
        run_launch(launch)

    patch.setattr(Launch, "run", run)
    patch.setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm)
    # Several results come as Triton's tuple, which compiled code, but no Python tuple, can be extended by.
    patch.setattr(core.tuple, "__radd__", lambda self, other: (*other, *self.values), raising=False)
    return programs
