"""What v4 compiles to for GPUs that are not here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from v4_cases import V4

from roofgap.kernels.static.metrics import StaticMetrics
from roofgap.kernels.static.pool import CompilePool, request_for
from roofgap.kernels.static.targets import load_target
from roofgap.kernels.variants._v4_config import V4Config
from roofgap.kernels.variants.v4 import _shared_bytes
from roofgap.shapes.problem import Problem

GEMV = Problem(n=8960, k=1536)
NVIDIA = ("sm_80", "sm_86", "sm_90")


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilePool]:
    with CompilePool(workers=2) as opened:
        yield opened


def inspect(pool: CompilePool, problem: Problem, target: str, config: str = "") -> StaticMetrics:
    chosen = V4Config.parse(config) if config else None
    (result,) = pool.inspect([request_for(V4, problem, load_target(target), chosen)])
    assert isinstance(result, StaticMetrics), result
    return result


@pytest.fixture(scope="module")
def inspected(pool: CompilePool) -> dict[str, StaticMetrics]:
    """The default config at a real shape, compiled for every target that the budget names."""
    targets = (*NVIDIA, "gfx942")
    results = pool.inspect(request_for(V4, GEMV, load_target(target)) for target in targets)
    for result in results:
        assert isinstance(result, StaticMetrics), result
    return dict(zip(targets, results, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("target", NVIDIA)
def test_the_issue_budget_holds(inspected: dict[str, StaticMetrics], target: str) -> None:
    metrics = inspected[target]
    assert metrics.spill_bytes == 0
    assert metrics.weight_load_bits == 128
    assert metrics.loads_per_word == 1
    assert metrics.weight_passes == 1
    assert metrics.notes == ()
    spent = metrics.instructions_per_weight
    assert spent is not None
    assert spent["total"] <= 2.7  # there is no loop, so the whole program counts


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize(
    ("config", "total", "tensor", "shared", "copies"),
    [
        # Per block of 16 rows by 128 k four integer products, 2 + 2 reads and a share of what is read back, 3 copies.
        ("decode=limbs,num_warps=4,num_stages=6,tiles=8", 0.95, 4, (4, 8), 3),
        # Eight products and eight sums of x, 2 + 4 + 2 reads, 4 copies; ptxas adds reads that are never executed.
        ("decode=mma,num_warps=4,num_stages=3", 2.4, 16, (8, 12), 4),
    ],
    ids=["limbs", "mma"],
)
def test_the_budget_of_a_loop(
    pool: CompilePool,
    target: str,
    config: str,
    total: float,
    tensor: int,
    shared: tuple[int, int],
    copies: int,
) -> None:
    metrics = inspect(pool, GEMV, target, config)
    spent = metrics.instructions_per_weight
    assert spent is not None
    assert metrics.spill_bytes == 0
    assert metrics.weight_load_bits == 128
    assert metrics.weights_per_iteration is not None
    assert spent["total"] <= total
    per_block = 16 * 128 / 32
    assert spent["tensor"] * per_block == tensor
    assert shared[0] <= spent["shared"] * per_block <= shared[1]
    assert spent["load_global"] * per_block == copies


@pytest.mark.parametrize("target", NVIDIA)
def test_a_warp_with_more_blocks_than_stages(pool: CompilePool, target: str) -> None:
    """One loop copies and multiplies, for all formats and widths; nothing spills."""
    long = Problem(n=1536, k=8960)
    for problem, config in (
        (long, "num_warps=8,num_stages=3"),
        (
            Problem(n=1536, k=8960, m=8, x_dtype="bf16", zero_mode="asym", group_size=64),
            "num_warps=4,tiles=2",
        ),
    ):
        metrics = inspect(pool, problem, target, config)
        assert metrics.spill_bytes == 0
        assert (metrics.weight_load_bits, metrics.loads_per_word, metrics.notes) == (128, 1, ())
        assert metrics.weight_passes is not None
        assert 1 <= metrics.weight_passes < 1.2  # 70 blocks in steps of 4 or 8
        assert metrics.instructions_per_weight is not None
        assert metrics.instructions_per_weight["total"] < 4.0  # eight tokens of bf16 in four groups per block
        assert metrics.instructions_per_weight["tensor"] > 0


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(n=1537, k=1600, zero_mode="offset", group_size=32, bias=True),
        Problem(n=8960, k=1536, m=4, x_dtype="bf16", zero_mode="asym"),
    ],
    ids=lambda problem: problem.key,
)
def test_defaults_of_other_problems_fit(pool: CompilePool, problem: Problem, target: str) -> None:
    metrics = inspect(pool, problem, target)
    assert metrics.spill_bytes == 0
    assert metrics.fits
    config = V4Config.parse(metrics.config)
    assert 0.7 * _shared_bytes(problem, config) <= metrics.shared_bytes <= _shared_bytes(problem, config)


def test_the_widest_configs_do_not_spill(pool: CompilePool) -> None:
    """At the limits of ``is_valid``: tiles, warps, and all of the static shared memory."""
    for config, problem in (
        ("num_warps=4,tiles=4", Problem(n=8960, k=1536, m=8, zero_mode="asym")),
        ("num_warps=4,tiles=4", Problem(n=8960, k=1536, zero_mode="offset")),
        ("num_warps=8,tiles=2", Problem(n=8960, k=1536, m=8, x_dtype="bf16", zero_mode="asym")),
        ("num_warps=16,tiles=2", Problem(n=8960, k=4096, zero_mode="asym")),
        ("decode=limbs,num_warps=4,num_stages=7", Problem(n=8960, k=3584, zero_mode="asym", bias=True)),
        ("decode=limbs,num_warps=4,num_stages=6,tiles=4", Problem(n=8960, k=1536, zero_mode="offset")),
    ):
        assert V4.is_valid(problem, V4Config.parse(config)) is None
        metrics = inspect(pool, problem, "sm_90", config)
        assert metrics.spill_bytes == 0
        assert metrics.shared_bytes <= 48 * 1024


def test_amd_gets_the_portable_kernel(inspected: dict[str, StaticMetrics]) -> None:
    assert inspected["gfx942"].launches[0].kernel == "v4_portable_kernel"
    assert inspected["gfx942"].spill_bytes == 0
    assert inspected["gfx942"].weight_load_bits is not None
