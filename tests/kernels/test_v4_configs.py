"""Which configs v4 takes: on every shape and GPU its default, within what a kernel may declare, and why not others."""

from __future__ import annotations

from itertools import product

import pytest
from kernel_cases import DEVICE
from ptx_machine import install
from ptx_memory import STATIC_SHARED
from v4_cases import V4, Product

from roofgap.kernels.static.targets import TARGETS
from roofgap.kernels.variant import Limits
from roofgap.kernels.variants import v4
from roofgap.kernels.variants._v4_config import V4Config
from roofgap.kernels.variants.v4 import _shared_bytes
from roofgap.shapes.manifest import list_manifests, load_manifest
from roofgap.shapes.problem import Problem

SHAPES = sorted({shape for name in list_manifests() for shape in load_manifest(name).distinct_shapes()})
FORMATS = [
    {"x_dtype": dtype, "zero_mode": mode, "group_size": group}
    for dtype, mode, group in product(("fp16", "bf16"), ("sym", "asym", "offset"), (32, 64, 128, -1))
]
AMD = TARGETS["gfx942"].limits()


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90", "gfx942"])
def test_the_default_is_valid_everywhere(target: str) -> None:
    limits = TARGETS[target].limits()
    for (n, k), m, form in product(SHAPES, (1, 2, 4, 8), FORMATS):
        problem = Problem(n=n, k=k, m=m, **form)  # type: ignore[arg-type]
        config = V4.default_config(problem, limits)
        assert V4.is_valid(problem, config, limits) is None, (problem.key, config.key)
        whole = m == 1 and problem.group % 128 == 0
        short = whole and k <= 3584
        shared = whole and target == "sm_90" and k <= 6144 and n <= 64 * limits.sm_count
        shared |= whole and target == "sm_90" and k <= 10240 and n <= 16 * limits.sm_count
        limbs = short or (shared and config.cluster > 1)
        assert config.decode == ("portable" if target == "gfx942" else "limbs" if limbs else "mma"), (
            problem.key
        )
        assert config.cluster == 1 or shared


def test_a_long_k_wants_clusters_where_tiles_are_few() -> None:
    limits = Limits(sm_count=132, shared_bytes=232448, max_cluster=8)
    found = {
        (n, k): V4.default_config(Problem(n=n, k=k), limits)
        for n, k in ((512, 3584), (3584, 3584), (1536, 8960), (5120, 5120), (27648, 5120), (3584, 18944))
    }
    assert {shape: config.cluster for shape, config in found.items() if config.decode == "limbs"} == {
        (512, 3584): 4,
        (3584, 3584): 1,
        (1536, 8960): 4,
        (5120, 5120): 4,
    }
    assert "cluster=2 is for decode=limbs alone" in (
        V4.is_valid(Problem(n=512, k=3584), V4Config(cluster=2), limits) or ""
    )


@pytest.mark.parametrize("m", [1, 4, 8])
def test_the_space_holds_the_default_and_what_a_kernel_may_declare(m: int) -> None:
    k, group = (1536, 128) if m == 1 else (8960, 32)
    problem, limits = Problem(n=1536, k=k, m=m, zero_mode="asym", group_size=group), Limits()
    configs = list(V4.configs(problem, limits))
    assert V4.default_config(problem, limits) in configs
    for config in configs:
        assert isinstance(config, V4Config)
        assert config.decode == "portable" or _shared_bytes(problem, config) <= STATIC_SHARED


