"""v4's limb kernel against fp64. Without a GPU ``ptx_machine`` runs its assembly."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE
from v4_cases import V4, Product, amid_poison, in_turns

from roofgap.kernels.formats.interleaved import Interleaved
from roofgap.kernels.formats.weight import DTYPES, QuantizedWeight
from roofgap.kernels.inputs import operands
from roofgap.kernels.ops import limits_of, run_plan
from roofgap.kernels.step import Launch
from roofgap.kernels.variant import Limits
from roofgap.kernels.variants._v4_config import V4Config
from roofgap.kernels.verify import verify
from roofgap.shapes.problem import Problem, XDtype, ZeroMode

pytestmark = pytest.mark.usefixtures("tensor_cores")
MODES: tuple[ZeroMode, ...] = ("sym", "asym", "offset")
TYPES: tuple[XDtype, ...] = ("fp16", "bf16")
NO_CLUSTERS = DEVICE.type == "cuda" and limits_of(DEVICE).max_cluster < 8


def limbs(text: str) -> V4Config:
    """A config of the limb kernel."""
    return V4Config.parse("decode=limbs," + text)


HOPPER = Limits(max_cluster=8)


def check(problem: Problem, config: V4Config, epilogue: str = "") -> None:
    """The config is valid, takes the limb kernel, and is right."""
    assert V4.is_valid(problem, config, HOPPER) is None
    case = Product(problem, epilogue)
    assert case.kernel(config) == "v4_limb_kernel"
    case.check(config)


@pytest.mark.parametrize(
    "name",
    ["random", "repeated", "with_bias", "outliers", "saturation", "zero_groups", "not_finite", "deterministic"],
)  # fmt: skip
def test_checks_on_a_ragged_problem(name: str) -> None:
    (result,) = verify(
        V4,
        [Problem(n=37, k=408, group_size=128, zero_mode="asym")],
        DEVICE,
        config=limbs("num_warps=2,num_stages=2"),
        checks=(name,),
    )
    assert result.status == "passed", result.detail


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", [128, 256, -1])
def test_formats(group: int, mode: ZeroMode) -> None:
    for dtype in TYPES:
        problem = Problem(n=32, k=512, group_size=group, zero_mode=mode, x_dtype=dtype)
        check(problem, limbs("num_warps=2,num_stages=2"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "k"), [(1, 8), (16, 136), (23, 264), (47, 200), (17, 333)])
def test_ragged_shapes(n: int, k: int, mode: ZeroMode) -> None:
    """Nothing beyond the tensors is read or written: rows, groups and k end within tiles and blocks."""
    blocks = (k + 127) // 128
    check(Problem(n=n, k=k, zero_mode=mode, bias=True), limbs(f"num_warps=1,num_stages={blocks}"))


@pytest.mark.parametrize(
    ("config", "n", "k"),
    [
        ("num_warps=1,num_stages=3", 32, 384),
        ("num_warps=2,num_stages=4,tiles=3", 80, 512),  # two of five tiles are left for the last program
        (
            "num_warps=2,num_stages=4,tiles=5",
            80,
            400,
        ),  # more tiles than are under way, a block less for a warp
        ("num_warps=2,num_stages=1,tiles=4", 100, 256),  # one tile at a time
        ("num_warps=4,num_stages=1", 20, 300),  # a warp without a block
        ("num_warps=2,num_stages=2", 32, 384),  # whole blocks, one less for a warp
        ("num_warps=1,num_stages=8", 16, 1024),
    ],
)
@pytest.mark.parametrize(("mode", "dtype"), [("asym", "fp16"), ("offset", "bf16"), ("sym", "fp16")])
def test_configs(config: str, n: int, k: int, mode: ZeroMode, dtype: XDtype) -> None:
    check(Problem(n=n, k=k, zero_mode=mode, x_dtype=dtype), limbs(config))


@pytest.mark.skipif(NO_CLUSTERS, reason="clusters need sm_90 or later")
@pytest.mark.parametrize("epilogue", ["", "residual", "swiglu"])
@pytest.mark.parametrize(
    ("config", "n", "k"),
    [
        ("num_warps=1,num_stages=1,cluster=2", 32, 256),
        (
            "num_warps=2,num_stages=2,cluster=2,tiles=2",
            160,
            500,
        ),  # a warp has no block in the second tile's end
        (
            "num_warps=1,num_stages=1,cluster=4,tiles=5",
            96,
            300,
        ),  # a program without a block; more outputs than threads
        ("num_warps=1,num_stages=2,cluster=8", 64, 1100),
    ],
)
def test_clusters(config: str, n: int, k: int, epilogue: str) -> None:
    """Programs that share K and add up in the first of them."""
    problem, chosen = Problem(n=n, k=k, zero_mode=MODES[len(epilogue) % 3], bias=True), limbs(config)
    check(problem, chosen, epilogue)
    (launch,) = V4.plan(problem, chosen, Product(problem).operands())
    assert isinstance(launch, Launch)
    assert launch.args["TAIL"] is bool(-(-k // 128) % (chosen.num_warps * chosen.cluster))


@pytest.mark.parametrize("epilogue", ["residual", "swiglu"])
@pytest.mark.parametrize(
    ("config", "n", "k"),
    [
        ("num_warps=2,num_stages=1", 96, 256),
        ("num_warps=1,num_stages=2,tiles=4", 160, 256),  # the last program of gate|up has one pair of two
        ("num_warps=2,num_stages=2,tiles=3", 64, 400),
    ],
)
def test_epilogues(config: str, n: int, k: int, epilogue: str) -> None:
    check(Problem(n=n, k=k, zero_mode="asym", bias=True), limbs(config), epilogue)


def test_other_operands_take_the_portable_kernel() -> None:
    problem, config = Problem(n=37, k=256, zero_mode="asym", bias=True), limbs("num_warps=2,num_stages=1")
    case = Product(problem)
    assert case.bias is not None
    case.bias = amid_poison(case.bias, 1)
    assert case.kernel(config) == "v4_portable_kernel"
    case.check(config)


def test_small_activations_beside_a_large_one() -> None:
    """All of a warp's activations share a unit: one of 60,000 makes it 2^-6. What is lost stays within the bound."""
    for mode in MODES:
        case = Product(Problem(n=32, k=512, zero_mode=mode))
        case.x[0, 130] = 60_000
        case.check(limbs("num_warps=2,num_stages=2"))


