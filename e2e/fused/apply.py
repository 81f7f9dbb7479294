"""Puts the fused operators into a transformers decoder, for steps of one token; anything else runs as before.

A layer is then 4 GEMVs (7 where q|k|v and gate|up are not joined), 2 norms, 2 launches of attention and 1
SwiGLU, and no mask, position or cache bookkeeping besides. The residual add of a layer's end lies in the next
layer's first norm. With ``epilogues``, linears that can do it apply the SwiGLU and add to the residual stream
themselves: 8 launches, and norms that do not add.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from roofgap.e2e.fused.attention import decode_attention
from roofgap.e2e.fused.norm import add_rms_norm
from roofgap.e2e.fused.swiglu import swiglu
from roofgap.shapes.errors import RoofgapError

# Rotary types whose tables depend on the position alone. The others change with the length of the sequence.
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")
DECODERS = ("llama", "qwen2")


def apply_fused_operators(model: Any, *, epilogues: bool = False) -> None:
    """Replaces the base model's forward, in place. ``remove_fused_operators`` restores it.

    A step of one token with a static cache takes the new path: slot and context from the cache's own counter,
    as in transformers, the rotary angle from ``position_ids`` or else from that counter.

    Args:
        model: a causal LM with transformers' Llama or Qwen2 modules, its linears swapped or joined
            (``self_attn.qkv_proj``, ``mlp.gate_up_proj``) or not, on its final device.
        epilogues: whether linears that ``fuses`` says can do so apply SwiGLU and residual add.

    Raises:
        RoofgapError: another architecture, activation, rotary type, head dimension or dtype.
    """
    refuse_model(model)
    base = model.model
    original = base.forward
    decode = _decoder(model, *rotary_tables(model), epilogues)

    def forward(input_ids: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("past_key_values") or kwargs.get("cache")
        if args or input_ids is None or input_ids.numel() != 1 or not _is_filled(cache):
            return original(input_ids, *args, **kwargs)
        if isinstance(kwargs.get("attention_mask"), torch.Tensor) and kwargs["attention_mask"].ndim == 2:
            raise RoofgapError(
                "a padding mask", "is not read by the fused decode step", "decode one unpadded sequence"
            )
        return decode(input_ids, kwargs.get("position_ids"), cache)

    base.forward = forward


def remove_fused_operators(model: Any) -> None:
    """Undoes ``apply_fused_operators``; does nothing to a model without them."""
    vars(model.model).pop("forward", None)


def rotary_tables(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [max positions, D] in the model's dtype, from its own rotary module, so that both paths
    agree.
    """
    weight = model.model.embed_tokens.weight
    positions = torch.arange(model.config.max_position_embeddings, device=weight.device)
    with torch.no_grad():
        cos, sin = model.model.rotary_emb(weight[:1], positions[None])
    return cos[0].contiguous(), sin[0].contiguous()


def refuse_model(model: Any) -> None:
    """Refuses what the fused step does not compute.

    Raises:
        RoofgapError: naming what differs.
    """
    config = model.config
    remedy = "run this arm without fused operators"
    if config.model_type not in DECODERS:
        raise RoofgapError(
            f"model_type={config.model_type!r}", f"must be one of {', '.join(DECODERS)}", remedy
        )
    if config.hidden_act not in ("silu", "swish"):
        raise RoofgapError(f"hidden_act={config.hidden_act!r}", "must be silu", remedy)
    rotary = config.rope_parameters["rope_type"]
    if rotary not in FIXED_ROTARY:
        raise RoofgapError(f"rope_type={rotary!r}", f"must be one of {', '.join(FIXED_ROTARY)}", remedy)
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise RoofgapError("sliding_attention layers", "must all be full attention", remedy)
    head_dim = model.model.layers[0].self_attn.head_dim
    if head_dim & (head_dim - 1) or not 16 <= head_dim <= 256:
        raise RoofgapError(f"head_dim={head_dim}", "must be a power of two from 16 to 256", remedy)
    dtype = model.model.embed_tokens.weight.dtype
    if dtype not in (torch.float16, torch.bfloat16):
        raise RoofgapError(f"{dtype}".removeprefix("torch."), "must be fp16 or bf16", "cast the model")


def _is_filled(cache: Any) -> bool:
    """Whether a cache is static and has its tensors: transformers allocates them in the first forward."""
    from transformers.cache_utils import StaticLayer

    layers = getattr(cache, "layers", ())
    return bool(layers) and all(type(layer) is StaticLayer and layer.is_initialized for layer in layers)


def _decoder(model: Any, cos: torch.Tensor, sin: torch.Tensor, epilogues: bool) -> Callable[..., Any]:
    from transformers.modeling_outputs import BaseModelOutputWithPast

    base = model.model

    def decode(input_ids: torch.Tensor, position_ids: torch.Tensor | None, cache: Any) -> Any:
        residual = base.embed_tokens(input_ids).view(1, -1)
        x: torch.Tensor | None = None
        for layer, held in zip(base.layers, cache.layers, strict=True):
            norm, attention = layer.input_layernorm, layer.self_attn
            normed, residual = add_rms_norm(x, residual, norm.weight, norm.variance_epsilon)
            q, k, v = _project(attention, normed)
            attended = decode_attention(
                q,
                k,
                v,
                cos=cos,
                sin=sin,
                position=held.cumulative_length if position_ids is None else position_ids,
                keys=held.keys,
                values=held.values,
                length=held.cumulative_length,
                scale=attention.scaling,
            )
            x, residual = _add(attention.o_proj, attended, residual, epilogues)
            norm, mlp = layer.post_attention_layernorm, layer.mlp
            normed, residual = add_rms_norm(x, residual, norm.weight, norm.variance_epsilon)
            x, residual = _add(mlp.down_proj, _activate(mlp, normed, epilogues), residual, epilogues)
        normed, _ = add_rms_norm(x, residual, base.norm.weight, base.norm.variance_epsilon)
        output = BaseModelOutputWithPast(last_hidden_state=normed.view(1, 1, -1))
        output["cache" if "cache" in type(output).__dataclass_fields__ else "past_key_values"] = cache
        return output

    return decode


def _project(attention: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of a token, as parts of one output where the projections are joined."""
    if hasattr(attention, "qkv_proj"):
        q, k, v = attention.qkv_proj(x).split(attention.widths, dim=-1)
        return q, k, v
    return attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)


def _activate(mlp: Any, x: torch.Tensor, epilogues: bool) -> torch.Tensor:
    """silu(gate) * up of a token."""
    if not hasattr(mlp, "gate_up_proj"):
        return swiglu(mlp.gate_proj(x), mlp.up_proj(x))
    if epilogues and _fuses(mlp.gate_up_proj, "swiglu"):
        return cast("torch.Tensor", mlp.gate_up_proj.swiglu(x))
    gate, up = mlp.gate_up_proj(x).chunk(2, dim=-1)
    return swiglu(gate, up)


def _add(
    linear: Any, x: torch.Tensor, residual: torch.Tensor, epilogues: bool
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """What the next norm must still add to the residual stream, and the stream."""
    if epilogues and _fuses(linear, "residual"):
        return None, linear.add_to(residual, x)
    return linear(x), residual


def _fuses(linear: Any, epilogue: str) -> bool:
    """Whether a linear, whosever it is, can do an epilogue in its own launches."""
    return hasattr(linear, "fuses") and bool(linear.fuses(epilogue))
