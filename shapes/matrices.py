"""The matrices of a decoder layer and the head, and the evidence for their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from roofgap.shapes.architecture import Architecture, Provenance
from roofgap.shapes.errors import RoofgapError

Role = Literal["q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "head"]
_LAYER = "model.layers.*."
# Architecture numbers that fix a matrix, by role; its provenance is the weakest of theirs.
_DEPENDS: dict[str, tuple[str, ...]] = {
    "q": ("layers", "hidden", "heads", "head_dim", "qkv_bias"),
    "k": ("layers", "hidden", "kv_heads", "head_dim", "qkv_bias"),
    "v": ("layers", "hidden", "kv_heads", "head_dim", "qkv_bias"),
    "o": ("layers", "hidden", "heads", "head_dim", "o_bias"),
    "gate": ("layers", "hidden", "intermediate", "mlp_bias"),
    "up": ("layers", "hidden", "intermediate", "mlp_bias"),
    "down": ("layers", "hidden", "intermediate", "mlp_bias"),
    "head": ("vocab", "hidden", "tied"),
}
_STRENGTH: tuple[Provenance, ...] = ("derived", "published", "measured")


class Record(BaseModel):
    """Frozen, refuses unknown fields, converts nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Evidence(Record):
    """Where one number comes from.

    Attributes:
        kind: published, derived or measured.
        source: who says so, or which file; required unless derived.
        equation: how it follows from other numbers; required if derived.
    """

    kind: Provenance
    source: str | None = None
    equation: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = "equation" if self.kind == "derived" else "source"
        if not getattr(self, needed):
            raise RoofgapError(f"provenance kind {self.kind!r}", f"needs a {needed}", f"add the {needed}")
        return self


class Matrix(Record):
    """One weight matrix [n, k] of a linear ``y[M, n] = x[M, k] @ W^T``, alike in ``count`` places.

    Attributes:
        name: module name, ``*`` standing for the layer index.
        role: what it does in a layer.
        count: how many such matrices a token reads.
        n: output features.
        k: input features.
        bias: whether a bias of n values is added.
        tied: whether it shares the embedding's storage (the head only).
        provenance: the weakest provenance of the numbers above.
    """

    name: str
    role: Role
    count: int = Field(ge=1)
    n: int = Field(ge=1)
    k: int = Field(ge=1)
    bias: bool
    tied: bool
    provenance: Provenance

    @property
    def weights(self) -> int:
        """Values in all ``count`` matrices, without biases."""
        return self.count * self.n * self.k

    @property
    def biases(self) -> int:
        """Bias values in all ``count`` matrices."""
        return self.count * self.n if self.bias else 0


def build_matrices(architecture: Architecture, provenance: Mapping[str, Evidence]) -> tuple[Matrix, ...]:
    """The seven matrices of a layer and the head, as they follow from the architecture."""
    a = architecture
    rows: tuple[tuple[Role, str, int, int, bool], ...] = (
        ("q", "self_attn.q_proj", a.q_features, a.hidden, a.qkv_bias),
        ("k", "self_attn.k_proj", a.kv_features, a.hidden, a.qkv_bias),
        ("v", "self_attn.v_proj", a.kv_features, a.hidden, a.qkv_bias),
        ("o", "self_attn.o_proj", a.hidden, a.q_features, a.o_bias),
        ("gate", "mlp.gate_proj", a.intermediate, a.hidden, a.mlp_bias),
        ("up", "mlp.up_proj", a.intermediate, a.hidden, a.mlp_bias),
        ("down", "mlp.down_proj", a.hidden, a.intermediate, a.mlp_bias),
    )

    def weakest(role: Role) -> Provenance:
        if provenance["hidden"].kind == "measured":
            return "measured"  # the matrix itself was read; head counts only say how it splits
        return min((provenance[field].kind for field in _DEPENDS[role]), key=_STRENGTH.index)

    layer = [
        Matrix(
            name=_LAYER + name,
            role=role,
            count=a.layers,
            n=n,
            k=k,
            bias=bias,
            tied=False,
            provenance=weakest(role),
        )
        for role, name, n, k, bias in rows
    ]
    head = Matrix(
        name="lm_head",
        role="head",
        count=1,
        n=a.vocab,
        k=a.hidden,
        bias=False,
        tied=a.tied,
        provenance=weakest("head"),
    )
    return (*layer, head)


def fuse(matrices: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
    """Joins q|k|v and gate|up along N; the rest is kept."""
    by_role = {matrix.role: matrix for matrix in matrices}

    def joined(role: Role, name: str, parts: tuple[Role, ...]) -> Matrix:
        pieces = [by_role[part] for part in parts]
        kind = min((piece.provenance for piece in pieces), key=_STRENGTH.index)
        update = {"role": role, "name": _LAYER + name, "n": sum(p.n for p in pieces), "provenance": kind}
        return pieces[0].model_copy(update=update)

    return (
        joined("qkv", "self_attn.qkv_proj", ("q", "k", "v")),
        by_role["o"],
        joined("gate_up", "mlp.gate_up_proj", ("gate", "up")),
        by_role["down"],
        by_role["head"],
    )
