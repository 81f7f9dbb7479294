"""Decoders to compare: transformers' own modules in the shapes of a manifest, filled with random or real weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from roofgap.shapes.architecture import Architecture
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import Manifest

BLOCK = 64
SPREAD = 0.6
DEFAULT_EPS, DEFAULT_THETA, DEFAULT_CONTEXT = 1e-6, 1e6, 32768


class Tensors(Protocol):
    """Where values come from."""

    def read(self, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter under transformers' name, e.g. ``model.layers.0.self_attn.q_proj.weight``, on ``device``."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be built any number of times, always with the same values.

    Attributes:
        manifest: its shapes.
        values: where its weights come from, None for random ones.
        note: what a reader must know about the weights.
        folder: the folder with tokenizer files, None if there is none.
        seed: of random weights.
    """

    manifest: Manifest
    values: Tensors | None = None
    note: str = "random weights: speed is valid, quality is not"
    folder: Path | None = None
    seed: int = 0

    @property
    def has_real_weights(self) -> bool:
        """Whether quality means anything."""
        return self.values is not None

    def build(self, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Any:
        """A fresh dense causal LM on ``device``, in evaluation mode, without gradients.

        Raises:
            RoofgapError: the architecture is not one that transformers' Llama or Qwen2 computes, a tensor is missing,
                unexpected or of another shape.
        """
        model = empty_model(self.manifest.architecture, dtype)
        given = self.values.read(device) if self.values else _random(model, self.seed, device)
        _fill(model, given, dtype, self.manifest.model)
        return place_buffers(model, device)


def empty_model(architecture: Architecture, dtype: torch.dtype) -> Any:
    """transformers' causal LM of these shapes on the meta device.

    Raises:
        RoofgapError: query or key norms, or biases that neither Llama nor Qwen2 has.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_for(architecture), dtype=dtype)
    return model.eval().requires_grad_(False)


def config_for(architecture: Architecture) -> Any:
    """A Qwen2 config where only q, k and v have biases, else a Llama config.

    Raises:
        RoofgapError: as ``empty_model``.
    """
    from transformers import LlamaConfig, Qwen2Config

    a = architecture
    if a.q_norm or a.k_norm or a.layer_norms != 2:
        raise RoofgapError(
            f"{a.layer_norms} norms a layer, q_norm={a.q_norm}, k_norm={a.k_norm}",
            "only Llama- and Qwen2-like decoders can be decoded",
            "use their manifests, or `roofgap roofline` for bytes alone",
        )
    fields: dict[str, Any] = {
        "vocab_size": a.vocab,
        "hidden_size": a.hidden,
        "intermediate_size": a.intermediate,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "max_position_embeddings": a.max_context or DEFAULT_CONTEXT,
        "rms_norm_eps": a.norm_eps or DEFAULT_EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": a.rope_theta or DEFAULT_THETA},
        "tie_word_embeddings": a.tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if a.qkv_bias and not a.o_bias and not a.mlp_bias:
        return Qwen2Config(**fields)
    if a.qkv_bias == a.o_bias:
        return LlamaConfig(**fields, attention_bias=a.qkv_bias, mlp_bias=a.mlp_bias)
    raise RoofgapError(
        f"qkv_bias={a.qkv_bias}, o_bias={a.o_bias}, mlp_bias={a.mlp_bias}",
        "is neither Qwen2 (q, k and v alone) nor Llama (all of attention or none)",
        "correct the manifest",
    )


def random_weight(name: str, shape: torch.Size, seed: int, device: torch.device) -> torch.Tensor:
    """bf16 N(0, 1/K), 0.026 for K = 1,536; the same for the same name and seed on the same kind of device.

    Matrices are multiplied by one log-normal factor per row and 64 inputs, of mean square one. Groups then have scales
    as unlike as those of trained weights: with plain noise all are nearly equal, and a scale read from the wrong group
    would go unnoticed. Norm weights are near one. Zeros and constants are avoided because power, and with it clocks,
    depend on the values.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
    sigma = 0.02 if len(shape) == 1 else shape[1] ** -0.5
    values = torch.empty(shape, dtype=torch.float32, device=device).normal_(0, sigma, generator=generator)
    if len(shape) == 1:
        return (values + 1 if name.endswith("norm.weight") else values).bfloat16()
    blocks = -(-shape[1] // BLOCK)
    factor = torch.empty((shape[0], blocks), device=device).normal_(0, SPREAD, generator=generator)
    factor = (factor - SPREAD**2).exp()
    return (values * factor.repeat_interleave(BLOCK, dim=1)[:, : shape[1]]).bfloat16()


def _random(model: Any, seed: int, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():  # a tied head is listed once
        yield name, random_weight(name, parameter.shape, seed, device)


def _fill(model: Any, given: Iterator[tuple[str, torch.Tensor]], dtype: torch.dtype, place: str) -> None:
    tied = bool(model.config.tie_word_embeddings)
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name, tensor in given:
        if name == "lm_head.weight" and tied:
            continue
        if wanted.get(name) != tuple(tensor.shape):
            raise RoofgapError(
                f"{place}: {name} {list(tensor.shape)}",
                f"the model has {list(wanted[name]) if name in wanted else 'no such tensor'}",
                "check that weights and manifest belong together",
            )
        owner, _, leaf = name.rpartition(".")
        parameter = nn.Parameter(tensor.to(dtype), requires_grad=False)
        setattr(model.get_submodule(owner), leaf, parameter)
        del wanted[name]
    if wanted:
        raise RoofgapError(
            f"{place}: {next(iter(wanted))}", "is not among the weights", "give every shard of the model"
        )
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight


def place_buffers(model: Any, device: torch.device) -> Any:
    """Replaces the rotary tables, which were computed on the meta device and so have no values."""
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config).to(device)
    return model