@pytest.mark.skipif(DEVICE.type == "cuda", reason="asks the machine that stands in for a GPU")
@pytest.mark.parametrize("epilogue", ["", "residual", "swiglu"])
@pytest.mark.parametrize("m", [1, 8])
def test_a_kernel_declares_what_its_config_is_held_to(
    m: int, epilogue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = install(monkeypatch)
    monkeypatch.setattr(v4, "interpreted", lambda: False)
    problem = Problem(n=64, k=1024, m=m, group_size=128, zero_mode="offset", bias=True)
    configs = ["num_warps=2,tiles=2,num_stages=3", "num_warps=4,warps_n=2,tiles=2,num_stages=2"]
    if m == 1:
        configs.append("decode=limbs,num_warps=4,tiles=2,num_stages=4")
    for config in configs:
        chosen = V4Config.parse(config)
        assert V4.is_valid(problem, chosen) is None
        Product(problem, epilogue).run(chosen)
        held = _shared_bytes(problem, chosen)
        assert 0.9 * held <= programs.memory.used <= held


def test_where_the_tensor_cores_are_not_used() -> None:
    problem = Problem(n=256, k=1536)
    assert "decode=limbs" in V4.default_config(problem).key
    assert "decode=mma" in V4.default_config(Problem(n=256, k=1536, m=2)).key
    assert "decode=mma" in V4.default_config(Problem(n=256, k=1536, group_size=64)).key
    assert "decode=portable" in V4.default_config(problem, AMD).key
    assert "decode=portable" in V4.default_config(Problem(n=256, k=1536, group_size=24)).key
    mma, limbs = V4Config(decode="mma"), V4Config.parse("decode=limbs,num_warps=4,num_stages=3")
    assert V4.is_valid(problem, limbs) is None
    assert "32 lanes" in (V4.is_valid(problem, limbs, AMD) or "")
    assert "one token, not 2" in (V4.is_valid(Problem(n=256, k=1536, m=2), limbs) or "")
    assert "multiple of 128, not 64" in (V4.is_valid(Problem(n=256, k=1536, group_size=64), limbs) or "")
    assert "32 lanes" in (V4.is_valid(problem, mma, AMD) or "")
    assert "multiple of 32" in (V4.is_valid(Problem(n=256, k=1536, group_size=24), mma) or "")


def test_many_tiles_want_few_zeros() -> None:
    config = V4Config.parse("num_warps=4,tiles=4")
    for mode, group, refused in (
        ("asym", 64, True),
        ("offset", 96, True),
        ("asym", 128, False),
        ("sym", 32, False),
    ):
        problem = Problem(n=8960, k=1536, zero_mode=mode, group_size=group)  # type: ignore[arg-type]
        assert ("would spill" in (V4.is_valid(problem, config) or "")) is refused


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("tiles=3", "power of two"),
        ("num_warps=2,warps_n=4", "more than the 2 warps"),
        ("num_warps=16,tiles=4", "would spill"),
        ("unroll=2", "decode=portable alone"),
        ("unroll=0", "at least 1"),
        ("split_k=13", "without a step"),
        ("split_k=0", "without a step"),
        ("num_warps=4,num_stages=4", "more than the steps"),
        ("num_stages=0", "at least 1"),
        ("num_warps=8,tiles=2,warps_n=8,num_stages=3", "of 49152 bytes"),
        ("decode=lut", "mma or portable"),
        ("decode=limbs,num_warps=4,num_stages=2", "a multiple of the 3 blocks"),
        ("decode=limbs,num_warps=4,num_stages=6", "more than the blocks of 1 tiles"),
        ("decode=limbs,num_warps=4,num_stages=3,ahead=4", "no ahead"),
        ("decode=limbs,num_warps=1,num_stages=12", "12 blocks of K=1536 per warp"),
        ("decode=limbs,num_warps=4,num_stages=9,tiles=16", "of 49152 bytes"),
        ("decode=limbs,num_warps=32,num_stages=1", "more than K=1536 can fill"),
        ("decode=limbs,num_warps=4,num_stages=3,tiles=17", "more than N=256"),
        ("decode=limbs,num_warps=4,num_stages=3,cluster=2", "above the 1 of this GPU"),
        ("decode=limbs,num_warps=4,num_stages=3,cluster=0", "must be 1, 2, 4 or 8"),
        ("cluster=-1", "must be 1, 2, 4 or 8"),
        ("decode=portable,tiles=2", "warps_n alone"),
        ("decode=portable,num_stages=2", "does not pipeline"),
        ("decode=portable,num_warps=16", "without work"),
        ("decode=portable,warps_n=8,num_warps=1", "would spill"),
        ("tiles=4,warps_n=8,num_warps=8", "more than N=256"),
        ("decode=portable,unroll=32,num_warps=16", "more than K=1536"),
        ("num_warps=64", "above the 32"),
    ],
)
def test_refused_configs_say_why(config: str, words: str) -> None:
    reason = V4.is_valid(Problem(n=256, k=1536), V4Config.parse(config))
    assert reason is not None
    assert words in reason
