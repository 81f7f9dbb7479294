"""Listings, IR and tables with figures that were worked out by hand; nothing is compiled here."""

from __future__ import annotations

import pytest

from roofgap.kernels.static import amd, sass
from roofgap.kernels.static.budget import weigh
from roofgap.kernels.static.instructions import count_classes, find_loops, main_region, weight_bytes
from roofgap.kernels.static.layout import loaded_bytes_per_thread
from roofgap.kernels.static.occupancy import estimate
from roofgap.kernels.static.targets import TARGETS, device_for, load_target
from roofgap.kernels.static.ttir import Load, find_streams
from roofgap.shapes.device import Measured, load_device
from roofgap.shapes.errors import RoofgapError

SASS = """
.text.gemv:
\t//## File "/tmp/gemv.ttir", line 4
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
        /*0010*/              @!P3 BRA `(.L_x_1) ;
.L_x_0:
\t//## File "/tmp/gemv.ttir", line 7
        /*0020*/               @P0 LDG.E.EF.128 R4, [R2.64] ;
        /*0030*/               @P0 LDG.E.128 R8, [R2.64+0x200] ;
\t//## File "/tmp/gemv.ttir", line 8
        /*0040*/                   LDG.E.U16 R12, desc[UR10][R2.64] ;
        /*0050*/                   LOP3.LUT R4, R4, 0xf, RZ, 0xc0, !PT ;
        /*0060*/                   I2FP.F32.S32 R4, R4 ;
        /*0070*/                   HADD2.F32 R5, -RZ, R12.H0_H0 ;
        /*0080*/                   FFMA R6, R4, R5, R6 ;
        /*0090*/                   ISETP.GE.AND P3, PT, R5, UR14, PT ;
        /*00a0*/              @!P3 BRA `(.L_x_0) ;
.L_x_2:
\t//## File "/tmp/gemv.ttir", line 7
        /*00b0*/                   LDG.E.128 R4, [R2.64] ;
        /*00c0*/               @P0 BRA `(.L_x_2) ;
.L_x_1:
        /*00d0*/                   RED.E.ADD.F32.FTZ.RN [R2.64], R6 ;
        /*00e0*/                   EXIT ;
.L_x_3:
        /*00f0*/                   BRA `(.L_x_3);
        /*0100*/                   NOP;
"""


def test_sass_loops_and_classes() -> None:
    code = sass.parse(SASS)
    assert len(code) == 17
    assert [(loop.start, loop.stop) for loop in find_loops(code)] == [(2, 11), (11, 13)]  # no trap loop
    loop = main_region(code, frozenset({7}))
    assert (loop.start, loop.stop) == (2, 11)  # the unrolled loop, not its remainder
    assert weight_bytes(loop.of(code), frozenset({7})) == 32
    counts = count_classes(loop.of(code))
    assert {kind: count for kind, count in counts.items() if count} == {
        "load_global": 3,
        "alu": 1,
        "convert": 2,
        "fma": 1,
        "control": 2,
    }
    assert sum(counts.values()) == 9


def test_no_loop_means_the_whole_kernel() -> None:
    code = sass.parse(SASS.replace("BRA `(.L_x_0)", "BRA `(.L_x_1)").replace("BRA `(.L_x_2)", "NOP"))
    region = main_region(code, frozenset({7}))
    assert (region.start, region.stop, region.is_loop) == (0, len(code), False)


@pytest.mark.parametrize(
    ("opcode", "kind", "width"),
    [
        ("LDG.E.128", "load_global", 16),
        ("LDG.E.EF.64.CONSTANT", "load_global", 8),
        ("LDG.E", "load_global", 4),
        ("LDG.E.U16", "load_global", 2),
        ("LDG.E.S8", "load_global", 1),
        ("LDGSTS.E.BYPASS.LTC128B.128", "load_global", 16),
        ("STG.E.128", "store_global", 0),
        ("STL.64", "spill", 0),
        ("LDS.128", "shared", 0),
        ("LDSM.16.M88.4", "shared", 0),
        ("REDG.E.ADD.F16x2.RN", "atomics", 0),
        ("HMMA.16816.F32", "tensor", 0),
        ("IGMMA.64x8x32.S8.S8", "tensor", 0),
        ("I2F.U8", "convert", 0),
        ("HADD2.F32", "convert", 0),
        ("HADD2", "fma", 0),
        ("HFMA2.MMA", "fma", 0),
        ("IDP.4A.S8.U8", "fma", 0),
        ("IMAD.MOV.U32", "alu", 0),
        ("PRMT", "alu", 0),
        ("ULOP3.LUT", "alu", 0),
        ("LDGDEPBAR", "barrier", 0),
        ("BAR.SYNC.DEFER_BLOCKING", "barrier", 0),
        ("ISETP.GE.AND", "control", 0),
        ("ULDC.64", "other", 0),
    ],
)
def test_sass_opcodes(opcode: str, kind: str, width: int) -> None:
    assert (sass.kind_of(opcode), sass.load_width(opcode)) == (kind, width)


