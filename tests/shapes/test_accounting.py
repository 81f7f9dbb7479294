from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofgap.shapes.accounting import (
    KV_BYTES,
    TERMS,
    WeightFormat,
    choose_formats,
    honest,
    published,
)
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import list_manifests, load_manifest

QWEN = load_manifest("qwen2.5-1.5b")
ORCH = load_manifest("orch-fusion")
MANIFESTS = [load_manifest(name) for name in list_manifests()]

# GB read by a token at context 0, worked out by hand from the architectures:
# bf16, W4 linears + bf16 head, W4 linears and head (g128, packed zeros), NF4 linears + bf16 head.
READ_GB = {
    "qwen2.5-0.5b": ("0.988", "0.458", "0.257", "0.474"),
    "qwen2.5-1.5b": ("3.087", "1.148", "0.802", "1.204"),
    "qwen2.5-3b": ("6.172", "2.064", "1.604", "2.183"),
    "qwen2.5-7b": ("14.141", "4.481", "3.674", "4.761"),
    "qwen2.5-14b": ("27.98", "8.42", "7.27", "8.99"),
    "qwen2.5-32b": ("63.97", "17.77", "16.62", "19.11"),
    "qwen2.5-72b": ("142.92", "38.97", "37.13", "41.99"),
    "orch-fusion": ("0.545", "0.145", "0.142", "0.157"),
}
FORMATS = (("bf16", "bf16"), ("w4", "bf16"), ("w4", "w4"), ("nf4", "bf16"))


def gb(value: float, like: str) -> str:
    return f"{value / 1e9:.{len(like.split('.')[1])}f}"


@pytest.mark.parametrize("model", READ_GB)
def test_honest_totals_of_every_model(model: str) -> None:
    manifest = load_manifest(model)
    for (weights, head), expected in zip(FORMATS, READ_GB[model], strict=True):
        read = honest(manifest, *choose_formats(weights, head))
        assert gb(read.total, expected) == expected, (weights, head)


def test_honest_terms_of_one_model_byte_by_byte() -> None:
    linears = 28 * (2 * 1536 * 1536 + 2 * 256 * 1536 + 3 * 8960 * 1536)
    read = honest(QWEN, *choose_formats("w4"), context=2048)
    assert read.terms == {
        "codes": linears // 2,
        "scales": linears // 128 * 2,
        "zeros": linears // 128 // 2,
        "biases": 28 * (1536 + 2 * 256) * 2,
        "norms": (2 * 28 + 1) * 1536 * 2,
        "head": 151_936 * 1536 * 2,
        "embedding": 1536 * 2,
        "kv": 28 * 2 * 2 * 128 * 2 * 2048,
    }
    assert read.weights == 1_147_727_872
    assert read.label == "w4 g128 asym"


@pytest.mark.parametrize(
    ("weight", "bits"),
    [
        (WeightFormat("bf16"), 16),
        (WeightFormat("w4", 128, "asym"), 4 + 16 / 128 + 4 / 128),
        (WeightFormat("w4", 128, "sym"), 4 + 16 / 128),
        (WeightFormat("w4", 64, "offset"), 4 + 32 / 64),
        (WeightFormat("w4", -1, "sym"), 4 + 16 / 4096),
        (WeightFormat("nf4"), 4.5),
        (WeightFormat("nf4-dq"), 4 + 8 / 64 + 32 / (64 * 256)),
        (WeightFormat("int8"), 8 + 32 / 4096),
    ],
    ids=lambda value: getattr(value, "label", ""),
)
def test_bits_per_weight(weight: WeightFormat, bits: float) -> None:
    assert weight.matrix_bytes(4096, 4096).total * 8 / 4096**2 == pytest.approx(bits, abs=1e-12)


def test_ragged_rows_and_blocks_are_padded() -> None:
    assert WeightFormat("w4", 64, "asym").matrix_bytes(3, 100).codes == 3 * 13 * 4
    assert WeightFormat("w4", 64, "asym").matrix_bytes(3, 100).scales == 3 * 2 * 2
    assert WeightFormat("nf4").matrix_bytes(3, 43).codes == 65
    assert WeightFormat("nf4").matrix_bytes(3, 43).scales == 3 * 4


# --- published: every figure of the first write-up, at the bandwidth that gives all of them


BANDWIDTH = 323.88e9


@pytest.mark.parametrize(
    ("model", "arm", "weights", "ceiling"),
    [
        ("qwen2.5-1.5b", "bf16", "3.087", "102.9"),
        ("qwen2.5-1.5b", "int4", "0.772", "411.8"),
        ("qwen2.5-1.5b", "swapped", "1.263", "245"),
        ("orch-fusion", "bf16", "0.550", "539.7"),
        ("orch-fusion", "int4", "0.137", "2158.8"),
    ],
)
def test_published_weights_and_ceilings(model: str, arm: str, weights: str, ceiling: str) -> None:
    read = published(load_manifest(model), 2048)[arm]
    digits = len(ceiling.partition(".")[2])
    assert (gb(read.weights, weights), f"{BANDWIDTH / read.total:.{digits}f}") == (weights, ceiling)


