from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofgap.shapes.accounting import WeightFormat, choose_formats, honest
from roofgap.shapes.device import Bandwidth, load_device
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import list_manifests, load_manifest
from roofgap.shapes.roofline import BatchModel, TokenFloor, ceiling_tok_s, floor_us, token_floor

MANIFESTS = [load_manifest(name) for name in list_manifests()]
SYM = WeightFormat("w4", 128, "sym")
A10 = load_device("a10")


def floors(model: str, launch: float = 0.0, *, fused: bool = False, gbps: float = 4100.0) -> TokenFloor:
    manifest = load_manifest(model)
    weights, head = choose_formats("w4")
    read = honest(manifest, weights, head, context=512)
    view = manifest.fused() if fused else manifest
    return token_floor(
        view, weights, head, read=read, bandwidth=Bandwidth(gbps, "given"), launch_floor_us=launch
    )


def test_floor_of_one_matrix() -> None:
    roof = Bandwidth(4100, "given")
    assert floor_us(8960 * 1536 * (0.5 + 2 / 128), roof) == pytest.approx(1.731, abs=5e-4)
    assert floor_us(1000, roof, 0.9) == 0.9
    assert floor_us(0, roof) == 0


@pytest.mark.parametrize(
    ("weights", "head", "expected"),
    [("bf16", "bf16", 1320), ("w4", "bf16", 3520), ("w4", "w4", 5020)],
)
def test_ceilings_beside_the_measured_h200_decode(weights: str, head: str, expected: int) -> None:
    read = honest(load_manifest("qwen2.5-1.5b"), *choose_formats(weights, head, zero_mode=None), context=512)
    assert ceiling_tok_s(read, Bandwidth(4100, "given")) == pytest.approx(expected, rel=0.003)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda m: m.model)
@pytest.mark.parametrize("fused", [False, True])
def test_without_a_launch_floor_the_floors_are_the_byte_roofline(manifest, fused: bool) -> None:  # type: ignore[no-untyped-def]
    roof = Bandwidth(2039.0, "spec")
    weights, head = choose_formats("w4", "int8")
    read = honest(manifest, weights, head, context=1024)
    view = manifest.fused() if fused else manifest
    floor = token_floor(view, weights, head, read=read, bandwidth=roof)
    assert floor.tok_s == pytest.approx(ceiling_tok_s(read, roof), rel=1e-12)
    assert floor.launch_bound_share == 0
    assert floor.launches == manifest.architecture.layers * (4 if fused else 7) + 1


def test_small_matrices_are_launch_bound_and_fusing_helps() -> None:
    apart, joined = floors("qwen2.5-1.5b", 0.9), floors("qwen2.5-1.5b", 0.9, fused=True)
    assert {one.matrix.role for one in apart.matrices if one.launch_bound} == {"q", "k", "v", "o"}
    assert {one.matrix.role for one in joined.matrices if one.launch_bound} == {"qkv", "o"}
    assert joined.matrices_us < apart.matrices_us
    assert apart.launch_bound_share == pytest.approx(28 * 4 * 0.9 / apart.matrices_us)


def test_everything_launch_bound() -> None:
    floor = floors("orch-fusion", 1e6)
    assert floor.launch_bound_share == 1
    assert floor.matrices_us == 169 * 1e6


@given(st.floats(0, 50), st.floats(0, 50), st.sampled_from(MANIFESTS))
def test_floors_grow_with_the_launch_floor(one: float, other: float, manifest) -> None:  # type: ignore[no-untyped-def]
    low, high = sorted((one, other))
    assert floors(manifest.model, low).matrices_us <= floors(manifest.model, high).matrices_us


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_launch_floor_refuses(value: float) -> None:
    with pytest.raises(RoofgapError, match="launch_floor_us"):
        floors("orch-fusion", value)


@pytest.mark.parametrize("value", [0.0, -4.0, math.nan, math.inf, -math.inf])
def test_bandwidth_refuses(value: float) -> None:
    with pytest.raises(RoofgapError, match="bandwidth="):
        Bandwidth(value, "given")


# --- batch curve