AMDGCN = """
gemv:
\ts_load_dwordx2 s[2:3], s[0:1], 0x0
.LBB0_2:                                ; =>This Inner Loop Header: Depth=1
\t.loc\t1 7 6                           ; gemv.ttir:7:6
\tbuffer_load_dwordx4 v[14:17], v18, s[12:15], 0 offen
\tglobal_load_dwordx2 v[2:3], v[2:3], off offset:256
\t.loc\t1 8 6
\ts_waitcnt vmcnt(0)
\tv_and_b32_e32 v4, 15, v14
\tv_cvt_f32_i32_e32 v4, v4
\tv_pk_fma_f32 v[4:5], v[4:5], v[6:7], v[8:9]
\tv_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]
\tds_read_b128 v[0:3], v9
\tv_cmp_gt_i32_e32 vcc, s8, v14
\ts_cbranch_scc1 .LBB0_2
; %bb.3:
\tglobal_atomic_add_f32 v0, v1, s[0:1]
\ts_endpgm
\t.end_amdhsa_kernel
\tv_never_counted
; TotalNumSgprs: 30
; TotalNumVgprs: 98
    .group_segment_fixed_size: 1024
    .private_segment_fixed_size: 16
"""


def test_amd_assembly() -> None:
    code = amd.parse(AMDGCN)
    assert len(code) == 13
    loop = main_region(code, frozenset({7}))
    assert (loop.start, loop.stop) == (1, 11)
    assert weight_bytes(loop.of(code), frozenset({7})) == 24
    counts = count_classes(loop.of(code))
    assert {kind: count for kind, count in counts.items() if count} == {
        "load_global": 2,
        "shared": 1,
        "alu": 1,
        "convert": 1,
        "fma": 1,
        "tensor": 1,
        "barrier": 1,
        "control": 2,
    }
    assert sum(amd.is_vector_alu(each.opcode) for each in loop.of(code)) == 4  # and, cvt, pk_fma, cmp
    needs = amd.read_resources(AMDGCN)
    assert (needs.registers, needs.scalar_registers, needs.spill_bytes, needs.shared_bytes) == (
        98,
        30,
        16,
        1024,
    )


@pytest.mark.parametrize(
    ("target", "warps", "registers", "shared", "expected_blocks", "limit"),
    [
        ("sm_80", 8, 32, 0, 8, "warps"),  # 64 warps / 8
        ("sm_80", 1, 32, 0, 32, "blocks"),
        ("sm_80", 4, 255, 0, 2, "registers"),  # 8192 registers a warp: 2 a scheduler, 8 warps
        ("sm_80", 4, 32, 48 * 1024, 3, "shared"),  # 164 KiB / 49 KiB
        ("sm_86", 8, 64, 0, 4, "registers"),  # 2048 a warp: 8 a scheduler, 32 warps
        ("sm_86", 4, 40, 0, 12, "warps"),  # 1280 a warp: 12 a scheduler, as many as there are
        ("sm_86", 4, 32, 99 * 1024, 1, "shared"),
        ("sm_86", 4, 32, 100 * 1024, 0, "shared"),
        ("sm_90", 4, 41, 0, 10, "registers"),  # 1312 rounds up to 1536: 10 a scheduler
        ("gfx942", 4, 98, 0, 4, "registers"),  # 104 of 512: 4 waves a SIMD
        ("gfx942", 4, 64, 20 * 1024, 3, "shared"),
        ("gfx90a", 4, 64, 0, 8, "warps"),
    ],
)
def test_occupancy(
    target: str, warps: int, registers: int, shared: int, expected_blocks: int, limit: str
) -> None:
    found = estimate(TARGETS[target], warps, registers, shared)
    assert (found.blocks, found.limit) == (expected_blocks, limit)
    assert found.fraction == expected_blocks * warps / TARGETS[target].max_warps


def test_many_scalar_registers_cost_a_wave() -> None:
    assert estimate(TARGETS["gfx942"], 4, 64, 0, scalar_registers=100).warps == 28  # 800 / 112
    assert estimate(TARGETS["gfx942"], 4, 64, 0, scalar_registers=96).warps == 32


