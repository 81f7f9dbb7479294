"""v4 with a residual or a SwiGLU behind its sums: the same kernels as ``test_v4``, judged by the same tolerance."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE
from v4_cases import V4, Product, amid_poison

from roofgap.kernels import ops
from roofgap.kernels.config import KernelConfig
from roofgap.kernels.formats.weight import DTYPES, QuantizedWeight
from roofgap.kernels.inputs import random_bias, random_weight, random_x
from roofgap.kernels.linear import W4Linear
from roofgap.kernels.variant import Variant
from roofgap.kernels.variants._v4_config import V4Config
from roofgap.kernels.variants.v4 import _paired_tiles
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem, ZeroMode


@pytest.fixture(params=["mma", "portable"])
def decode(request: pytest.FixtureRequest) -> str:
    """Both kernels; without a GPU ``ptx_machine`` runs the inline assembly of the first."""
    if request.param == "mma":
        request.getfixturevalue("tensor_cores")
    return str(request.param)


CONFIGS = [
    pytest.param("num_warps=2", Problem(n=96, k=256, m=3, zero_mode="asym", bias=True), id="across-k"),
    pytest.param("num_warps=1,tiles=2,num_stages=2", Problem(n=96, k=512, x_dtype="bf16"), id="two-tiles"),
    pytest.param(
        "num_warps=4,warps_n=2", Problem(n=160, k=296, m=2, group_size=32, zero_mode="offset"), id="across-n"
    ),
    pytest.param(
        "num_warps=1,tiles=4", Problem(n=64, k=128, x_dtype="bf16", zero_mode="asym", bias=True), id="four"
    ),
    pytest.param(
        "num_warps=1,split_k=2", Problem(n=64, k=304, m=2, x_dtype="bf16", bias=True), id="two-launches"
    ),
    # Many more blocks per warp than are under way: bias and residual wait in a group of their own copies.
    pytest.param("num_warps=1,num_stages=2", Problem(n=32, k=1152, zero_mode="asym", bias=True), id="deep"),
    pytest.param("num_warps=2,num_stages=3", Problem(n=64, k=1920, bias=True), id="deeper"),
    pytest.param("num_warps=2", Problem(n=32, k=1096, m=2, group_size=64, bias=True), id="deep-tokens"),
]


@pytest.mark.parametrize("epilogue", ["residual", "swiglu"])
@pytest.mark.parametrize(("config", "problem"), CONFIGS)
def test_epilogues(config: str, problem: Problem, epilogue: str, decode: str) -> None:
    chosen = V4Config.parse(config)
    assert V4.is_valid(problem, chosen) is None
    if decode == "portable":
        chosen = V4Config(decode="portable", num_warps=1, split_k=chosen.split_k)
    case = Product(problem, epilogue)
    assert case.kernel(chosen) == ("v4_kernel" if decode == "mma" else "v4_portable_kernel")
    case.check(chosen)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("epilogue", ["residual", "swiglu"])
def test_bias_and_residual_at_any_address(epilogue: str, offset: int, m: int, decode: str) -> None:
    """At odd elements they cannot be copied in pairs; at the end of an odd width half a pair is there."""
    n = 64 if epilogue == "swiglu" else 37
    case = Product(Problem(n=n, k=208, m=m, group_size=32, zero_mode="asym", bias=True), epilogue)
    assert case.bias is not None
    case.bias = amid_poison(case.bias, offset)
    if case.residual is not None:
        case.residual = amid_poison(case.residual, offset)
    case.check(V4Config(num_warps=1, decode=decode))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, on infinities
@pytest.mark.parametrize("epilogue", ["residual", "swiglu"])
def test_infinite_activations_reach_their_outputs(epilogue: str, decode: str) -> None:
    config = V4Config(num_warps=1, decode=decode)
    case = Product(Problem(n=64, k=128, m=2, bias=True), epilogue)
    case.x[1, 5] = float("inf")
    y = case.run(config)
    assert not torch.isfinite(y[1]).any()
    assert case.judge(y, config).misplaced == 0


@pytest.mark.parametrize("fault", ["halves", "residual", "bias", "scale"])
def test_the_tolerance_tells_faults(fault: str) -> None:
    config = V4Config(decode="portable", num_warps=1)
    case = Product(Problem(n=64, k=128, m=2, bias=True), "residual" if fault == "residual" else "swiglu")
    y = case.run(config)
    assert case.judge(y, config).passed
    if fault == "halves":
        case.weight = QuantizedWeight(
            codes=case.weight.codes.roll(32, 0), scales=case.weight.scales.roll(32, 0), group_size=128
        )
    elif fault == "residual":
        assert case.residual is not None
        case.residual = case.residual + 2**-6
    elif fault == "bias":
        assert case.bias is not None
        case.bias = case.bias + 2**-6
    else:
        case.weight.scales[3] *= 1.01
    assert not case.judge(y, config).passed


def test_the_sum_is_rounded_once() -> None:
    # W x is 1 + 2^-11, half a unit of fp16 above 1: rounded before the residual of 2^-11 it would be lost.
    codes = torch.full((16, 128), 8, dtype=torch.uint8, device=DEVICE)
    codes[:, 0], codes[:, 1] = 9, 9
    weight = QuantizedWeight(codes=codes, scales=torch.ones(16, 1, device=DEVICE).half())
    x = torch.zeros((1, 128), dtype=torch.float16, device=DEVICE)
    x[0, 0], x[0, 1] = 1, 2**-11
    residual = torch.full((1, 16), 2**-11, dtype=torch.float16, device=DEVICE)
    y = W4Linear(weight, variant="v4").add_to(residual, x)
    assert y.tolist() == [[1 + 2**-10] * 16]


def test_the_layer_and_its_op_keep_torchs_contract() -> None:
    problem = Problem(n=64, k=128, m=3, x_dtype="bf16", zero_mode="asym", bias=True)
    bias = random_bias(problem, 1, DEVICE)
    layer = W4Linear(random_weight(problem, 1, DEVICE), bias, variant="v4")
    x = random_x(problem, 1, DEVICE).reshape(1, 3, 128)
    residual = torch.ones((1, 3, 64), dtype=torch.bfloat16, device=DEVICE)
    before = residual.clone()
    hooked: list[int] = []
    layer.register_forward_hook(lambda *_: hooked.append(1))  # profilers tell a layer's kernels by its hooks
    assert layer.fuses("residual")
    assert layer.fuses("swiglu")
    assert layer.add_to(residual, x).shape == (1, 3, 64)
    assert torch.equal(residual, before)
    assert layer.swiglu(x).shape == (1, 3, 32)
    assert len(hooked) == 2
    p = layer.packed
    for addend, swiglu in ((residual, False), (None, True)):
        torch.library.opcheck(
            torch.ops.roofgap.v4_fused.default,
            (x, p.codes, p.scales, p.zeros, bias, addend, swiglu, p.group_size, p.zero_mode, ""),
        )


def test_a_winner_of_the_plain_problem_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(n=64, k=128)
    asked: list[Problem] = []

    def winner(variant: Variant, found: Problem, device: torch.device, chained: bool) -> KernelConfig:
        asked.append(found)
        return V4Config(num_warps=1)

    layer = W4Linear(random_weight(problem, 1, DEVICE), variant="v4")
    monkeypatch.setattr(ops, "find_config", winner)
    layer.swiglu(random_x(problem, 1, DEVICE))
    layer.add_to(torch.ones((1, 64), dtype=torch.float16, device=DEVICE), random_x(problem, 1, DEVICE))
    assert asked == [problem, problem]


def test_what_cannot_be_fused_is_refused() -> None:
    problem = Problem(n=48, k=128)
    x, weight = random_x(problem, 1, DEVICE), random_weight(problem, 1, DEVICE)
    residual = torch.ones((1, 48), dtype=torch.float16, device=DEVICE)
    layer = W4Linear(weight, variant="v4")
    assert not layer.fuses("swiglu")
    with pytest.raises(RoofgapError, match="multiple of 32"):
        layer.swiglu(x)
    whole = W4Linear(random_weight(Problem(n=64, k=128), 1, DEVICE), variant="v4")
    with pytest.raises(RoofgapError, match="one epilogue"):
        ops.linear(x, whole.packed, variant="v4", residual=residual, swiglu=True)
    for wrong in (residual[:, :40], residual.bfloat16(), residual[0]):
        with pytest.raises(RoofgapError, match="residual"):
            layer.add_to(wrong, x)
    other = W4Linear(weight, variant="gemm")
    assert not other.fuses("residual")
    with pytest.raises(RoofgapError, match="no epilogue"):
        other.add_to(residual, x)


@pytest.mark.parametrize(("mode", "group", "m"), [("sym", 128, 1), ("offset", 32, 1), ("offset", 32, 8)])
def test_pairs_of_tiles_fit_where_the_plain_config_does(mode: ZeroMode, group: int, m: int) -> None:
    problem = Problem(n=17920, k=2048, m=m, zero_mode=mode, group_size=group)
    for config in V4.configs(problem):
        assert isinstance(config, V4Config)
        if config.decode == "mma" and config.split_k == 1:
            paired = _paired_tiles(problem, config)
            assert paired.tiles % 2 == 0
            assert V4.is_valid(problem, paired) is None, (config.key, paired.key)


def test_dtypes_are_those_of_activations() -> None:
    for name, dtype in DTYPES.items():
        if dtype in (torch.float16, torch.bfloat16):
            case = Product(Problem(n=32, k=64, x_dtype=name), "swiglu")  # type: ignore[arg-type]
            assert case.run(V4Config(decode="portable", num_warps=1)).dtype == dtype