def a10(**changes: object) -> BatchModel:
    fields = {
        "bandwidth": A10.bandwidth(),
        "fp16_tflops": A10.fp16_tflops,
        "int8_tops": A10.int8_tops,
        "weight": SYM,
    }
    return BatchModel(**(fields | changes))  # type: ignore[arg-type]


def test_the_figures_of_the_third_write_up() -> None:
    model = a10()
    assert f"{model.point(1).w4a16:.2f}" == "3.88"
    assert model.point(1).w4a16 == pytest.approx(16 / (4 + 16 / 128))
    assert f"{model.point(128).w4a16:.1f}" == "1.6"
    assert model.point(1).w8a8 == 2
    assert model.expand_first_bytes == 4.5
    assert f"{model.ops_per_byte:.0f}" == "208"
    h100 = load_device("h100-sxm")
    assert h100.fp16_tflops
    assert (
        f"{BatchModel(bandwidth=h100.bandwidth(), fp16_tflops=h100.fp16_tflops, weight=SYM).ops_per_byte:.0f}"
        == "295"
    )


def test_where_1_6_comes_from() -> None:
    fp16_ps, w4_ps = 2 / 600e9 * 1e12, 2 * 128 / 125e12 * 1e12
    assert a10().point(128).w4a16 == pytest.approx(fp16_ps / w4_ps)
    assert (a10().point(128).w4a16_bound, a10().point(128).fp16_bound) == ("compute", "bandwidth")


@pytest.mark.parametrize("shape", [None, (8960, 1536), (8192, 8192)])
def test_crossovers_are_where_the_bound_changes(shape: tuple[int, int] | None) -> None:
    model = a10(shape=shape)
    assert model.full_speedup_until and model.break_even
    for crossing, bound in ((model.full_speedup_until, "w4a16_bound"), (model.break_even, "fp16_bound")):
        assert getattr(model.point(math.floor(crossing)), bound) == "bandwidth"
        assert getattr(model.point(math.ceil(crossing)), bound) == "compute"
    assert model.point(math.ceil(model.break_even)).w4a16 == 1


def test_a_layer_that_is_never_compute_bound() -> None:
    model = a10(shape=(64, 64))
    assert model.break_even is None and model.full_speedup_until is None
    assert model.point(1 << 20).w4a16_bound == "bandwidth"


def test_activations_by_hand() -> None:
    n, k, m = 8960, 1536, 16
    model = a10(shape=(n, k))
    fp16 = 2 * n * k + 2 * m * (n + k)
    w4 = n * k // 2 + n * (k // 128) * 2 + 2 * m * (n + k)
    w8 = n * k + m * k + 2 * m * n
    point = model.point(m)
    assert point.w4a16 == pytest.approx(fp16 / w4)
    assert point.w8a8 == pytest.approx(fp16 / w8)


def test_expanding_first_never_wins_and_tends_to_parity() -> None:
    points = a10().curve([1, 64, 512, 1 << 16])
    assert points[0].expand_first == pytest.approx(2 / (4.5 + 2 / 128))
    assert [p.expand_first for p in points] == sorted(p.expand_first for p in points)
    assert points[-1].expand_first < 1


@given(
    st.integers(1, 1 << 16), st.sampled_from([-1, 32, 64, 128]), st.sampled_from(["sym", "asym", "offset"])
)
def test_speedup_stays_between_one_and_four(m: int, group_size: int, zero_mode: str) -> None:
    point = a10(weight=choose_formats("w4", "bf16", group_size, zero_mode)[0]).point(m)
    assert 1 <= point.w4a16 <= 4
    assert point.w8a8 is not None and 1 <= point.w8a8 <= 2


def test_without_int8_throughput_there_is_no_w8a8() -> None:
    assert a10(int8_tops=None).point(1).w8a8 is None


@pytest.mark.parametrize(
    "changes",
    [{"fp16_tflops": 0.0}, {"fp16_tflops": math.nan}, {"int8_tops": -1.0}, {"weight": WeightFormat("nf4")}],
)
def test_batch_model_refuses(changes: dict[str, object]) -> None:
    with pytest.raises(RoofgapError):
        a10(**changes)


def test_batch_of_none() -> None:
    with pytest.raises(RoofgapError, match="m=0"):
        a10().point(0)