@pytest.mark.parametrize(
    ("target", "affordable"),
    [("sm_90", 3.59), ("sm_80", 4.93), ("sm_86", 10.14)],  # 128 x SMs x clock x 0.515625 / bandwidth
)
def test_budget(target: str, affordable: float) -> None:
    device = load_device(TARGETS[target].device or "").model_copy(update={"measured": None})
    if target == "sm_86":
        published = Measured(provenance="published", copy_gbps=323.9, method="a copy")
        device = device.model_copy(update={"measured": published})
    fits = weigh(TARGETS[target], device, bytes_per_weight=0.515625, spent=affordable - 0.1, spent_int=1.0)
    assert fits.pipes[0].affordable == pytest.approx(affordable, abs=0.01)
    assert fits.bound == "bandwidth-bound"
    assert fits.attainable == 1.0
    heavy = weigh(TARGETS[target], device, bytes_per_weight=0.515625, spent=2 * affordable, spent_int=1.0)
    assert heavy.bound == "issue-bound"
    assert heavy.attainable == pytest.approx(0.5, abs=0.01)
    assert f"{heavy.attainable:.0%}" in heavy.reasoning()[-1]
    integer = weigh(
        TARGETS[target], device, bytes_per_weight=0.515625, spent=affordable - 0.1, spent_int=affordable - 0.1
    )
    assert integer.bound == "issue-bound"
    assert "integer pipe stops" in integer.reasoning()[-1]
    twice = weigh(
        TARGETS[target], device, bytes_per_weight=0.515625, spent=affordable, spent_int=None, weight_passes=2
    )
    assert [pipe.name for pipe in twice.pipes] == ["issue"]
    assert twice.attainable == pytest.approx(0.5, abs=0.01)
    assert f"{affordable:.2f} in each of 2 passes" in " ".join(twice.reasoning())


def test_unknown_names() -> None:
    with pytest.raises(RoofgapError, match="sm_86"):
        load_target("sm_8")
    with pytest.raises(RoofgapError, match="is sm_90 and not sm_80"):
        device_for(TARGETS["sm_80"], "h200")


ARGUMENTS = (
    '%codes_ptr: !tt.ptr<i32> {tt.divisibility = 16 : i32} loc("codes_ptr"(#loc)), '
    '%y_ptr: !tt.ptr<f16> loc("y_ptr"(#loc)), %words: i32 loc("words"(#loc))'
)
CARRIED = "(tensor<4x16x!tt.ptr<i32>>, i32)  : i32"


def ttir(pointer: str, start: str = "%c0", extra: str = "") -> str:
    """A loop over 64 words in steps of 16 that loads a [4, 16] tile of codes."""
    return f"""#loc = loc("k.py":1:0)
module {{
  tt.func public @k({ARGUMENTS}) attributes {{noinline = false}} {{
    %c0 = arith.constant 0 : i32 loc(#loc)
    %c16 = arith.constant 16 : i32 loc(#loc)
    %eight = arith.constant dense<8> : tensor<1x16xi32> loc(#loc)
    %pid = tt.get_program_id x : i32 loc(#loc)
    %rows = tt.make_range {{end = 4 : i32, start = 0 : i32}} : tensor<4xi32> loc(#loc)
    %rows_1 = tt.expand_dims %rows {{axis = 1 : i32}} : tensor<4xi32> -> tensor<4x1xi32> loc(#loc)
    %stride = tt.splat %words : i32 -> tensor<4x1xi32> loc(#loc)
    %offset = arith.muli %rows_1, %stride : tensor<4x1xi32> loc(#loc)
    %base = tt.splat %codes_ptr : !tt.ptr<i32> -> tensor<4x1x!tt.ptr<i32>> loc(#loc)
    %row_ptr = tt.addptr %base, %offset : tensor<4x1x!tt.ptr<i32>>, tensor<4x1xi32> loc(#loc)
    %wide = tt.broadcast %row_ptr : tensor<4x1x!tt.ptr<i32>> -> tensor<4x16x!tt.ptr<i32>> loc(#loc)
    {extra}
    %acc = scf.for %start = {start} to %words step %c16 iter_args(%moving = %wide, %sum = %c0) -> {CARRIED} {{
      %lane = tt.make_range {{end = 16 : i32, start = 0 : i32}} : tensor<16xi32> loc(#loc)
      %lane_1 = tt.expand_dims %lane {{axis = 0 : i32}} : tensor<16xi32> -> tensor<1x16xi32> loc(#loc)
      %word = arith.divsi %lane_1, %eight : tensor<1x16xi32> loc(#loc)
      %at = tt.broadcast %{pointer} : tensor<1x16xi32> -> tensor<4x16xi32> loc(#loc)
      %ptr = tt.addptr %moving, %at : tensor<4x16x!tt.ptr<i32>>, tensor<4x16xi32> loc(#loc)
      %limit = tt.splat %words : i32 -> tensor<4x16xi32> loc(#loc)
      %ok = arith.cmpi slt, %at, %limit : tensor<4x16xi32> loc(#loc)
      %packed = tt.load %ptr, %ok : tensor<4x16x!tt.ptr<i32>> loc(#loc)
      scf.yield %moving, %sum : tensor<4x16x!tt.ptr<i32>>, i32 loc(#loc)
    }} loc(#loc)
    tt.return loc(#loc)
  }} loc(#loc)
}} loc(#loc)
"""


