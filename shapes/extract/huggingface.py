"""Tensor shapes from a Hugging Face config.json: the model is built on the meta device, its linears walked.

No weights are read or made, nothing is downloaded, and code that a repository carries is never run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.extract.found import Found, Shape, clip, measured, refuse

if TYPE_CHECKING:
    import torch

MAX_LAYERS = 1000
"""Building more on the meta device takes minutes; no published model is near it."""

_REQUIRED = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}
_IGNORED = ("model_type", "auto_map", "quantization_config", "architectures", "transformers_version")


def read_huggingface(path: Path) -> Found:
    """Tensors of the model that ``config.json`` describes.

    Args:
        path: a config.json.

    Raises:
        RoofgapError: not a config; a number missing, out of range or at odds with another; a model type that
            transformers does not know, or that is not made of plain linears, embeddings and norms.
    """
    raw = _read_config(path)
    model_type = raw.get("model_type")
    place = f"{path.name} (model type {clip(model_type)})"
    if not isinstance(model_type, str):
        raise refuse(str(path), "must name its model_type", "add it, e.g. llama or qwen2")
    for key in _REQUIRED.values():
        _check_number(raw, key, place)
    if raw["num_hidden_layers"] > MAX_LAYERS:
        raise refuse(
            f"{place}: num_hidden_layers={raw['num_hidden_layers']}", f"must be at most {MAX_LAYERS}"
        )
    if raw.get("head_dim") is None and raw["hidden_size"] % raw["num_attention_heads"]:
        raise refuse(
            f"{place}: hidden_size={raw['hidden_size']}, num_attention_heads={raw['num_attention_heads']}",
            "the heads must divide the hidden size where head_dim is not given",
            "correct one of them or add head_dim",
        )
    config, model = _build(raw, model_type, place)
    heads = raw["num_attention_heads"]
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if raw.get("num_key_value_heads") is None and kv_heads != heads:
        raise refuse(
            f"{place}: num_key_value_heads", "is missing, and the model type has no neutral default", "add it"
        )
    rope = getattr(config, "rope_parameters", None)
    numbers: dict[str, tuple[str, Any]] = {
        **{field: (key, raw[key]) for field, key in _REQUIRED.items()},
        "kv_heads": ("num_key_value_heads", kv_heads),
        "head_dim": ("head_dim", getattr(config, "head_dim", None) or raw["hidden_size"] // heads),
        "max_context": ("max_position_embeddings", getattr(config, "max_position_embeddings", None)),
        "rope_theta": ("rope_theta", _as_float(rope.get("rope_theta") if isinstance(rope, dict) else None)),
        "norm_eps": ("rms_norm_eps", _as_float(getattr(config, "rms_norm_eps", None))),
    }
    stated = {
        field: measured(
            value, f"{path.name}: {key}" if key in raw else f"{path.name}: {key} by its model type"
        )
        for field, (key, value) in numbers.items()
        if value is not None
    }
    shapes, storages = _walk(model, place)
    return Found(
        place=place,
        shapes=shapes,
        stated=stated,
        same=lambda first, second: storages[f"{first}.weight"] == storages[f"{second}.weight"],
    )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise refuse(str(path), f"is not a readable JSON file ({type(error).__name__})") from error
    if not isinstance(raw, dict):
        raise refuse(str(path), "must be a JSON object")
    return raw


def _check_number(raw: dict[str, Any], key: str, place: str) -> None:
    if key not in raw:
        raise refuse(f"{place}: {key}", "is missing", "add it: a default of the library would be a guess")
    if type(raw[key]) is not int or raw[key] < 1:
        raise refuse(f"{place}: {key}={clip(raw[key])}", "must be a whole number of at least 1", "correct it")


def _as_float(value: object) -> object:
    return float(value) if type(value) is int else value


def _build(raw: dict[str, Any], model_type: str, place: str) -> tuple[Any, torch.nn.Module]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {key: value for key, value in raw.items() if key not in _IGNORED}
    try:
        config = AutoConfig.for_model(model_type, **fields)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, attn_implementation="eager", trust_remote_code=False
            )
    except Exception as error:  # a config is anything a user writes; so is what its model raises
        reason = " ".join(str(error).split())[:160]
        raise RoofgapError(
            place,
            f"transformers cannot build a causal language model from it ({reason})",
            "check model_type and the numbers, or extract from the weights themselves",
        ) from error
    return config, model


def _walk(model: torch.nn.Module, place: str) -> tuple[dict[str, Shape], dict[str, int]]:
    """Shapes by parameter name, and which parameters are one object."""
    import torch

    shapes: dict[str, Shape] = {}
    identities: dict[str, int] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1 and not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                raise refuse(
                    f"{place}: {path}.{name} {list(parameter.shape)}",
                    f"belongs to a {type(module).__name__}, not to a plain linear or embedding",
                    "use a dense decoder such as llama, mistral, qwen2 or qwen3",
                )
            shapes[f"{path}.{name}"] = tuple(parameter.shape)
            identities[f"{path}.{name}"] = id(parameter)
    return shapes, identities