@pytest.mark.parametrize(
    ("arm", "tok_s", "gbps", "percent"),
    [("bf16", 31.3, "96.6", "29.8"), ("int4", 25.7, "19.8", "6.1"), ("int4", 25.5, "19.7", "6.1")],
)
def test_published_achieved_bandwidth(arm: str, tok_s: float, gbps: str, percent: str) -> None:
    achieved = published(QWEN)[arm].achieved_gbps(tok_s)
    assert (f"{achieved:.1f}", f"{100 * achieved / 323.9:.1f}") == (gbps, percent)


def test_honest_achieved_bandwidth_counts_the_kv_read() -> None:
    read = honest(QWEN, *choose_formats("w4"), context=2048)
    assert f"{100 * read.achieved_gbps(25.5) / 323.9:.1f}" == "9.5"
    assert f"{323.9e9 / read.total:.1f}" == "268.5"


def test_where_the_published_conventions_part_from_the_bytes() -> None:
    table = 151_936 * 1536
    arms = published(QWEN, 2048)
    assert arms["int4"].kv * 4 == arms["bf16"].kv == arms["swapped"].kv == 58_720_256
    assert arms["swapped"].weights == QWEN.parameters / 2 + 2 * table + QWEN.parameters / 64
    assert published(ORCH)["bf16"].weights == 2 * (ORCH.parameters + 2103 * 1024)


# --- properties

contexts = st.integers(0, 4096)
weight_formats = st.one_of(
    st.builds(
        WeightFormat,
        st.just("w4"),
        st.sampled_from([-1, 32, 64, 96, 128, 256]),
        st.sampled_from(["sym", "asym", "offset"]),
    ),
    st.builds(WeightFormat, st.sampled_from(["nf4", "nf4-dq"]), st.sampled_from([32, 64, 128, 4096])),
    st.builds(WeightFormat, st.sampled_from(["bf16", "int8"])),
)


@given(st.sampled_from(MANIFESTS), weight_formats, weight_formats, st.sampled_from(list(KV_BYTES)), contexts)
def test_terms_sum_to_the_total(manifest, weights, head, kv_dtype, context) -> None:  # type: ignore[no-untyped-def]
    read = honest(manifest, weights, head, kv_dtype, context)
    assert tuple(read.terms) == TERMS
    assert sum(read.terms.values()) == read.total == read.weights + read.kv
    assert all(value >= 0 and value == int(value) for value in read.terms.values())


@given(st.sampled_from(MANIFESTS), weight_formats.filter(lambda f: f.kind != "bf16"), contexts)
def test_quantised_reads_less_than_bf16(manifest, weights, context) -> None:  # type: ignore[no-untyped-def]
    dense = honest(manifest, context=context)
    assert honest(manifest, weights, context=context).total < dense.total
    assert honest(manifest, head=weights, context=context).total < dense.total


@given(st.sampled_from(MANIFESTS), weight_formats, contexts, contexts)
def test_more_context_reads_more_and_nothing_else_changes(manifest, weights, one, other) -> None:  # type: ignore[no-untyped-def]
    low, high = sorted((one, other))
    short, long = (honest(manifest, weights, context=context) for context in (low, high))
    assert short.weights == long.weights
    assert (short.kv < long.kv) == (low < high)


@given(st.sampled_from(MANIFESTS), weight_formats, contexts)
def test_fusing_changes_no_byte(manifest, weights, context) -> None:  # type: ignore[no-untyped-def]
    fused = honest(manifest.fused(), weights, context=context)
    apart = honest(manifest, weights, context=context)
    if weights.kind == "nf4-dq":  # 256 scales to a block: joined matrices leave fewer partial blocks
        assert apart.total - 12 * manifest.architecture.layers <= fused.total <= apart.total
    else:
        assert fused.terms == apart.terms


# --- bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("w3",), ("w3", "w4")),
        (("w4", "w5"), ("w5", "w4")),
        (("w4", "bf16", 12), ("group_size=12", "multiple of 8")),
        (("w4", "bf16", 0), ("group_size=0", "at least 8")),
        (("w4", "bf16", 128, "both"), ("both", "asym")),
        (("nf4", "bf16", 48), ("group_size=48", "power of two")),
        (("nf4", "bf16", -1), ("group_size=-1", "power of two")),
        (("bf16", "int8", 128), ("group_size=128", "leave it out")),
        (("nf4", "bf16", None, "sym"), ("sym", "zeros")),
    ],
)
def test_formats_refuse(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(RoofgapError) as caught:
        choose_formats(*arguments)  # type: ignore[arg-type]
    assert all(word.lower() in str(caught.value).lower() for word in words), caught.value


def test_group_size_goes_to_whichever_has_groups() -> None:
    weights, head = choose_formats("int8", "w4", 64, "sym")
    assert (weights, head) == (WeightFormat("int8"), WeightFormat("w4", 64, "sym"))


@pytest.mark.parametrize("count", [lambda m, c: honest(m, context=c), published], ids=["honest", "published"])
def test_context_outside_the_model(count) -> None:  # type: ignore[no-untyped-def]
    most = ORCH.architecture.max_context
    assert most is not None
    count(ORCH, most)
    with pytest.raises(RoofgapError, match=f"context={most + 1}.*{most}"):
        count(ORCH, most + 1)
    with pytest.raises(RoofgapError, match="context=-1"):
        count(ORCH, -1)


def test_unknown_kv_dtype() -> None:
    with pytest.raises(RoofgapError, match=r"fp4.*fp8"):
        honest(QWEN, kv_dtype="fp4")
