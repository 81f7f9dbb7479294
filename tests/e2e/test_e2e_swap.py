"""Swapping linears: the bytes that are left, what is refused, what stays the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roofgap.e2e.arms import ARMS, Build, choose_arms
from roofgap.e2e.peers import TinyGemmLinear
from roofgap.e2e.projections import DecodeLinear, join_projections
from roofgap.e2e.swap import (
    HEAD,
    build_model,
    check_bytes,
    expected_bytes,
    stored_bytes,
    swap_linears,
    untie_head,
)
from roofgap.kernels.formats.quantise import quantise
from roofgap.shapes.accounting import honest
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import load_manifest

CPU = torch.device("cpu")
BUILDS = [
    Build(),
    Build(fused_linears=True),
    Build(weights="w4", variant="v2"),
    Build(weights="w4", variant="v3", fused_linears=True),
    Build(weights="w4", variant="v3", fused_linears=True, head_w4=True),
    Build(weights="w4", variant="v4", fused_linears=True, head_w4=True),
]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("zero_mode", ["sym", "asym", "offset"])
@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_bytes_are_the_manifests(tiny_source, build, zero_mode, tied) -> None:
    source = tiny_source(tied=tied)
    built = build_model(source, build, CPU, group_size=32, zero_mode=zero_mode)
    assert built.stored_bytes == built.expected_bytes
    assert stored_bytes(built.model) == built.stored_bytes
    per_layer = (
        {"qkv", "o", "gate_up", "down"} if build.fused_linears else {"q", "k", "v", "o", "gate", "up", "down"}
    )
    roles = built.roles()
    assert set(roles.values()) == per_layer | {"head"}
    assert len(roles) == 2 * len(per_layer) + 1


def test_dense_weights_left_behind_are_found(tiny_source) -> None:
    built = build_model(tiny_source(), Build(weights="w4", variant="v2"), CPU, group_size=32)
    built.model.model.layers[0].mlp.register_buffer("leak", torch.zeros(64, 128, dtype=torch.bfloat16))
    built.stored_bytes = stored_bytes(built.model)
    with pytest.raises(RoofgapError, match="within 1%"):
        check_bytes(built)


def test_a_tied_head_at_4_bits_leaves_the_embedding_alone(tiny_source) -> None:
    source = tiny_source()
    dense = source.build(CPU)
    assert dense.lm_head.weight is dense.model.embed_tokens.weight
    built = build_model(source, Build(weights="w4", variant="v2", head_w4=True), CPU, group_size=32)
    assert torch.equal(built.model.model.embed_tokens.weight, dense.model.embed_tokens.weight)
    assert isinstance(built.model.lm_head, DecodeLinear)
    assert not built.model.config.tie_word_embeddings
    built.model.tie_weights()
    assert isinstance(built.model.lm_head, DecodeLinear), "tying again must not bring the dense head back"


def test_untying_shares_the_storage(tiny_source) -> None:
    model = tiny_source().build(CPU)
    before = stored_bytes(model)
    untie_head(model)
    assert stored_bytes(model) == before


def test_nothing_to_swap_is_an_error(tiny_source) -> None:
    with pytest.raises(RoofgapError, match="matches no linear"):
        swap_linears(tiny_source().build(CPU), lambda linear: linear, ("model.layer.*",))


def test_a_refused_linear_is_named(tiny_source) -> None:
    def refuse(linear: nn.Linear) -> nn.Module:
        raise RoofgapError("N=128", "is unlucky", "choose another")

    with pytest.raises(RoofgapError, match="lm_head: N=128: is unlucky"):
        swap_linears(tiny_source().build(CPU), refuse, HEAD)


def test_joining_changes_no_value(tiny_source) -> None:
    source, tokens = tiny_source(), torch.arange(11)[None]
    plain, joined = source.build(CPU, torch.float32), source.build(CPU, torch.float32)
    join_projections(joined)
    torch.testing.assert_close(joined(input_ids=tokens).logits, plain(input_ids=tokens).logits)


@pytest.mark.parametrize("variant", ["v2", "v3"])
def test_one_row_takes_the_kernel_and_many_the_dense_weight(variant) -> None:
    torch.manual_seed(0)
    dense = nn.Linear(64, 48, dtype=torch.bfloat16)
    module = DecodeLinear(
        quantise(dense.weight.detach(), 32, symmetric=False), dense.bias.detach(), variant=variant
    )
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    rows = torch.cat([module(row[None]) for row in x])
    torch.testing.assert_close(rows, module(x), rtol=2e-2, atol=2e-2)
    module.codes.zero_()  # both paths read the stored codes
    assert not torch.allclose(module(x[:1]), rows[:1], atol=1e-1)
    assert not torch.allclose(module(x), rows, atol=1e-1)


def test_tinygemm_says_which_shapes_it_takes() -> None:
    with pytest.raises(RoofgapError, match="K=576"):
        TinyGemmLinear(nn.Linear(576, 64, dtype=torch.bfloat16), 128)


def test_random_weights_are_the_same_every_time_and_unlike_between_seeds(tiny_source) -> None:
    first, second, other = (tiny_source(seed).build(CPU) for seed in (0, 0, 1))
    name = "model.layers.1.mlp.down_proj.weight"
    assert torch.equal(first.get_parameter(name), second.get_parameter(name))
    assert not torch.equal(first.get_parameter(name), other.get_parameter(name))


def test_groups_of_random_weights_have_unlike_scales() -> None:
    """Else a scale of the wrong group would go unnoticed."""
    from roofgap.e2e.models import random_weight

    weight = random_weight("w.weight", torch.Size((64, 1536)), 0, CPU).float()
    assert float(weight.std()) == pytest.approx(1536**-0.5, rel=0.1)
    scales = quantise(weight, 128).scales
    change = (scales.roll(1, dims=1) / scales - 1).abs().median()
    assert float(change) > 0.25


@pytest.mark.parametrize("arm", ARMS.values(), ids=lambda arm: arm.name)
@pytest.mark.parametrize("model", ["qwen2.5-1.5b", "orch-fusion", "qwen2.5-7b"])
def test_every_arm_has_bytes(arm, model) -> None:
    """What is stored is what is read, plus an embedding that the head does not share."""
    manifest = load_manifest(model)
    weights, head = arm.build.formats(128, "asym")
    read = honest(manifest, weights, head)
    extra = expected_bytes(manifest, arm.build, 128, "asym") - (read.weights - read.embedding)
    table = 2 * manifest.architecture.vocab * manifest.architecture.hidden
    assert abs(extra - (0 if manifest.architecture.tied and not arm.build.head_w4 else table)) <= 64 * 1024


def test_arms_are_chosen_by_name_and_beginning() -> None:
    assert [arm.name for arm in choose_arms("bf16-graph, w4-v2*")] == [
        "bf16-graph",
        "w4-v2-eager",
        "w4-v2-graph",
    ]
    everything = choose_arms("all")
    assert not any(arm.opt_in for arm in everything)
    assert choose_arms("gemlite-graph")[0].opt_in
    for wrong in ("bf16-grap", "v9*", ""):
        with pytest.raises(RoofgapError):
            choose_arms(wrong)