@pytest.mark.parametrize("exponent", [-24, -14, 0, 15])
def test_every_magnitude_is_exact(exponent: int) -> None:
    """One-hot activations of a power of two, down to the smallest subnormal, give the code itself."""
    codes = (torch.arange(64 * 128, device=DEVICE) * 7 % 16).to(torch.uint8).reshape(64, 128)
    weight = QuantizedWeight(
        codes=codes, scales=torch.full((64, 1), 2.0, device=DEVICE).half(), group_size=128
    )
    packed = Interleaved.pack(weight)
    for place in range(0, 128, 1 if DEVICE.type == "cuda" else 41):
        x = torch.zeros((1, 128), dtype=torch.float16, device=DEVICE)
        x[0, place] = 2.0**exponent
        y = torch.full((1, 64), float("nan"), dtype=torch.float16, device=DEVICE)
        run_plan(
            V4, Problem(n=64, k=128), limbs("num_warps=1,num_stages=1,tiles=2"), operands(x, packed, None, y)
        )
        expected = (codes[:, place].double() - 8) * 2.0 ** (exponent + 1)
        assert torch.equal(y[0].double(), expected.to(torch.float16).double())


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_an_activation_that_is_not_finite(value: float) -> None:
    for turn, mode in enumerate(MODES):
        for dtype in in_turns(TYPES, turn + (value > 0)):
            case = Product(Problem(n=32, k=512, x_dtype=dtype, zero_mode=mode))
            case.x[0, 77] = value
            config = limbs("num_warps=2,num_stages=2")
            y = case.run(config)
            assert not y.isfinite().any()
            assert case.judge(y, config).passed


def test_every_half_word_is_decoded_exactly() -> None:
    """All 2^16 patterns of four codes, as lower and as upper halves of words, at every place of a word."""
    patterns = torch.arange(0, 1 << 16, 1 if DEVICE.type == "cuda" else 16, dtype=torch.int32)
    words = patterns | (patterns * 40503 & 0xFFFF) << 16
    codes = torch.stack([(words >> 4 * j) & 15 for j in range(8)], dim=1).to(torch.uint8).reshape(-1, 128)
    for dtype in TYPES:
        weight = QuantizedWeight(
            codes=codes.to(DEVICE),
            scales=torch.ones(len(codes), 1, device=DEVICE, dtype=DTYPES[dtype]),
            group_size=128,
        )
        packed = Interleaved.pack(weight)
        for place in range(0, 128, 1 if DEVICE.type == "cuda" else 41):
            x = torch.zeros((1, 128), dtype=DTYPES[dtype], device=DEVICE)
            x[0, place] = 1
            y = torch.full((1, len(codes)), float("nan"), dtype=x.dtype, device=DEVICE)
            problem = Problem(n=len(codes), k=128, x_dtype=dtype)
            run_plan(V4, problem, limbs("num_warps=1,num_stages=1,tiles=16"), operands(x, packed, None, y))
            assert torch.equal(y[0], weight.codes[:, place].to(x.dtype) - 8)
