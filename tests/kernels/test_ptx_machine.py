"""The machine that stands in for a GPU raises where a GPU would read what is not there yet."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import DEVICE
from ptx_machine import Registers, run
from ptx_memory import STATIC_SHARED, Memory, RaceError
from triton.runtime.errors import InterpreterError
from v4_cases import Product

from roofgap.kernels.variants import _staging
from roofgap.kernels.variants._v4_config import V4Config
from roofgap.shapes.problem import Problem

THREADS = np.arange(64, dtype=np.uint32).reshape(2, 32)
DECLARE = ".shared .align 16 .b8 a[1024]; mov.u32 base, a; mov.u32 t, %tid.x; mad.lo.u32 own, t, 16, base;"
COPY = "cp.async.cg.shared.global [own], [$0], 16; cp.async.commit_group;"


def sources() -> tuple[np.ndarray, Registers]:
    """Sixteen bytes of global memory per thread, and their addresses."""
    data = np.arange(64 * 4, dtype=np.uint32)
    places = data.ctypes.data + 16 * np.arange(64, dtype=np.uint64)
    return data, {"$0": places.reshape(2, 32).astype(np.uint64), "$1": THREADS}


def test_a_copy_arrives_when_it_is_waited_for() -> None:
    data, operands = sources()
    out = run(DECLARE + COPY + "cp.async.wait_group 0; ld.shared.v4.b32 {$2, $3, $4, $5}, [own];", operands)
    for i in range(4):
        np.testing.assert_array_equal(out[f"${2 + i}"].ravel(), data[i::4])


@pytest.mark.parametrize("early", ["", "cp.async.wait_group 1;"])
def test_a_copy_that_nobody_waited_for_is_not_there(early: str) -> None:
    _, operands = sources()
    with pytest.raises(RaceError, match="under way"):
        run(DECLARE + COPY + early + "ld.shared.b32 $2, [own];", operands)


def test_a_group_is_what_was_copied_before_it_was_closed() -> None:
    _, operands = sources()
    late = "cp.async.commit_group; cp.async.cg.shared.global [own], [$0], 16; cp.async.wait_group 0;"
    with pytest.raises(RaceError, match="under way"):
        run(DECLARE + late + "ld.shared.b32 $2, [own];", operands)


def test_what_is_not_read_is_zero() -> None:
    data, operands = sources()
    operands["$6"] = THREADS % 3 * 4
    copy = "cp.async.cg.shared.global [own], [$0], 16, $6; cp.async.commit_group; cp.async.wait_group 0;"
    out = run(DECLARE + copy + "ld.shared.v4.b32 {$2, $3, $4, $5}, [own];", operands)
    read = np.stack([out[f"${2 + i}"].ravel() for i in range(4)], axis=1)
    wanted = np.arange(4) < (THREADS.ravel() % 3)[:, None]
    np.testing.assert_array_equal(read, np.where(wanted, data.reshape(64, 4), 0))


@pytest.mark.parametrize(
    ("across", "barrier", "passes"),
    [
        (1, "", False),
        (1, "bar.warp.sync 0xffffffff;", True),
        (32, "bar.warp.sync 0xffffffff;", False),
        (32, "bar.sync 0;", True),
    ],
)
@pytest.mark.parametrize("order", ["read after write", "write after read"])
def test_threads_meet_at_barriers(across: int, barrier: str, passes: bool, order: str) -> None:
    """Each thread touches its own place, then that of its neighbour: another lane, or another warp."""
    neighbour = {"$0": (THREADS ^ np.uint32(across)) * np.uint32(16)}
    write, read = "st.shared.b32 [own], t;", "ld.shared.b32 $1, [$0];"
    first, second = (write, read) if order == "read after write" else (read, write)
    if passes:
        run(DECLARE + first + barrier + second, neighbour)
    else:
        with pytest.raises(RaceError, match="lane" if across == 1 else "warp"):
            run(DECLARE + first + barrier + second, neighbour)


def test_addresses_are_checked() -> None:
    _, operands = sources()
    for text in (
        "ld.shared.b32 $2, [own + 2];",
        "ld.shared.b32 $2, [own + 1024];",
        "cp.async.cg.shared.global [own + 4], [$0], 16;",
    ):
        with pytest.raises(RaceError):
            run(DECLARE + text, operands)
    with pytest.raises(RaceError, match="misaligned"):
        run(DECLARE + COPY, {"$0": operands["$0"] + np.uint64(4)})
    with pytest.raises(RaceError, match="may be"):
        Memory().declare(STATIC_SHARED + 1)


def word(bits: int) -> np.ndarray:
    """The same register in all threads."""
    return np.full((2, 32), bits, dtype=np.uint32)


@pytest.mark.parametrize(
    ("instruction", "a", "b", "expected"),
    [
        ("prmt.b32 $0, $1, $2, 0x5140", 0x33221100, 0x77665544, 0x55114400),
        ("prmt.b32 $0, $1, $2, 0x7362", 0x33221100, 0x77665544, 0x77336622),
        ("prmt.b32 $0, $1, $2, 0x0007", 0x33221100, 0xF7665544, 0x000000F7),
        ("xor.b32 $0, $1, 0x80808080", 0x7F80FF00, 0, 0xFF007F80),
        ("abs.f16x2 $0, $1", 0x80017BFF, 0, 0x00017BFF),
        ("abs.bf16x2 $0, $1", 0x7F80FF80, 0, 0x7F807F80),
        ("max.NaN.f16x2 $0, $1, $2", 0x3C00BC00, 0x3C01C000, 0x3C01BC00),
        ("max.NaN.f16x2 $0, $1, $2", 0x80000000, 0x00008000, 0x00000000),
        ("max.NaN.f16x2 $0, $1, $2", 0x7C01FC00, 0x7C00FBFF, 0x7FFFFBFF),
        ("max.NaN.f16x2 $0, $1, $2", 0x00007F80, 0x0000FFFF, 0x00007FFF),
        ("max.NaN.bf16x2 $0, $1, $2", 0x7F807C01, 0x7F817C00, 0x7FFF7C01),
        ("max.NaN.bf16x2 $0, $1, $2", 0xFF800001, 0xFF7F8001, 0xFF7F0001),
    ],
)
def test_bits_of_words(instruction: str, a: int, b: int, expected: int) -> None:
    """As the PTX ISA has it: bytes by selector; floats by halves, -0 below 0, one NaN for all of them."""
    out = run(f"{instruction};", {"$1": word(a), "$2": word(b)})
    np.testing.assert_array_equal(out["$0"], word(expected))


def test_a_selector_that_spreads_signs_is_not_known() -> None:
    with pytest.raises(AssertionError):
        run("prmt.b32 $0, $1, $1, 0x3218;", {"$1": word(0)})


def test_the_largest_of_each_warp_is_signed() -> None:
    values = (THREADS * np.uint32(7) % np.uint32(64) - np.uint32(100)).astype(np.uint32)
    out = run("redux.sync.max.s32 $0, $1, 0xffffffff;", {"$1": values})
    expected = np.broadcast_to(values.view(np.int32).max(1, keepdims=True), (2, 32))
    assert (expected < 0).all()
    np.testing.assert_array_equal(out["$0"].astype(np.int32), expected)
    for text in (
        "redux.sync.max.s32 $0, $1, 0xffff;",
        "setp.lt.u32 p, $1, 9; @p redux.sync.max.s32 $0, $1, 0xffffffff;",
    ):
        with pytest.raises(AssertionError):
            run(text, {"$1": values})


def byte_matrices() -> tuple[np.ndarray, np.ndarray, Registers]:
    """A [2 warps, 16, 32], B [2 warps, 32, 8] of bytes, and the registers that hold them: bytes of lane 4 g + t."""
    draw = np.random.default_rng(0)
    a, b = draw.integers(0, 256, (2, 16, 32)), draw.integers(-128, 128, (2, 32, 8))
    a[0, 3], b[0, :, 5] = 255, -128
    registers = {name: np.zeros((2, 32), dtype=np.uint32) for name in ("a0", "a1", "a2", "a3", "b0", "b1")}
    for lane in range(32):
        g, t = divmod(lane, 4)
        for byte in range(4):
            for name, row, k in (("a0", g, 0), ("a1", g + 8, 0), ("a2", g, 16), ("a3", g + 8, 16)):
                registers[name][:, lane] |= (a[:, row, k + 4 * t + byte] << 8 * byte).astype(np.uint32)
            for name, k in (("b0", 0), ("b1", 16)):
                registers[name][:, lane] |= ((b[:, k + 4 * t + byte, g] & 0xFF) << 8 * byte).astype(np.uint32)
    return a, b, registers


@pytest.mark.parametrize("start", ["0, 0, 0, 0", "c0, c1, c2, c3", "c0, c1, c0, c1", "d0, d1, d2, d3"])
def test_products_of_bytes(start: str) -> None:
    """uint8 times int8 on top of int32 modulo 2^32; the sums may take the place of what they start at."""
    a, b, registers = byte_matrices()
    before = {f"c{i}": word(0x7FFFFFF0 + i) + THREADS for i in range(4)} | {
        f"d{i}": word(i) for i in range(4)
    }
    opcode = "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32"
    text = f"{opcode} {{d0, d1, d2, d3}}, {{a0, a1, a2, a3}}, {{b0, b1}}, {{{start}}};"
    out = run(text, registers | before)
    for i, name in enumerate(start.split(", ")):
        for lane in range(32):
            g, t = divmod(lane, 4)
            row, column = g + i // 2 * 8, 2 * t + i % 2
            products = (a[:, row] * b[:, :, column]).sum(1)
            from_start = 0 if name == "0" else before[name][:, lane].astype(np.int64)
            np.testing.assert_array_equal(out[f"d{i}"][:, lane], (products + from_start).astype(np.uint32))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU shows a race when it likes")
@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize("epilogue", ["residual", "swiglu"])
@pytest.mark.parametrize("broken", ["groups", "warp_barrier", "barrier"])
def test_v4_without_one_of_its_orders_is_caught(
    broken: str, epilogue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Product(Problem(n=32, k=1152, zero_mode="asym", bias=True), epilogue)
    config = V4Config(num_warps=2, num_stages=2)
    case.check(config)
    if broken == "groups":  # waits for one group less, as if bias and residual were a group of their own
        fewer = _staging._wait_asm.fn
        monkeypatch.setattr(_staging, "_wait_asm", lambda pending: fewer(pending + 1))
        words = "under way"
    else:
        weaker = (lambda memory: None) if broken == "warp_barrier" else Memory.warp_barrier
        monkeypatch.setattr(Memory, broken, weaker)
        words = "another lane" if broken == "warp_barrier" else "another warp"
    with pytest.raises(InterpreterError, match=words):
        case.run(config)
