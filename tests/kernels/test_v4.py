"""v4's tensor-core kernel on the CPU: Triton's interpreter runs it, ``ptx_machine`` its assembly."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE
from ptx_machine import create_inline_asm

from roofgap.kernels.formats.interleaved import Interleaved
from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.inputs import meta_operands, operands
from roofgap.kernels.ops import run_plan
from roofgap.kernels.registry import get_variant
from roofgap.kernels.static.metrics import StaticMetrics
from roofgap.kernels.static.pool import CompilePool, request_for
from roofgap.kernels.static.targets import load_target
from roofgap.kernels.step import Launch
from roofgap.kernels.variant import Limits
from roofgap.kernels.variants import v4
from roofgap.kernels.variants._v4_kernel import v4_kernel
from roofgap.kernels.verify import verify
from roofgap.shapes.problem import Problem

V4 = get_variant("v4")
AMD = Limits(sm_count=304, shared_bytes=64 * 1024, max_warps=16, warp_size=64)


@pytest.fixture
def tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: the kernel with inline assembly, in the interpreter."""
    if DEVICE.type == "cuda":
        return
    from triton.runtime.interpreter import InterpreterBuilder

    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm)
    monkeypatch.setattr(v4, "interpreted", lambda: False)


def failures(problem: Problem, config: str, checks: tuple[str, ...]) -> list[str]:
    """What the checks say against a config; the kernel that runs is the tensor-core one."""
    chosen = V4.config_type.parse(config)
    (main, *_) = V4.plan(problem, chosen, meta_operands(V4, problem))
    assert isinstance(main, Launch)
    assert main.kernel is v4_kernel
    results = verify(V4, [problem], DEVICE, config=chosen, checks=checks)
    return [f"{result.check}: {result.detail}" for result in results if result.status == "failed"]


@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy, on infinities
@pytest.mark.parametrize(
    "check",
    [
        "row_counts",
        "with_bias",
        "outliers",
        "saturation",
        "zero_groups",
        "not_finite",
        "strided_x",
        "mixed_scales",
    ],
)
def test_checks_on_a_ragged_problem(check: str) -> None:
    problem = Problem(n=37, k=203, group_size=32, zero_mode="asym")
    assert not failures(problem, "num_warps=2", (check,))


@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("num_warps=1,tiles=2,unroll=2", Problem(n=32, k=512, m=3)),
        ("num_warps=2,warps_n=2", Problem(n=40, k=200, zero_mode="asym", group_size=256)),
        (
            "num_warps=1,tiles=2,split_k=2",
            Problem(n=33, k=400, x_dtype="bf16", zero_mode="offset", group_size=64),
        ),
        ("num_warps=2,split_k=2", Problem(n=17, k=301, x_dtype="bf16", group_size=-1)),
        ("num_warps=1", Problem(n=1, k=5, x_dtype="bf16", zero_mode="asym")),
        ("num_warps=1", Problem(n=16, k=192, group_size=96, zero_mode="offset")),
    ],
)
def test_configs_and_formats(config: str, problem: Problem) -> None:
    assert not failures(problem, config, ("identity", "random", "not_finite"))


@pytest.mark.usefixtures("tensor_cores")
def test_activations_at_odd_addresses() -> None:
    # Pairs of x cannot be read as one word: K is even, the rows begin at odd elements.
    problem = Problem(n=16, k=128, m=2)
    wide = torch.randn((2, 131), generator=torch.Generator().manual_seed(0)).half().to(DEVICE)
    codes = torch.arange(16 * 128, device=DEVICE).reshape(16, 128).remainder(13).to(torch.uint8)
    weight = QuantizedWeight(codes=codes, scales=torch.ones(16, 1, device=DEVICE).half() / 64, group_size=128)
    x, y = wide[:, 1:129], torch.empty((2, 16), dtype=torch.float16, device=DEVICE)
    run_plan(V4, problem, V4.config_type.parse("num_warps=1"), operands(x, Interleaved.pack(weight), None, y))
    torch.testing.assert_close(
        y.double(), x.double() @ weight.dequantise(torch.float64).T, rtol=1e-3, atol=1e-3
    )


