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
from roofgap.kernels.variants.v4 import V4Config
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
