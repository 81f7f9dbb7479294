"""Linears of a decoder: own 4-bit ones, and q|k|v and gate|up joined along N."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from roofgap.kernels.formats.registry import LAYOUTS
from roofgap.kernels.linear import W4Linear


class DecodeLinear(W4Linear):
    """A `W4Linear` that decodes one token with its variant and leaves prefill to a dense matmul.

    A GEMV reads the weight once per row of x; for a prompt of hundreds of rows the weight is rebuilt in x's dtype,
    once, and multiplied by cuBLAS. The rebuilt weight lives for one call.
    """

    def forward(
        self, x: torch.Tensor, *, residual: torch.Tensor | None = None, swiglu: bool = False
    ) -> torch.Tensor:
        """x [..., K] -> [..., N]; a prompt takes no epilogue, the decode step alone does."""
        if x.numel() == x.shape[-1] or residual is not None or swiglu:
            return super().forward(x, residual=residual, swiglu=swiglu)
        return functional.linear(x, self.dense(x.dtype), self.bias)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight [N, K], dequantised in fp32 and rounded once."""
        return LAYOUTS[self.layout].unpack(self.packed).dequantise(dtype)


class JoinedAttention(nn.Module):
    """A transformers attention with one ``qkv_proj`` [q + k + v, hidden] in place of three projections.

    Otherwise the same arithmetic in the same order: it calls the rotary and attention functions of the module it
    replaces. Attributes that attention functions read (``config``, ``layer_idx``, ``head_dim``, ``scaling``,
    ``num_key_value_groups``, ``is_causal``) are kept.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.config: Any = attention.config
        for name in ("layer_idx", "head_dim", "scaling", "num_key_value_groups", "is_causal"):
            setattr(self, name, getattr(attention, name))
        self.widths = [attention.q_proj.out_features, *2 * [attention.k_proj.out_features]]
        self.qkv_proj = join_linears([attention.q_proj, attention.k_proj, attention.v_proj])
        self.o_proj = attention.o_proj
        self._source = sys.modules[type(attention).__module__]

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden_states [1, M, hidden] -> [1, M, hidden]. transformers renamed ``past_key_values`` to ``cache``."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        rows = hidden_states.shape[:-1]
        q, k, v = (
            part.view(*rows, -1, self.head_dim).transpose(1, 2)
            for part in self.qkv_proj(hidden_states).split(self.widths, dim=-1)
        )
        q, k = self._source.apply_rotary_pos_emb(q, k, *position_embeddings)
        held = past_key_values if cache is None else cache
        if held is not None:
            k, v = held.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, self._source.eager_attention_forward
        )
        y, probabilities = attend(
            self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling, sliding_window=None, **kwargs
        )
        return self.o_proj(y.reshape(*rows, -1).contiguous()), probabilities


class JoinedMLP(nn.Module):
    """``down(act(gate x) * up x)`` with one ``gate_up_proj`` [2 * intermediate, hidden]."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up_proj = join_linears([mlp.gate_proj, mlp.up_proj])
        self.down_proj, self.act_fn = mlp.down_proj, mlp.act_fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., hidden] -> [..., hidden]."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return cast("torch.Tensor", self.down_proj(self.act_fn(gate) * up))


def join_linears(linears: list[nn.Linear]) -> nn.Linear:
    """Dense linears of one input as a single one, stacked along N."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    bias = None
    if linears[0].bias is not None:
        bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]), requires_grad=False)
    joined = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    joined.weight, joined.bias = nn.Parameter(weight, requires_grad=False), bias
    return joined


def join_projections(model: Any) -> None:
    """Joins q|k|v and gate|up of every layer, in place; the separate matrices are freed layer by layer."""
    for layer in model.model.layers:
        layer.self_attn = JoinedAttention(layer.self_attn)
        layer.mlp = JoinedMLP(layer.mlp)


MakeLinear = Callable[[nn.Linear], nn.Module]
