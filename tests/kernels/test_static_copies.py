"""Weights that reach shared memory by asynchronous copies in inline assembly, and the loop that reads them there."""

from __future__ import annotations

import pytest

from roofgap.kernels.static import sass
from roofgap.kernels.static.compile import CompiledLaunch
from roofgap.kernels.static.per_weight import per_weight
from roofgap.kernels.static.ttir import Load, Stream, find_streams
from roofgap.kernels.step import Launch
from roofgap.shapes.problem import Problem

ARGUMENTS = "%codes_ptr: !tt.ptr<i32> {tt.divisibility = 16 : i32}, %y_ptr: !tt.ptr<f16>, %words: i32"
COPY = '"{ .reg .pred p; @p cp.async.cg.shared.global [$1], [$2], 16; }" {constraints = "=r,r,l", pack = 1 : i32}'
READ = '"ld.shared.b32 $0, [$1]; mov.u32 $0, %tid.x;" {constraints = "=r,r", pack = 1 : i32}'
TYPES = "(tensor<8x!tt.ptr<i32>>, i32)  : i32"
COPIES = f"""module {{
  tt.func public @k({ARGUMENTS}) attributes {{noinline = false}} {{
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c3 = arith.constant 3 : i32
    %four = arith.constant dense<4> : tensor<8xi32>
    %lane = tt.make_range {{end = 8 : i32, start = 0 : i32}} : tensor<8xi32>
    %at = arith.muli %lane, %four : tensor<8xi32>
    %base = tt.splat %codes_ptr : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>>
    %ptr = tt.addptr %base, %at : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
    %ahead:2 = scf.for %i = %c0 to %c3 step %c1 iter_args(%moving = %ptr, %slot = %c0) -> {TYPES} {{
      %address = tt.ptr_to_int %moving : tensor<8x!tt.ptr<i32>> -> tensor<8xi64>
      %first = tt.elementwise_inline_asm {COPY} %slot, %address : i32, tensor<8xi64> -> tensor<8xi32>
      %next = tt.addptr %moving, %at : tensor<8x!tt.ptr<i32>>, tensor<8xi32>
      scf.yield %next, %slot : tensor<8x!tt.ptr<i32>>, i32
    }}
    %done:2 = scf.for %i = %c0 to %words step %c1 iter_args(%moving = %ahead#0, %slot = %c0) -> {TYPES} {{
      %word = tt.elementwise_inline_asm {READ} %slot : i32 -> tensor<8xi32>
      AGAIN
      scf.yield %moving, %slot : tensor<8x!tt.ptr<i32>>, i32
    }}
    tt.return
  }}
}}
"""
AGAIN = f"""%address_1 = tt.ptr_to_int %moving : tensor<8x!tt.ptr<i32>> -> tensor<8xi64>
      %more = tt.elementwise_inline_asm {COPY} %slot, %address_1 : i32, tensor<8xi64> -> tensor<8xi32>"""


def line_of(text: str, name: str) -> int:
    """Number of the line that defines a value."""
    return next(
        at for at, line in enumerate(text.splitlines(), start=1) if line.lstrip().startswith(f"{name} =")
    )


def test_copies_into_shared_memory_are_loads() -> None:
    """Eight copies of 16 bytes, three times; the loop that reads them names none of the codes."""
    text = COPIES.replace("AGAIN", "")
    (stream,) = find_streams(text, [None, None, 5], frozenset({0}), (1,))
    assert stream.loads == (Load(line=line_of(text, "%first"), shape=(8,), element_bytes=16),)
    assert (stream.asked_bytes, stream.unique_bytes, stream.trips) == (128, 128, 3)
    assert stream.readers == (line_of(text, "%word"),)
    assert stream.problem is None


def test_a_loop_that_copies_and_reads_stands_alone() -> None:
    text = COPIES.replace("AGAIN", AGAIN)
    main, ahead = find_streams(text, [None, None, 5], frozenset({0}), (1,))
    assert (main.unique_bytes, main.trips, main.readers) == (
        128,
        5,
        (),
    )  # its pointer came out of another loop
    assert (ahead.unique_bytes, ahead.trips) == (128, 3)
    assert main.lines == {line_of(text, "%more")}


COPYING_SASS = """
.L_x_0:
\t//## File "/tmp/k.ttir", line 7
        /*0000*/                   LDGSTS.E.BYPASS.128 [R7], desc[UR8][R4.64] ;
        /*0010*/                   LDGDEPBAR ;
        /*0020*/               @P1 BRA `(.L_x_0) ;
.L_x_1:
\t//## File "/tmp/k.ttir", line 9
        /*0030*/                   LDS.128 R4, [R16] ;
        /*0040*/                   HMMA.16816.F32 R32, R16.reuse, R28, RZ ;
        /*0050*/                   LDS.128 R4, [R16+0x200] ;
        /*0060*/                   HMMA.16816.F32 R32, R16.reuse, R28, RZ ;
        /*0070*/               @P0 BRA `(.L_x_1) ;
        /*0080*/                   LDS R4, [R16] ;
        /*0090*/                   EXIT ;
"""


@pytest.mark.parametrize("readers", [(), (9,)])
def test_the_loop_that_reads_copies_counts_too(readers: tuple[int, ...]) -> None:
    """One trip of the first loop copies 32 words a thread of 16 bytes; the second has two steps in one trip."""
    stream = Stream(
        loads=(Load(line=7, shape=(32,), element_bytes=16),),
        in_loop=True,
        asked_bytes=512,
        unique_bytes=512,
        trips=3,
        stored_bytes=0,
        readers=readers,
    )
    ttgir = '#loc1 = loc("/tmp/k.ttir":7:6)\n'
    ttgir += '%0 = tt.elementwise_inline_asm "cp.async.cg" %a : tensor<32xi64, #blocked> -> tensor<32xi32> loc(#loc1)\n'
    ttgir += "#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [1], order = [0]}>\n"
    launch = Launch(kernel=None, grid=(1,), args={}, num_warps=1)
    compiled = CompiledLaunch(
        launch=launch,
        asm={"ttgir": ttgir},
        binary=b"",
        shared_bytes=0,
        threads=32,
        values=(),
        codes=frozenset(),
    )
    found = per_weight(sass.parse(COPYING_SASS), stream, compiled, Problem(n=16, k=128))
    assert found is not None
    assert (found.weights, found.load_bits, found.loads_per_word) == (1024, 128, 1)
    assert found.notes == ()
    steps = {"load_global": 1, "barrier": 1, "control": 1.5, "tensor": 1, "shared": 1} if readers else {}
    expected = steps or {"load_global": 1, "barrier": 1, "control": 1}
    spent = {kind: count * 1024 / 32 for kind, count in found.by_class.items() if count and kind != "total"}
    assert spent == expected
    assert found.by_class["total"] * 1024 / 32 == sum(expected.values())
