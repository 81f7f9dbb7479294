"""Every variant against fp64, small and awkward here, at the real shapes of two models on a GPU."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, RAGGED

from roofgap.kernels.checks import CHECKS
from roofgap.kernels.inputs import meta_operands, random_weight, random_x
from roofgap.kernels.ops import linear
from roofgap.kernels.reference import reference
from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.kernels.step import Launch, TorchStep
from roofgap.kernels.tolerance import judge
from roofgap.kernels.variant import Limits
from roofgap.kernels.verify import EVERY_SHAPE, verify
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import load_manifest
from roofgap.shapes.problem import Problem, XDtype, ZeroMode

every_variant = pytest.mark.parametrize("name", list(VARIANTS))
MODELS = ("qwen2.5-1.5b", "orch-fusion")


@every_variant
@pytest.mark.parametrize("check", list(CHECKS))
def test_every_check(name: str, check: str) -> None:
    (result,) = verify(VARIANTS[name], [RAGGED[0]], DEVICE, checks=[check])
    if result.status == "skipped":
        pytest.skip(result.detail)
    assert result.status == "passed", result.detail


@every_variant
@pytest.mark.parametrize("problem", RAGGED[1:], ids=lambda problem: problem.key)
def test_ragged_problems(name: str, problem: Problem) -> None:
    for result in verify(VARIANTS[name], [problem], DEVICE, checks=EVERY_SHAPE):
        assert result.status == "passed", f"{result.check}: {result.detail}"


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("v1", "block_n=32,block_k=32,num_warps=1"),
        ("v2", "block_n=16,block_k=32,num_warps=1,num_stages=2"),
        ("v2", "block_n=32,block_k=128,num_warps=2"),
        ("v3", "block_n=32,block_k=32,num_warps=1,split_k=3,reduce=atomic"),
        ("v3", "block_n=32,block_k=32,num_warps=1,split_k=3,reduce=partials"),
        ("v3", "block_n=32,block_k=64,num_warps=1,split_k=1,reduce=atomic"),
        ("tldot", "block_n=16,block_k=16,num_warps=1"),
        ("gemm", "block_m=16,block_n=32,block_k=32,split_k=3,reduce=atomic"),
        ("gemm", "block_m=16,block_n=32,block_k=32,split_k=3,reduce=partials"),
        ("gemm", "block_m=16,block_n=16,block_k=128,group_m=1,split_k=1"),
    ],
)
def test_configs_other_than_the_default(name: str, config: str) -> None:
    variant = get_variant(name)
    checks = ("identity", "repeated", "with_bias", "deterministic")
    problem = Problem(n=33, k=101, group_size=32, zero_mode="asym")
    for result in verify(variant, [problem], DEVICE, config=variant.config_type.parse(config), checks=checks):
        assert result.status != "failed", f"{result.check}: {result.detail}"


@every_variant
@pytest.mark.parametrize(
    "problem", [*RAGGED, Problem(n=151_936, k=1536, m=4), Problem(n=1, k=1)], ids=lambda p: p.key
)
@pytest.mark.parametrize("sm_count", [28, 132])
def test_the_default_config_is_valid(name: str, problem: Problem, sm_count: int) -> None:
    variant, limits = VARIANTS[name], Limits(sm_count=sm_count)
    for m in (0, 1, 16, 17, 4096):
        at_m = problem.with_m(m)
        if variant.supports(at_m) is None:
            assert variant.is_valid(at_m, variant.default_config(at_m, limits), limits) is None


@every_variant
@pytest.mark.parametrize("shape", ["256x1536", "8960x1536", "151936x1536"])
def test_the_space_is_worth_searching(name: str, shape: str) -> None:
    variant, problem = VARIANTS[name], Problem.parse(shape)
    configs = list(variant.configs(problem))
    assert 20 <= len(configs) <= 1500
    assert len({config.key for config in configs}) == len(configs)
    for config in configs:
        assert variant.config_type.parse(config.key) == config


@every_variant
def test_a_plan_needs_no_memory_and_hides_no_argument(name: str) -> None:
    variant = VARIANTS[name]
    for mode in ("sym", "asym", "offset"):
        for bias in (False, True):
            problem = Problem(n=8960, k=1536, zero_mode=mode, bias=bias)
            steps = variant.plan(problem, variant.default_config(problem), meta_operands(variant, problem))
            mains = [step for step in steps if isinstance(step, Launch) and step.role == "main"]
            assert len(mains) == 1
            for step in steps:
                if isinstance(step, TorchStep):
                    assert step.read_bytes + step.written_bytes > 0
                    continue
                # PDL is no business of a plan: ``dependent_launches`` sets it.
                assert set(step.args) == set(step.kernel.arg_names) - {"PDL"}
                assert step.kernel in variant.kernels()
                for value in step.args.values():
                    assert not isinstance(value, torch.Tensor) or value.device.type == "meta"


def test_the_dispatch_rule_splits_few_rows_only() -> None:
    gemm = get_variant("gemm")
    limits = Limits(sm_count=108)
    small = Problem(n=1536, k=8960)
    assert gemm.split_count(small, gemm.default_config(small, limits)) > 1
    for m in (17, 32, 512):
        assert gemm.split_count(small, gemm.default_config(small.with_m(m), limits)) == 1
    wide = Problem(n=151_936, k=1536)
    assert gemm.split_count(wide, gemm.default_config(wide, limits)) == 1


def test_atomics_claim_no_determinism_and_partials_do() -> None:
    variant, problem = get_variant("v3"), Problem(n=256, k=1536)
    for reduce, claims in (("atomic", False), ("partials", True)):
        config = variant.config_type.from_dict({"split_k": 4, "reduce": reduce})
        assert variant.is_deterministic(problem, config) is claims


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("v2", "block_n=48", "power of two"),
        ("v2", "block_k=4", "at least 8"),
        ("v2", "num_warps=64", "above"),
        ("v2", "block_n=512,block_k=256,num_warps=1", "spill"),
        ("v2", "block_n=16,block_k=32,num_warps=8", "without work"),
        ("v3", "split_k=0", "at least 1"),
        ("v3", "split_k=2,reduce=sum", "atomic or partials"),
        ("v3", "split_k=512", "without a block"),
        ("v3", "split_k=1,reduce=partials", "nothing to reduce"),
        ("gemm", "block_m=8", "at least 16"),
        ("gemm", "block_m=64", "more than M=1"),
        ("gemm", "group_m=0", "group_m"),
        ("gemm", "block_n=256,block_k=256,num_stages=4,num_warps=8", "shared memory"),
        ("tldot", "num_stages=0", "num_stages"),
    ],
)
def test_refused_configs_say_why(name: str, config: str, words: str) -> None:
    variant, problem = get_variant(name), Problem(n=8960, k=1536)
    reason = variant.is_valid(problem, variant.config_type.parse(config))
    assert reason is not None
    assert words in reason


def test_an_unknown_variant_names_the_known_ones() -> None:
    with pytest.raises(RoofgapError, match="v1, v2, v3"):
        get_variant("v0")


def _model_problems(dtype: XDtype, group_size: int, zero_mode: ZeroMode) -> list[Problem]:
    shapes = dict.fromkeys(shape for model in MODELS for shape in load_manifest(model).distinct_shapes())
    return [Problem(n=n, k=k, group_size=group_size, x_dtype=dtype, zero_mode=zero_mode) for n, k in shapes]


def test_bands_of_rows_cover_every_tile() -> None:
    # 11 tiles of rows in bands of 8 and of 3, over 2 tiles of columns.
    variant, problem = get_variant("gemm"), Problem(n=40, k=32, m=170, group_size=16)
    weight, x = random_weight(problem, 0, DEVICE), random_x(problem, 0, DEVICE)
    for group_m in (3, 8):
        config = f"block_m=16,block_n=32,block_k=32,group_m={group_m}"
        y = linear(x, variant.layout.pack(weight), variant="gemm", config=config)
        assert judge(y, reference(x, weight), k=problem.k, rounds_weights=True).passed


@pytest.mark.gpu
@every_variant
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("group_size", [128, 64])
@pytest.mark.parametrize("zero_mode", ["sym", "asym"])
def test_real_shapes(name: str, dtype: XDtype, group_size: int, zero_mode: ZeroMode) -> None:
    for problem in _model_problems(dtype, group_size, zero_mode):
        for result in verify(VARIANTS[name], [problem], DEVICE, checks=EVERY_SHAPE):
            assert result.status == "passed", f"{result.problem}, {result.check}: {result.detail}"


@pytest.mark.gpu
@every_variant
@pytest.mark.parametrize("zero_mode", ["sym", "asym", "offset"])
def test_every_check_at_a_real_shape(name: str, zero_mode: ZeroMode) -> None:
    problem = Problem(n=1536, k=8960, group_size=128, x_dtype="bf16", zero_mode=zero_mode)
    failed = [
        f"{result.check}: {result.detail}"
        for result in verify(VARIANTS[name], [problem], DEVICE)
        if result.status == "failed"
    ]
    assert not failed


@pytest.mark.gpu
def test_outputs_past_two_billion_elements() -> None:
    # M * N = 14,200 * 151,936 > 2^31: 32-bit row offsets would wrap. 4 GiB of output.
    problem = Problem(n=151_936, k=64, m=14_200, group_size=64)
    weight, x = random_weight(problem, 0, DEVICE), random_x(problem, 0, DEVICE)
    for name in ("gemm", "v2"):
        variant = get_variant(name)
        y = linear(x, variant.layout.pack(weight), variant=name)
        for row in (0, 14_134, 14_199):
            verdict = judge(
                y[row : row + 1],
                reference(x[row : row + 1], weight),
                k=problem.k,
                rounds_weights=variant.rounds_weights,
                factors_zero=variant.factors_zero,
            )
            assert verdict.passed, f"{name}, row {row}: {verdict.detail}"
        del y


def test_the_gpu_checks_are_not_skipped_for_another_reason() -> None:
    for result in verify(VARIANTS["v2"], [RAGGED[4]], DEVICE, checks=("compiled", "captured", "side_stream")):
        assert result.status == ("passed" if DEVICE.type == "cuda" else "skipped"), result.detail
