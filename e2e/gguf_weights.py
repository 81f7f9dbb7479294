"""GGUF files of Llama-like decoders as safetensors folders that transformers' modules can be filled from.

Only the ``gguf`` package reads the quantised blocks; it is needed once, at conversion.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roofgap.shapes.errors import RoofgapError

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""llama.cpp's name within ``blk.N`` to transformers' within ``model.layers.N``."""
_ROTATED = {"llama": ("attn_q", "attn_k"), "qwen2": ()}
"""Architectures that are understood, and whose rows llama.cpp reorders so that rotary pairs are neighbours."""


def convert(source: Path, folder: Path, *, tokenizer: bool = True) -> Path:
    """Writes ``model.safetensors`` (fp32, exactly what the blocks mean), ``config.json`` and the tokenizer.

    A folder that is complete is left as it is; an interrupted conversion leaves none.

    Returns:
        The folder.

    Raises:
        RoofgapError: ``gguf`` or ``safetensors`` is not installed, or the file is of another architecture.
    """
    if (folder / "config.json").is_file():
        return folder
    reader = _reader(source)
    save = _import("safetensors.torch", "safetensors").save_file
    architecture = str(reader.fields["general.architecture"].contents())
    if architecture not in _ROTATED:
        raise RoofgapError(
            f"{source}: architecture {architecture!r}",
            f"must be one of {', '.join(_ROTATED)}",
            "convert it to a Hugging Face folder with the tools of its authors",
        )

    def number(key: str) -> Any:
        return reader.fields[f"{architecture}.{key}"].contents()

    heads, kv_heads = int(number("attention.head_count")), int(number("attention.head_count_kv"))
    tensors = {}
    for entry in reader.tensors:
        name, short = _hugging_face_name(entry.name, source)
        values = torch.from_numpy(_dequantise(entry))
        if short in _ROTATED[architecture]:
            values = _unrotate(values, heads if short == "attn_q" else kv_heads)
        tensors[name] = values
    config = {
        "model_type": architecture,
        "architectures": [f"{architecture.capitalize()}ForCausalLM"],
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "hidden_size": int(number("embedding_length")),
        "intermediate_size": int(number("feed_forward_length")),
        "num_hidden_layers": int(number("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": int(number("context_length")),
        "rms_norm_eps": float(f"{number('attention.layer_norm_rms_epsilon'):.7g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(number("rope.freq_base"))},
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "model.safetensors.part"
    save({name: tensor.contiguous() for name, tensor in tensors.items()}, part)
    part.replace(folder / "model.safetensors")
    if tokenizer:
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json.part").write_text(text)
    (folder / "config.json.part").replace(folder / "config.json")  # last: its presence means complete
    return folder


def cut(source: Path, target: Path, layers: int) -> None:
    """Writes the first ``layers`` layers of a GGUF file, blocks and tokenizer untouched, as a smaller file.

    For a machine that the whole file cannot be brought to. Its text is nonsense; its kernels see real weights.

    Raises:
        RoofgapError: fewer layers in the file, or none asked for.
    """
    gguf, reader = _import("gguf", "gguf"), _reader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    there = int(reader.fields[f"{architecture}.block_count"].contents())
    if not 1 <= layers <= there:
        raise RoofgapError(f"{layers} layers", f"must be 1 to {there}", "choose how many to keep")
    part = target.with_name(target.name + ".part")
    writer = gguf.GGUFWriter(part, architecture)
    for key, entry in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":  # the writer's own
            continue
        kind = entry.types[0]
        of = entry.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = layers if key == f"{architecture}.block_count" else entry.contents()
        writer.add_key_value(key, value, kind, sub_type=of)
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(target)


def _reader(source: Path) -> Any:
    return _import("gguf", "gguf").GGUFReader(source)


def _import(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RoofgapError(
            f"package {package}", "is not installed", f"run `pip install {package}`"
        ) from error


def _hugging_face_name(name: str, source: Path) -> tuple[str, str]:
    """transformers' name of a tensor, and its short name within a layer."""
    module, _, leaf = name.rpartition(".")
    if module.startswith("blk."):
        _, index, short = module.split(".", 2)
        if short in LAYER_NAMES:
            return f"model.layers.{int(index)}.{LAYER_NAMES[short]}.{leaf}", short
    elif module in _OUTER:
        return f"{_OUTER[module]}.{leaf}", module
    raise RoofgapError(
        f"{source}: tensor {name!r}",
        "is not one of a Llama-like decoder",
        "convert it with its authors' tools",
    )


def _dequantise(entry: Any) -> np.ndarray[Any, Any]:
    from gguf.quants import dequantize

    values = np.array(dequantize(entry.data, entry.tensor_type), dtype=np.float32)
    return values.reshape([int(size) for size in entry.shape][::-1])


def _unrotate(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes llama.cpp's order of rotary rows: (pair, half) back to (half, pair) within each head."""
    rows = values.shape[0] // heads // 2
    return values.reshape(heads, rows, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
