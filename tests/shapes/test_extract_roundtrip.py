"""One small model in every form that can be read gives the same matrices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.extract.source import extract
from roofgap.shapes.manifest import Manifest, check_manifest

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
HEAD_DIM = {"head_dim": 16}
State = dict[str, torch.Tensor]


def model(tied: bool = True) -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=tied))


def expected_rows(tied: bool = True) -> list[tuple[str, int, int, int, bool, bool]]:
    return [
        ("q", 3, 64, 64, True, False),
        ("k", 3, 32, 64, True, False),
        ("v", 3, 32, 64, True, False),
        ("o", 3, 64, 64, False, False),
        ("gate", 3, 160, 64, False, False),
        ("up", 3, 160, 64, False, False),
        ("down", 3, 64, 160, False, False),
        ("head", 1, 96, 64, False, tied),
    ]


def rows(manifest: Manifest) -> list[tuple[str, int, int, int, bool, bool]]:
    return [(m.role, m.count, m.n, m.k, m.bias, m.tied) for m in manifest.matrices]


def fused(state: State) -> State:
    """q|k|v and gate|up joined, as a serving stack stores them."""
    joined = {}
    for name, tensor in state.items():
        if ".q_proj." in name:
            parts = [state[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            joined[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
        elif ".gate_proj." in name:
            joined[name.replace("gate_proj", "gate_up_proj")] = torch.cat(
                [tensor, state[name.replace("gate", "up")]]
            )
        elif not any(part in name for part in (".k_proj.", ".v_proj.", ".up_proj.")):
            joined[name] = tensor
    return joined


def renamed(state: State, pairs: dict[str, str]) -> State:
    result = {}
    for name, tensor in state.items():
        new = name
        for old, other in pairs.items():
            new = new.replace(old, other)
        result[new] = tensor
    return result


LLAMA_STYLE = {
    "model.layers.": "blocks.",
    "self_attn.q_proj": "attn.wq",
    "self_attn.k_proj": "attn.wk",
    "self_attn.v_proj": "attn.wv",
    "self_attn.o_proj": "attn.wo",
    "mlp.gate_proj": "ffn.w1",
    "mlp.up_proj": "ffn.w3",
    "mlp.down_proj": "ffn.w2",
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
}
GPT_STYLE = {
    "model.layers.": "transformer.h.",
    "self_attn.qkv_proj": "attn.c_attn",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.down_proj": "mlp.c_proj",
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
}
NAMELESS = {
    "self_attn.q_proj": "a",
    "self_attn.k_proj": "b",
    "self_attn.v_proj": "c",
    "self_attn.o_proj": "d",
    "mlp.gate_proj": "e",
    "mlp.up_proj": "f",
    "mlp.down_proj": "g",
}
W3_IS_DOWN = {"gate_proj": "w1", "up_proj": "w2", "down_proj": "w3"}


def same_names(state: State) -> State:
    return state


TORCH_FORMS: dict[str, Callable[[State], Any]] = {
    "plain": same_names,
    "model": lambda state: {"model": state, "step": 7, "rng": torch.zeros(3)},
    "state_dict": lambda state: {"state_dict": state, "epoch": 1},
    "nested": lambda state: {"model_state_dict": {"module": state}},
    "compiled": lambda state: {f"_orig_mod.{name}": tensor for name, tensor in state.items()},
    "parallel": lambda state: {f"module._orig_mod.{name}": tensor for name, tensor in state.items()},
    "one layer compiled": lambda state: renamed(state, {"layers.0.": "layers.0._orig_mod."}),
    "fused": fused,
    "llama-style": lambda state: renamed(state, LLAMA_STYLE),
    "gpt-style": lambda state: renamed(fused(state), GPT_STYLE),
    "nameless": lambda state: renamed(state, NAMELESS),
    "nameless-fused": lambda state: renamed(
        fused(state), {"self_attn.qkv_proj": "x", "o_proj": "y", "gate_up_proj": "z"}
    ),
    "w3-is-down": lambda state: renamed(state, W3_IS_DOWN),
    "with-buffers": lambda state: (
        state
        | {
            "model.rotary_emb.inv_freq": torch.zeros(8),
            "model.layers.0.attn.bias": torch.ones(1, 1, 8, 8),
            "freqs_cis": torch.zeros(8, 8),
        }
    ),
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("form", TORCH_FORMS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_checkpoint(tmp_path: Path, form: str, legacy: bool, tied: bool) -> None:
    path = tmp_path / "model.pt"
    torch.save(TORCH_FORMS[form](model(tied).state_dict()), path, _use_new_zipfile_serialization=not legacy)
    manifest = extract([path], HEAD_DIM)
    assert rows(manifest) == expected_rows(tied)
    assert check_manifest(manifest) == []
    assert manifest.parameters == sum(p.numel() for p in model(tied).parameters())


def test_checkpoint_tied_by_value(tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in model().state_dict().items()}
    torch.save(state, tmp_path / "model.pt")
    assert rows(extract([tmp_path / "model.pt"], HEAD_DIM)) == expected_rows(tied=True)
    state["lm_head.weight"][0, 0] += 1
    torch.save(state, tmp_path / "model.pt")
    assert rows(extract([tmp_path / "model.pt"], HEAD_DIM)) == expected_rows(tied=False)
    with pytest.raises(RoofgapError, match="tied"):
        extract([tmp_path / "model.pt"], HEAD_DIM | {"tied": True})


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("shard", ["5GB", "40KB"], ids=["whole", "sharded"])
def test_folder_config_and_safetensors(tmp_path: Path, tied: bool, shard: str) -> None:
    model(tied).save_pretrained(tmp_path, max_shard_size=shard)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert (len(shards) > 1) == (shard == "40KB")
    from_folder = extract([tmp_path], {})
    assert from_folder == extract([tmp_path / "config.json"], {}, name=from_folder.model)
    assert from_folder.architecture.max_context == 512
    from_shards = extract(shards, HEAD_DIM)
    (tmp_path / "config.json").unlink()
    from_bare_folder = extract([tmp_path], HEAD_DIM)
    for manifest in (from_folder, from_shards, from_bare_folder):
        assert rows(manifest) == expected_rows(tied)
        assert manifest.matrices == from_folder.matrices
        assert check_manifest(manifest) == []
        assert {m.provenance for m in manifest.matrices} == {"measured"}
    index = tmp_path / "model.safetensors.index.json"
    if index.exists():
        assert extract([index], HEAD_DIM).matrices == from_folder.matrices


GGUF_NAMES = {
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def write_gguf(
    path: Path, state: State, tied: bool, quantised: bool = False, key_length: bool = False
) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(3)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(160)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    if key_length:
        writer.add_key_length(16)
    writer.add_token_list([f"token {index}" for index in range(96)])
    writer.add_token_scores([0.5] * 96)
    writer.add_array("nested", [[1, 2], [3]])
    for name, tensor in renamed(state, GGUF_NAMES).items():
        if tied and name == "output.weight":
            continue
        values = tensor.numpy()
        if quantised and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("form", ["plain", "fused", "q4_0", "key_length"])
def test_gguf(tmp_path: Path, tied: bool, form: str) -> None:
    path = tmp_path / "model.gguf"
    state = model(tied).state_dict()
    write_gguf(path, fused(state) if form == "fused" else state, tied, form == "q4_0", form == "key_length")
    manifest = extract([path], {})
    assert rows(manifest) == expected_rows(tied)
    assert manifest.architecture.rope_theta == 1e6
    assert manifest.architecture.norm_eps == 1e-6
    assert manifest.architecture.max_context == 512
    assert check_manifest(manifest) == []
    with pytest.raises(RoofgapError, match=r"heads=4.*heads=8"):
        extract([path], {"heads": 8})


def test_gguf_block_sizes_are_those_of_the_gguf_package() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    from roofgap.shapes.extract.gguf import BLOCKS

    known = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
    assert {kind: sizes for kind, sizes in known.items() if kind in BLOCKS} == BLOCKS


@pytest.mark.parametrize(
    ("kind", "config", "extra"),
    [
        (LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True), {}),
        (LlamaForCausalLM, LlamaConfig(**SIZES, head_dim=32), {}),
        (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=32), {"q_norm": 32, "k_norm": 32}),
    ],
    ids=["llama-biases", "llama-wide-heads", "qwen3-qk-norm"],
)
def test_other_dense_decoders(tmp_path: Path, kind: Any, config: Any, extra: dict[str, int]) -> None:
    built = kind(config)
    built.save_pretrained(tmp_path)
    from_config = extract([tmp_path], {})
    options = {} if extra else {"head_dim": config.head_dim}  # the query norm tells head_dim
    from_weights = extract([tmp_path / "model.safetensors"], options)
    assert from_config.matrices == from_weights.matrices
    assert from_config.parameters == sum(p.numel() for p in built.parameters())
    for field, value in extra.items():
        assert getattr(from_weights.architecture, field) == value


def test_separate_files_have_separate_revisions(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in model().state_dict().items() if name != "lm_head.weight"}
    save_file(state, tmp_path / "one.safetensors")
    save_file(state | {"lm_head.weight": torch.zeros(96, 64)}, tmp_path / "other.safetensors")
    one = extract([tmp_path / "one.safetensors"], HEAD_DIM)
    other = extract([tmp_path / "other.safetensors"], HEAD_DIM)
    assert (one.model, other.model) == ("one", "other")
    assert one.revision != other.revision
    assert extract([tmp_path / "one.safetensors"], HEAD_DIM, name="n", revision="r").revision == "r"
    assert extract([tmp_path / "other.safetensors"], HEAD_DIM | {"tied": True}).architecture.tied
