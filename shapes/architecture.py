"""The numbers of a dense decoder-only transformer: grouped-query attention, gated MLP, RMSNorm.

per layer:  q [heads * head_dim, hidden]   k, v [kv_heads * head_dim, hidden]   o [hidden, heads * head_dim]
            gate, up [intermediate, hidden]   down [hidden, intermediate]
once:       embedding [vocab, hidden]   head [vocab, hidden], one storage if ``tied``   final norm [hidden]
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator
from typing_extensions import Self

from roofgap.shapes.errors import RoofgapError

Provenance = Literal["published", "derived", "measured"]
"""Quoted from the authors, solved from quoted numbers by a stated equation, or read from a file."""


class Architecture(BaseModel):
    """Sizes of one model. All counts are of values, not bytes.

    Attributes:
        layers: decoder layers.
        hidden: width of the residual stream.
        intermediate: width of the gated MLP.
        heads: query heads.
        kv_heads: key and value heads; divides ``heads``.
        head_dim: values in one head; ``heads * head_dim`` may differ from ``hidden``.
        vocab: rows of the embedding, padding included.
        tied: whether the head shares the embedding's storage.
        qkv_bias: whether q, k and v add a bias.
        o_bias: whether the output projection adds a bias.
        mlp_bias: whether gate, up and down add a bias.
        layer_norms: norms of ``hidden`` values in one layer.
        q_norm: values in a layer's query norm, 0 without one.
        k_norm: values in a layer's key norm, 0 without one.
        max_context: positions the model was made for, None if unknown.
        rope_theta: base of the rotary frequencies, None if unknown.
        norm_eps: epsilon of the norms, None if unknown.

    Raises:
        RoofgapError: numbers that contradict each other or are not positive.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    layer_norms: int = 2
    q_norm: int = 0
    k_norm: int = 0
    max_context: int | None = None
    rope_theta: float | None = None
    norm_eps: float | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, name) < 1:
                raise RoofgapError(
                    f"{name}={getattr(self, name)}", "must be at least 1", "correct the number"
                )
        for name in ("layer_norms", "q_norm", "k_norm"):
            if getattr(self, name) < 0:
                raise RoofgapError(
                    f"{name}={getattr(self, name)}", "must not be negative", "correct the number"
                )
        for name in ("max_context", "rope_theta", "norm_eps"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise RoofgapError(
                    f"{name}={value}", "must be positive and finite", "correct it or leave it out"
                )
        if self.heads % self.kv_heads:
            raise RoofgapError(
                f"heads={self.heads}, kv_heads={self.kv_heads}",
                "each key/value head must serve the same number of query heads",
                "give a kv_heads that divides heads",
            )
        return self

    @property
    def q_features(self) -> int:
        """Output features of q, input features of o."""
        return self.heads * self.head_dim

    @property
    def kv_features(self) -> int:
        """Output features of k, and of v."""
        return self.kv_heads * self.head_dim

    @property
    def norm_parameters(self) -> int:
        """Values in all norms, the final one included."""
        return self.layers * (self.layer_norms * self.hidden + self.q_norm + self.k_norm) + self.hidden

    @property
    def bias_parameters(self) -> int:
        """Values in all biases."""
        per_layer = (
            self.qkv_bias * (self.q_features + 2 * self.kv_features)
            + self.o_bias * self.hidden
            + self.mlp_bias * (2 * self.intermediate + self.hidden)
        )
        return self.layers * per_layer

    @property
    def parameters(self) -> int:
        """All values, a tied embedding counted once."""
        attention = 2 * self.hidden * (self.q_features + self.kv_features)
        mlp = 3 * self.hidden * self.intermediate
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + mlp) + embeddings + self.bias_parameters + self.norm_parameters

    @property
    def kv_values_per_token(self) -> int:
        """Keys and values that one token adds to the cache, over all layers."""
        return 2 * self.layers * self.kv_features

    def kv_bytes_per_token(self, dtype_bytes: float = 2) -> float:
        """Bytes that one token adds to the cache, and that each later token reads."""
        return self.kv_values_per_token * dtype_bytes
