"""A whole decoder with fused operators against the same decoder without, and against fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roofgap.e2e.decoder import Decoder
from roofgap.e2e.fused.apply import apply_fused_operators, remove_fused_operators
from roofgap.e2e.fused.swiglu import swiglu
from roofgap.e2e.projections import join_projections
from roofgap.shapes.errors import RoofgapError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PROMPT, STEPS, VOCAB = 5, 4, 97
FEW = 2  # steps of quantised models, which are slow in the interpreter


def model_of(kind: str, dtype: torch.dtype = torch.float16, **changes: Any) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 80,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **changes,
    }
    torch.manual_seed(3)
    config = {"llama": LlamaConfig, "qwen2": Qwen2Config}[kind](**fields)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model.to(DEVICE)


TOKENS = torch.arange(3, 3 + PROMPT + STEPS)[None].to(DEVICE) * 7 % VOCAB


def decoded(model: Any, steps: int = STEPS) -> torch.Tensor:
    decoder = Decoder(model, 32)
    decoder.prefill(TOKENS[:, :PROMPT])
    return decoder.forced(decoder.step, TOKENS[0, PROMPT : PROMPT + steps]).float()


@pytest.mark.parametrize(
    ("kind", "dtype", "joined"),
    [
        ("qwen2", torch.float16, True),
        ("qwen2", torch.bfloat16, False),
        ("llama", torch.float16, False),
        ("llama", torch.bfloat16, True),
    ],
)
def test_fused_decoder_is_as_close_to_fp32_as_the_plain_one(
    kind: str, dtype: torch.dtype, joined: bool
) -> None:
    model = model_of(kind, dtype)
    exact = model_of(kind, dtype).float()(input_ids=TOKENS, use_cache=False).logits[0, PROMPT:]
    if joined:
        join_projections(model)
    plain = decoded(model)
    apply_fused_operators(model)
    fused = decoded(model)
    assert not torch.equal(plain, fused)  # another path did run
    remove_fused_operators(model)
    assert torch.equal(decoded(model), plain)
    # The interpreter cuts bf16 off where torch rounds, which costs one bit.
    slack = 2 if dtype == torch.bfloat16 and DEVICE.type == "cpu" else 1
    error, allowed = (float((logits - exact).norm() / exact.norm()) for logits in (fused, plain))
    assert error <= 2 * slack * allowed + 1e-4


def test_a_step_that_ends_in_own_kernels_makes_the_same_tokens() -> None:
    from roofgap.e2e.fused.argmax import next_token

    model = model_of("llama")
    decoders = [Decoder(model, 32), Decoder(model, 32, next_token)]
    for decoder in decoders:
        decoder.prefill(TOKENS[:, :PROMPT])
        for _ in range(8):
            decoder.step()
    made = [decoder.generated[PROMPT : PROMPT + 8].tolist() for decoder in decoders]
    assert made[0] == made[1]
    assert [int(decoder.position) for decoder in decoders] == [PROMPT + 8] * 2


def quantised(model: Any) -> Any:
    """Its layers' linears as v4's."""
    from roofgap.e2e.projections import DecodeLinear
    from roofgap.e2e.swap import LAYER_LINEARS, swap_linears
    from roofgap.kernels.formats.quantise import quantise

    def make(dense: torch.nn.Linear) -> DecodeLinear:
        return DecodeLinear(quantise(dense.weight, 32, symmetric=False), dense.bias, variant="v4")

    swap_linears(model, make, LAYER_LINEARS)
    return model


@pytest.mark.parametrize(("joined", "layers"), [(True, 2), (False, 1)])
def test_epilogues_leave_out_launches_and_change_roundings_only(
    joined: bool, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roofgap.kernels.step import Launch

    counted: list[Launch] = []
    run = Launch.run

    def count(launch: Launch) -> None:
        counted.append(launch)
        run(launch)

    monkeypatch.setattr(Launch, "run", count)
    model = model_of("qwen2", intermediate_size=128, num_hidden_layers=layers)
    if joined:
        join_projections(model)
    quantised(model)
    found, launches = [], []
    for epilogues in (False, True):
        apply_fused_operators(model, epilogues=epilogues)
        counted.clear()
        found.append(decoded(model, FEW))
        launches.append(len(counted) / FEW)
        remove_fused_operators(model)
    plain, fused = found
    assert not torch.equal(plain, fused)
    assert float((plain - fused).norm() / plain.norm()) < 0.01
    per_layer = 4 + 2 + 2 if joined else 7 + 2 + 2 + 1
    assert launches[1] == layers * per_layer + 1
    assert launches[0] - launches[1] == (layers if joined else 0)


def test_a_width_that_cannot_be_paired_keeps_its_own_swiglu() -> None:
    model = model_of("qwen2", intermediate_size=120, num_hidden_layers=1)
    join_projections(model)
    quantised(model)
    apply_fused_operators(model)
    plain = decoded(model, FEW)
    remove_fused_operators(model)
    apply_fused_operators(model, epilogues=True)
    assert float((decoded(model, FEW) - plain).norm() / plain.norm()) < 0.01


def test_a_wrong_operator_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("qwen2")
    plain = decoded(model)
    monkeypatch.setattr("roofgap.e2e.fused.apply.swiglu", lambda gate, up: swiglu(up, gate))
    apply_fused_operators(model)
    assert float((decoded(model) - plain).norm() / plain.norm()) > 0.1


def test_prefill_and_other_caches_keep_the_original_path() -> None:
    from transformers import DynamicCache

    model = model_of("llama")
    without = model(input_ids=TOKENS, use_cache=False).logits
    first = model(input_ids=TOKENS[:, :1], use_cache=False).logits
    apply_fused_operators(model)
    assert torch.equal(model(input_ids=TOKENS, use_cache=False).logits, without)
    assert torch.equal(model(input_ids=TOKENS[:, :1], use_cache=False).logits, first)
    name = Decoder(model, 32)._cache_name
    grown = model(input_ids=TOKENS[:, :1], **{name: DynamicCache(config=model.config)}).logits
    assert torch.equal(grown, first)


def test_a_padding_mask_is_refused() -> None:
    model = model_of("llama")
    apply_fused_operators(model)
    decoder = Decoder(model, 32)
    decoder.prefill(TOKENS)
    given: dict[str, Any] = {decoder._cache_name: decoder.cache}
    with pytest.raises(RoofgapError, match="padding mask"):
        model(input_ids=TOKENS[:, :1], attention_mask=torch.ones_like(TOKENS), **given)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"hidden_act": "gelu"}, "silu"),
        ({"head_dim": 24}, "power of two"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope_type"),
    ],
)
def test_models_that_are_not_computed_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(RoofgapError, match=rule):
        apply_fused_operators(model_of("llama", **changes))


def test_fp32_is_refused() -> None:
    with pytest.raises(RoofgapError, match="fp16 or bf16"):
        apply_fused_operators(model_of("llama", torch.float32))


@pytest.mark.gpu
def test_a_captured_step_equals_an_eager_one() -> None:
    from roofgap.tuning.measure.cuda import CudaDevice

    model = model_of("qwen2", torch.bfloat16)
    join_projections(model)
    apply_fused_operators(model)
    eager = decoded(model)
    decoder = Decoder(model, 32)
    decoder.prefill(TOKENS[:, :PROMPT])
    graph = decoder.capture(CudaDevice())
    assert torch.equal(decoder.forced(graph.replay, TOKENS[0, PROMPT:]).float(), eager)
