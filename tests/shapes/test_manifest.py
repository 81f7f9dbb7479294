"""Manifests: what is shipped, how it is built, and that a manifest which contradicts itself is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofgap.shapes.architecture import Architecture
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.extract.published import schema_json, shipped
from roofgap.shapes.manifest import (
    SCHEMA_FILE,
    Evidence,
    Manifest,
    build_manifest,
    check_manifest,
    list_manifests,
    load_manifest,
    manifest_json,
    read_manifest,
)

PARAMETERS = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "orch-fusion": 272_736_256,
}
TINY: dict[str, Any] = {
    "layers": 2,
    "hidden": 32,
    "intermediate": 48,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "vocab": 50,
    "tied": True,
    "qkv_bias": True,
    "o_bias": False,
    "mlp_bias": False,
}


def tiny(**changes: Any) -> Manifest:
    architecture = Architecture(**(TINY | changes))
    evidence = Evidence(kind="published", source="a test")
    provenance = {field: evidence for field, value in architecture if value is not None}
    return build_manifest("tiny", architecture, provenance, title="Tiny", source="a test", revision="1")


def test_every_shipped_manifest_is_listed_by_family_and_size() -> None:
    assert list_manifests() == ["orch-fusion", *(name for name in PARAMETERS if name != "orch-fusion")]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_model_on_the_meta_device(name: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    manifest = load_manifest(name)
    a = manifest.architecture
    sizes = {
        "hidden_size": a.hidden,
        "intermediate_size": a.intermediate,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "vocab_size": a.vocab,
        "tie_word_embeddings": a.tied,
    }
    with torch.device("meta"):
        model: torch.nn.Module = (
            Qwen2ForCausalLM(Qwen2Config(**sizes))
            if name.startswith("qwen")
            else LlamaForCausalLM(LlamaConfig(**sizes, attention_bias=False, mlp_bias=False))
        )
    assert manifest.parameters == sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    shapes = {
        path: tuple(m.weight.shape) for path, m in model.named_modules() if isinstance(m, torch.nn.Linear)
    }
    assert len(shapes) == sum(matrix.count for matrix in manifest.matrices)
    for matrix in manifest.matrices:
        for layer in range(matrix.count):
            assert shapes[matrix.name.replace("*", str(layer))] == (matrix.n, matrix.k)


@pytest.mark.parametrize("manifest", shipped(), ids=lambda manifest: manifest.model)
def test_shipped_files_are_what_the_published_numbers_give(root: Path, manifest: Manifest) -> None:
    text = (root / "shapes" / "manifests" / f"{manifest.model}.json").read_text(encoding="utf-8")
    assert text == manifest_json(manifest)
    assert load_manifest(manifest.model) == manifest
    assert check_manifest(manifest) == []
    assert check_manifest(manifest.fused()) == []


def test_schema_is_published_beside_the_manifests(root: Path) -> None:
    text = (root / "shapes" / "manifests" / SCHEMA_FILE).read_text(encoding="utf-8")
    assert text == schema_json()
    assert set(json.loads(text)["required"]) <= set(Manifest.model_fields)


def test_orch_fusion_says_which_numbers_are_solved() -> None:
    manifest = load_manifest("orch-fusion")
    derived = {field for field, evidence in manifest.provenance.items() if evidence.kind == "derived"}
    assert {"intermediate", "tied", "head_dim"} <= derived
    assert not derived & {"layers", "hidden", "heads", "kv_heads", "vocab"}
    assert manifest.matrix("gate").provenance == "derived"
    assert "2815.6" in (manifest.provenance["intermediate"].equation or "")
    assert "not its weights" in manifest.note


def test_fused_view_joins_along_n() -> None:
    manifest = load_manifest("qwen2.5-1.5b")
    fused = manifest.fused()
    assert [m.role for m in fused.matrices] == ["qkv", "o", "gate_up", "down", "head"]
    assert (fused.matrix("qkv").n, fused.matrix("qkv").k, fused.matrix("qkv").bias) == (2048, 1536, True)
    assert fused.matrix("gate_up").n == 2 * 8960
    for total in ("weights", "biases"):
        assert sum(getattr(m, total) for m in fused.matrices) == sum(
            getattr(m, total) for m in manifest.matrices
        )
    assert fused.fused() is fused
    with pytest.raises(RoofgapError, match="qkv"):
        manifest.matrix("qkv")


def test_problems_carry_the_quantisation_and_the_bias() -> None:
    pairs = load_manifest("qwen2.5-1.5b").problems(m=4, group_size=64, x_dtype="bf16", zero_mode="asym")
    matrix, problem = pairs[0]
    assert (matrix.role, problem.n, problem.k, problem.m) == ("q", 1536, 1536, 4)
    assert (problem.group_size, problem.x_dtype, problem.zero_mode, problem.bias) == (
        64,
        "bf16",
        "asym",
        True,
    )
    assert [m.role for m, _ in pairs] == ["q", "k", "v", "o", "gate", "up", "down", "head"]
    assert load_manifest("qwen2.5-1.5b").distinct_shapes() == (
        (1536, 1536),
        (256, 1536),
        (8960, 1536),
        (1536, 8960),
        (151936, 1536),
    )


def test_kv_bytes_per_token() -> None:
    a = load_manifest("qwen2.5-1.5b").architecture
    assert a.kv_bytes_per_token(2) == 28_672
    assert a.kv_bytes_per_token(1) == 14_336


@given(
    kv_heads=st.integers(1, 4),
    ratio=st.integers(1, 4),
    head_dim=st.integers(1, 16),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
    norms=st.tuples(st.integers(0, 4), st.integers(0, 16), st.integers(0, 16)),
)
def test_totals_are_the_sum_of_the_parts(
    kv_heads: int, ratio: int, head_dim: int, flags: tuple[bool, ...], norms: tuple[int, ...]
) -> None:
    named: dict[str, Any] = dict(zip(("tied", "qkv_bias", "o_bias", "mlp_bias"), flags, strict=True))
    named |= dict(zip(("layer_norms", "q_norm", "k_norm"), norms, strict=True))
    manifest = tiny(kv_heads=kv_heads, heads=kv_heads * ratio, head_dim=head_dim, **named)
    a = manifest.architecture
    read = sum(matrix.weights + matrix.biases for matrix in manifest.matrices)
    embedding = 0 if a.tied else a.vocab * a.hidden
    assert manifest.parameters == read + embedding + a.norm_parameters
    assert Manifest.model_validate_json(manifest_json(manifest)) == manifest


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"kv_heads": 3}, "kv_heads=3"),
        ({"intermediate": 0}, "intermediate=0"),
        ({"layers": -1}, "layers=-1"),
        ({"norm_eps": float("nan")}, "norm_eps=nan"),
        ({"rope_theta": float("inf")}, "rope_theta=inf"),
        ({"max_context": 0}, "max_context=0"),
        ({"q_norm": -1}, "q_norm=-1"),
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, Any], value: str) -> None:
    with pytest.raises(RoofgapError) as caught:
        tiny(**change)
    assert value in caught.value.value


def test_a_number_without_evidence_is_refused() -> None:
    with pytest.raises(RoofgapError, match="hidden"):
        build_manifest("tiny", Architecture(**TINY), {}, title="t", source="s", revision="r")
    with pytest.raises(RoofgapError, match="equation"):
        Evidence(kind="derived", source="a hunch")


def planted(change: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(manifest_json(tiny()))
    for path, value in change.items():
        *parents, last = path.split("/")
        node = document
        for parent in parents:
            node = node[int(parent)] if isinstance(node, list) else node[parent]
        if value is None:
            del node[last]
        else:
            node[last] = value
    return document


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parameters": 7}, "parameters 7 differ"),
        ({"matrices/1/n": 17}, "k: n 17"),
        ({"matrices/6/count": 3}, "down: count 3"),
        ({"matrices/0/bias": False}, "q: bias False"),
        ({"matrices/7/tied": False}, "head: tied False"),
        ({"matrices/7/role": "down"}, "roles q, k, v, o, gate, up, down, down"),
        ({"kv/head_dim": 9}, "KV layout"),
        ({"provenance/vocab": None}, "vocab has no provenance"),
        ({"provenance/speed": {"kind": "published", "source": "x"}}, "names speed"),
        ({"architecture/hidden": 64}, "parameters"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(planted(change)))
    assert any(sentence in line for line in check_manifest(read_manifest(path)))
    with pytest.raises(RoofgapError):
        load_manifest(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "JSON"),
        ("[]", "object"),
        ("{", "JSON"),
        (json.dumps(planted({"architecture/layers": "2"})), "architecture.layers"),
        (json.dumps(planted({"surprise": 1})), "surprise"),
        (json.dumps(planted({"schema_version": 2})), "schema_version"),
        (json.dumps(planted({"matrices/0/n": 0})), "matrices.0.n"),
        (json.dumps(planted({"model": "../tiny"})), "model name"),
        (json.dumps(planted({"matrices": []})), "matrices"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RoofgapError, match=says):
        read_manifest(path)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(RoofgapError, match="orch-fusion"):
        load_manifest("orch-fission")


def test_loading_needs_no_torch() -> None:
    code = (
        "import sys; from roofgap.shapes.manifest import load_manifest; load_manifest('orch-fusion'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