def every_half_word() -> QuantizedWeight:
    """All 2^16 patterns of four codes, twice over: as lower and as upper halves of words."""
    patterns = torch.arange(1 << 16, dtype=torch.int32)
    words = patterns | patterns.flip(0) << 16
    codes = torch.stack([(words >> 4 * j) & 15 for j in range(8)], dim=1).to(torch.uint8)
    return QuantizedWeight(
        codes=codes.reshape(4096, 128).to(DEVICE), scales=torch.ones(4096, 1, device=DEVICE).half()
    )


@pytest.mark.gpu
@pytest.mark.parametrize("decode", ["mma", "portable"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_half_word_is_decoded_exactly(decode: str, dtype: str) -> None:
    weight = every_half_word()
    torch_dtype = torch.float16 if dtype == "fp16" else torch.bfloat16
    weight = QuantizedWeight(codes=weight.codes, scales=weight.scales.to(torch_dtype))
    packed = Interleaved.pack(weight)
    x = torch.eye(128, dtype=torch_dtype, device=DEVICE)
    for start in range(0, 128, 8):
        problem = Problem(n=4096, k=128, m=8, x_dtype=dtype)  # type: ignore[arg-type]
        y = torch.full((8, 4096), float("nan"), dtype=torch_dtype, device=DEVICE)
        config = V4.config_type.parse(f"num_warps=1,decode={decode}")
        run_plan(V4, problem, config, operands(x[start : start + 8], packed, None, y))
        assert torch.equal(y, (weight.codes[:, start : start + 8].T.to(torch_dtype) - 8))


def test_where_the_tensor_cores_are_not_used() -> None:
    problem = Problem(n=256, k=1536)
    assert "decode=mma" in V4.default_config(problem).key
    assert "decode=portable" in V4.default_config(problem, AMD).key
    assert "decode=portable" in V4.default_config(Problem(n=256, k=1536, group_size=24)).key
    mma = V4.config_type.parse("decode=mma")
    assert "32 lanes" in (V4.is_valid(problem, mma, AMD) or "")
    assert "multiple of 32" in (V4.is_valid(Problem(n=256, k=1536, group_size=24), mma) or "")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("tiles=3", "power of two"),
        ("num_warps=2,warps_n=4", "more than the 2 warps"),
        ("num_warps=16,unroll=2", "would spill"),
        ("tiles=4,unroll=2", "would spill"),
        ("split_k=5", "without a step"),
        ("split_k=0", "without a step"),
        ("num_stages=4", "more than the steps"),
        ("decode=lut", "mma or portable"),
        ("decode=portable,tiles=2", "warps_n alone"),
        ("decode=portable,num_warps=16", "without work"),
        ("tiles=4,warps_n=8,num_warps=8", "more than N=256"),
    ],
)
def test_refused_configs_say_why(config: str, words: str) -> None:
    reason = V4.is_valid(Problem(n=256, k=1536), V4.config_type.parse(config))
    assert reason is not None
    assert words in reason


@pytest.fixture(scope="module")
def inspected() -> dict[str, StaticMetrics]:
    """The default config at a real shape, compiled for every target that the budget names."""
    problem = Problem(n=8960, k=1536)
    targets = ("sm_80", "sm_86", "sm_90", "gfx942")
    with CompilePool(workers=1) as pool:
        results = pool.inspect(request_for(V4, problem, load_target(target)) for target in targets)
    for result in results:
        assert isinstance(result, StaticMetrics), result
    return dict(zip(targets, results, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90"])
def test_the_issue_budget_holds(inspected: dict[str, StaticMetrics], target: str) -> None:
    metrics = inspected[target]
    assert metrics.spill_bytes == 0
    assert metrics.weight_load_bits == 128
    assert metrics.instructions_per_weight is not None
    assert metrics.instructions_per_weight["total"] <= 2.0
    assert metrics.instructions_per_weight["tensor"] > 0
    assert metrics.instructions_per_weight.get("shared", 0) == 0  # no layout is changed in the loop
    assert metrics.loads_per_word == 1


def test_amd_gets_the_portable_kernel(inspected: dict[str, StaticMetrics]) -> None:
    assert inspected["gfx942"].launches[0].kernel == "v4_portable_kernel"
    assert inspected["gfx942"].spill_bytes == 0
