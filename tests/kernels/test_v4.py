"""v4's kernels against fp64. Without a GPU ``ptx_machine`` runs the tensor-core kernel's assembly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_cases import DEVICE
from v4_cases import V4, Product, amid_poison, in_turns

from roofgap.kernels.formats.interleaved import Interleaved
from roofgap.kernels.formats.weight import DTYPES, QuantizedWeight
from roofgap.kernels.inputs import operands
from roofgap.kernels.ops import run_plan
from roofgap.kernels.variants._v4_config import V4Config
from roofgap.kernels.verify import verify
from roofgap.shapes.problem import Problem, XDtype, ZeroMode

pytestmark = pytest.mark.usefixtures("tensor_cores")
MODES: tuple[ZeroMode, ...] = ("sym", "asym", "offset")
TYPES: tuple[XDtype, ...] = ("fp16", "bf16")


@pytest.mark.parametrize(
    "check",
    [
        "row_counts",
        "repeated",
        "with_bias",
        "outliers",
        "saturation",
        "zero_groups",
        "not_finite",
        "strided_x",
        "mixed_scales",
        "deterministic",
    ],
)
def test_checks_on_a_ragged_problem(check: str) -> None:
    (result,) = verify(
        V4,
        [Problem(n=37, k=208, group_size=32, zero_mode="asym")],
        DEVICE,
        config=V4Config.parse("num_warps=2"),
        checks=(check,),
    )
    assert result.status == "passed", result.detail


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", [32, 64, 96, 128, 160, 256, -1])
def test_formats(group: int, mode: ZeroMode, m: int) -> None:
    """Groups end within a block of 128 k, with it, after it, never; one token and several."""
    for dtype in in_turns(TYPES, m // 2 + MODES.index(mode)):
        problem = Problem(n=32, k=512, m=m, group_size=group, zero_mode=mode, x_dtype=dtype)
        Product(problem).check(V4Config(num_warps=2, num_stages=2))


@pytest.mark.parametrize(("m", "group"), [(1, 32), (2, 128)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "k"), [(1, 8), (16, 136), (23, 264), (47, 200)])
def test_ragged_shapes(n: int, k: int, mode: ZeroMode, m: int, group: int) -> None:
    """Nothing beyond the tensors is read or written: rows, tokens, groups and k end within tiles and blocks."""
    Product(Problem(n=n, k=k, m=m, group_size=group, zero_mode=mode)).check(V4Config(num_warps=1))


CONFIGS = [
    ("num_warps=1,tiles=2,num_stages=3", 32, 512),
    ("num_warps=4,tiles=4", 80, 512),
    ("num_warps=2,warps_n=2", 40, 200),
    ("num_warps=8,warps_n=2,tiles=2", 128, 1024),
    ("num_warps=4,warps_n=4,num_stages=3", 100, 520),
    ("num_warps=8", 32, 1024),
    ("num_warps=2,num_stages=2,ahead=4", 32, 1536),
    ("num_warps=1,tiles=2,split_k=2", 33, 400),
    ("num_warps=2,split_k=3,num_stages=2", 48, 1536),
    ("num_warps=2,split_k=2,warps_n=2,num_stages=2", 48, 904),
]
PROBLEMS: list[tuple[int, ZeroMode, XDtype]] = [
    (1, "asym", "fp16"),
    (5, "offset", "bf16"),
    (8, "sym", "fp16"),
]


@pytest.mark.parametrize("turn", range(len(CONFIGS)), ids=[config for config, _, _ in CONFIGS])
def test_configs(turn: int) -> None:
    config, n, k = CONFIGS[turn]
    chosen = V4Config.parse(config)
    group = 64 if chosen.tiles < 4 else 128
    for m, mode, dtype in in_turns(PROBLEMS, turn):
        # Four tiles and the offsets of several tokens would spill.
        zero_mode: ZeroMode = "asym" if chosen.tiles == 4 and mode == "offset" else mode
        problem = Problem(n=n, k=k, m=m, group_size=group, zero_mode=zero_mode, x_dtype=dtype)
        assert V4.is_valid(problem, chosen) is None
        Product(problem).check(chosen)


@pytest.mark.parametrize("m", range(1, 9))
def test_every_number_of_tokens(m: int) -> None:
    """Each has its row; what lies behind the last is neither read nor written."""
    Product(Problem(n=23, k=264, m=m, group_size=64, zero_mode="asym", bias=True)).check(
        V4Config(num_warps=2)
    )


@pytest.mark.parametrize(
    ("warps", "stages", "blocks", "m"),
    [(1, 1, 9, 1), (1, 2, 9, 2), (1, 3, 3, 1), (1, 4, 5, 2), (2, 3, 5, 1), (2, 4, 15, 1), (2, 2, 15, 2)],
)
def test_every_copy_has_arrived_when_it_is_read(warps: int, stages: int, blocks: int, m: int) -> None:
    """As many blocks per warp as stages, some more, many more, and a last step that not all warps have."""
    problem = Problem(n=16, k=128 * blocks - 56, m=m, group_size=64, zero_mode="asym")
    chosen = V4Config(num_warps=warps, num_stages=stages)
    assert V4.is_valid(problem, chosen) is None
    Product(problem).check(chosen)


def test_unaligned_operands_take_the_portable_kernel() -> None:
    """Copies want 16-byte aligned x and codes and pairs of scales; whatever else there is gives the same product."""
    problem = Problem(n=32, k=128, m=2, group_size=32, zero_mode="offset", bias=True)
    case, config = Product(problem), V4Config(num_warps=1)
    aligned = case.operands()
    assert aligned.zeros is not None
    assert aligned.bias is not None
    wide = torch.full((2, 131), float("nan"), dtype=torch.float16, device=DEVICE)
    wide[:, :128] = case.x
    for changed, portable in (
        ({}, False),
        ({"bias": amid_poison(aligned.bias, 1)}, False),
        ({"x": amid_poison(case.x, 1)}, True),
        ({"x": wide[:, :128]}, True),  # rows of an odd length
        ({"codes": amid_poison(aligned.codes, 1)}, True),
        ({"scales": amid_poison(aligned.scales, 1)}, True),
        ({"zeros": amid_poison(aligned.zeros, 1)}, True),
        ({"scales": amid_poison(aligned.scales.float())}, True),
        ({"zeros": amid_poison(aligned.zeros.float())}, True),
    ):
        given = replace(aligned, **changed)
        (launch,) = V4.plan(problem, config, given)
        assert (launch.kernel.__name__ == "v4_portable_kernel") is portable, changed  # type: ignore[union-attr]
        verdict = case.judge(case.run(config, given), config)
        assert verdict.passed, (changed, verdict.detail)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("decode", ["mma", "portable"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, on infinities
def test_an_activation_that_is_not_finite_stays_in_its_row(value: float, decode: str) -> None:
    config = V4Config(num_warps=1, decode=decode)
    for turn, mode in enumerate(MODES):
        for dtype in in_turns(TYPES, turn + (value > 0)):
            case = Product(Problem(n=32, k=256, m=3, x_dtype=dtype, zero_mode=mode))
            case.x[1, 77] = value
            y = case.run(config)
            assert not y[1].isfinite().any()
            assert case.judge(y, config).passed


def every_half_word(dtype: torch.dtype) -> QuantizedWeight:
    """All 2^16 patterns of four codes, twice over: as lower and as upper halves of words."""
    patterns = torch.arange(1 << 16, dtype=torch.int32)
    words = patterns | patterns.flip(0) << 16
    codes = torch.stack([(words >> 4 * j) & 15 for j in range(8)], dim=1).to(torch.uint8)
    return QuantizedWeight(
        codes=codes.reshape(4096, 128).to(DEVICE), scales=torch.ones(4096, 1, device=DEVICE, dtype=dtype)
    )


WIDE = "" if DEVICE.type == "cuda" else ",warps_n=256"  # the interpreter takes as long for a small program


@pytest.mark.parametrize("config", ["num_warps=4,warps_n=4,tiles=4", "decode=portable" + WIDE])
@pytest.mark.parametrize("dtype", TYPES)
def test_every_half_word_is_decoded_exactly(config: str, dtype: XDtype) -> None:
    weight = every_half_word(DTYPES[dtype])
    packed = Interleaved.pack(weight)
    x = torch.eye(128, dtype=DTYPES[dtype], device=DEVICE)
    problem = Problem(n=4096, k=128, m=8, x_dtype=dtype)
    # Every place in a word; the interpreter does not try all words (test_v4_fragments decodes in all of them).
    for start in range(0, 128, 8 if DEVICE.type == "cuda" else 72):
        y = torch.full((8, 4096), float("nan"), dtype=x.dtype, device=DEVICE)
        run_plan(V4, problem, V4Config.parse(config), operands(x[start : start + 8], packed, None, y))
        assert torch.equal(y, weight.codes[:, start : start + 8].T.to(x.dtype) - 8)