@pytest.mark.parametrize(
    ("text", "words", "asked", "unique", "trips"),
    [
        (ttir("lane_1"), 64, 256, 256, 4),  # 4 x 16 words of 4 bytes, 64 / 16 trips
        (ttir("word"), 64, 256, 32, 4),  # two words a row, each asked for eight times
        (ttir("lane_1"), 12, 256, 192, 1),  # the mask leaves 12 of 16 words a row
        (ttir("lane_1", start="%pid"), 64, 256, 256, 4),  # starts at program id: 4 trips from 0, 4 from 1
        (
            ttir(
                "lane_1", "%late", "%c48 = arith.constant 48 : i32\n    %late = arith.muli %pid, %c48 : i32"
            ),
            64,
            256,
            256,
            2.5,
        ),
    ],
)
def test_streams(text: str, words: int, asked: int, unique: int, trips: float) -> None:
    (stream,) = find_streams(text, [None, None, words], frozenset({0}), (2,))
    assert (stream.asked_bytes, stream.unique_bytes, stream.trips) == (asked, unique, trips)
    (load,) = stream.loads
    assert text.splitlines()[load.line - 1].lstrip().startswith("%packed = tt.load")
    assert stream.in_loop


def test_other_arguments_are_not_codes() -> None:
    assert find_streams(ttir("lane_1"), [None, None, 64], frozenset({1}), (1,)) == []


def test_an_unknown_address_is_said_and_not_guessed() -> None:
    text = ttir("lane_1").replace("arith.muli %rows_1, %stride", "math.mystery %rows_1, %stride")
    (stream,) = find_streams(text, [None, None, 64], frozenset({0}), (1,))
    assert stream.unique_bytes is None
    assert stream.problem == "math.mystery"


LAYOUTS = (
    "#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [2, 16], warpsPerCTA = [4, 1], "
    "order = [1, 0]}>\n"
    "#narrow = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [32, 1], warpsPerCTA = [1, 4], "
    "order = [1, 0]}>\n"
    "#cluster = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [2, 16], warpsPerCTA = [2, 1], "
    "order = [1, 0], CGALayout = [[1, 0], [2, 0]]}>\n"
    "#linear = #ttg.linear<{register = [[0, 1], [0, 2], [0, 0], [8, 0]], "
    "lane = [[0, 4], [0, 8], [0, 16], [0, 32], [1, 0]], warp = [[2, 0], [4, 0]], block = []}>\n"
)


@pytest.mark.parametrize(
    ("encoding", "elements"),
    [
        ("#blocked", 8),  # [1, 4] a thread, [8, 64] a pass over [16, 64]: two passes
        (
            "#narrow",
            2,
        ),  # a thread could hold [1, 4], the tile has two columns
        ("#cluster", 4),  # four programs share the rows: [16, 64] in one pass
        ("#linear", 8),  # three register bases that move, one that repeats
    ],
)
def test_layouts(encoding: str, elements: int) -> None:
    shape = (16, 2) if encoding == "#narrow" else (16, 64)
    size = "x".join(map(str, shape))
    load_op = f"tt.load %ptr, %ok : tensor<{size}x!tt.ptr<i32>, {encoding}>"
    ttgir = f'{LAYOUTS}#loc1 = loc("/tmp/k.ttir":9:6)\n      %0 = {load_op} loc(#loc1)\n'
    load = Load(line=9, shape=shape, element_bytes=4)
    assert loaded_bytes_per_thread(ttgir, (load,)) == 4 * elements
    assert loaded_bytes_per_thread(ttgir, (Load(line=10, shape=shape, element_bytes=4),)) is None
