"""Which tensor is which: layers from the integer in a name, roles from names, else from shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from roofgap.shapes.extract.found import Shape, clip, refuse

Pair: TypeAlias = tuple[int, int]
"""Shape of a linear's weight, [out, in]."""

_NUMBERED = re.compile(r"(?P<prefix>(?:[^.]*\.)*?)(?P<index>[0-9]{1,6})\.(?P<rest>.+)", re.DOTALL)
_BUFFERS = re.compile(
    r"(^|\.)(inv_freq|freqs_cis|rope_freqs|(cos|sin)(_cached)?|masked_bias|mask|causal_mask)(\.weight)?$"
)
_PACKED = re.compile(
    r"(^|[._])(qweight|qzeros|weight_packed|weight_scale|absmax|quant_map|quant_state)(\.|$)"
)
_EMBEDDING = re.compile(r"(^|\.|_)(embed|embedding|embeddings|embed_tokens|embd|tok_emb|wte|emb|embed_in)$")
_HEAD = re.compile(r"(^|\.)(lm_head|head|output|out_head|embed_out|unembed|output_layer)$")
_Q_NORM = re.compile(r"(^|[._])(q_norm|q_layernorm|query_norm|norm_q)$")
_K_NORM = re.compile(r"(^|[._])(k_norm|k_layernorm|key_norm|norm_k)$")
_ATTENTION = r"(attn|attention|self_attn|sa)\w*\.(c_proj|out_proj|proj|dense|out|output|output_proj)"
_MLP = r"(mlp|ffn|feed_forward|ff)\w*\.(c_proj|out_proj|proj|dense_4h_to_h|out)"
_ROLES = {
    role: re.compile(rf"(^|\.)({names})$")
    for role, names in {
        "qkv": r"qkv|qkv_proj|wqkv|Wqkv|c_attn|attn_qkv|query_key_value|in_proj",
        "q": r"q|q_proj|wq|attn_q|query|to_q",
        "k": r"k|k_proj|wk|attn_k|key|to_k",
        "v": r"v|v_proj|wv|attn_v|value|to_v",
        "o": rf"o|o_proj|wo|attn_output|to_out|{_ATTENTION}",
        "gate_up": r"gate_up|gate_up_proj|ffn_gate_up|w12|w13",
        "gate": r"gate|gate_proj|w1|ffn_gate",
        "up": r"up|up_proj|w3|ffn_up",
        "down": rf"down|down_proj|w2|ffn_down|{_MLP}",
    }.items()
}
_COMPLETE = [
    {*attention, "o", *mlp, "down"}
    for attention in (("q", "k", "v"), ("qkv",))
    for mlp in (("gate", "up"), ("gate_up",))
]


@dataclass(frozen=True, slots=True)
class Stack:
    """A decoder's tensors, sorted by where they sit.

    Attributes:
        layers: how many layers, all alike.
        layer: tensors of one layer, by name within it.
        outer: tensors outside the layers.
    """

    layers: int
    layer: dict[str, Shape]
    outer: dict[str, Shape]


def unwrapped(name: str) -> str:
    """The name without what DistributedDataParallel and torch.compile put in front of it."""
    parts = [
        part for part in name.split(".") if part != "_orig_mod"
    ]  # torch.compile, of the model or of a layer
    while parts and parts[0] == "module":  # DistributedDataParallel
        parts.pop(0)
    return ".".join(parts)


def read_stack(shapes: Mapping[str, Shape], place: str) -> Stack:
    """Splits tensors into layers and the rest; buffers (rotary tables, causal masks) are left out.

    Raises:
        RoofgapError: no layers, missing layers, layers that differ, or more than one stack of layers.
    """
    stacks: dict[str, dict[int, dict[str, Shape]]] = {}
    outer: dict[str, Shape] = {}
    for raw, shape in shapes.items():
        name = unwrapped(raw)
        if _BUFFERS.search(name) or (name.endswith(".bias") and len(shape) > 1):
            continue
        if _PACKED.search(name):
            raise refuse(
                f"{place}: {clip(raw)}",
                "is a quantised weight, whose tensors do not have the shape of the matrix",
                "extract from the model's config.json",
            )
        match = _NUMBERED.fullmatch(name)
        group = outer
        if match:
            group = stacks.setdefault(match["prefix"], {}).setdefault(int(match["index"]), {})
            name = match["rest"]
        if name in group:
            raise refuse(f"{place}: {clip(raw)}", "two tensors have this name once wrappers are removed")
        group[name] = shape
    if len(stacks) != 1:
        listed = ", ".join(clip(prefix) for prefix in sorted(stacks)[:4]) or "none"
        raise refuse(place, f"must hold one stack of numbered layers, found {listed}")
    (found,) = stacks.values()
    if max(found) != len(found) - 1:
        missing = next(index for index in range(len(found)) if index not in found)
        raise refuse(
            place,
            f"layer {missing} is missing although layer {max(found)} is there",
            "give every shard, or the folder that holds them",
        )
    for index, tensors in found.items():
        for name in tensors.keys() ^ found[0].keys():
            raise refuse(
                f"{place}: {clip(name)}", f"is in only one of layers 0 and {index}; layers must be alike"
            )
        for name, shape in tensors.items():
            if shape != found[0][name]:
                raise refuse(
                    f"{place}: {clip(name)}",
                    f"is {list(found[0][name])} in layer 0, {list(shape)} in layer {index}: not alike",
                )
    return Stack(len(found), found[0], outer)


def split_tensors(
    tensors: Mapping[str, Shape], place: str
) -> tuple[dict[str, Pair], set[str], dict[str, int]]:
    """Separates matrices, their biases and norms.

    Returns:
        Matrices by module path, the paths that have a bias, and the lengths of norms by module path.

    Raises:
        RoofgapError: a tensor that is none of these.
    """
    matrices = {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in tensors.items()
        if len(shape) == 2
    }
    biased: set[str] = set()
    norms: dict[str, int] = {}
    for name, shape in tensors.items():
        if len(shape) == 2:
            continue
        module = name.removesuffix(".bias")
        if len(shape) != 1 or (name.endswith(".bias") and module not in matrices):
            raise refuse(
                f"{place}: {clip(name)} {list(shape)}",
                "is not a part of a decoder with plain linears and norms without bias",
            )
        if name.endswith(".bias"):
            if shape[0] != matrices[module][0]:
                raise refuse(
                    f"{place}: {clip(name)} {list(shape)}", f"must have {matrices[module][0]} values"
                )
            biased.add(module)
        else:
            norms[name.rpartition(".")[0] or name] = shape[0]
    return matrices, biased, norms


def is_q_norm(path: str) -> bool:
    """Whether a norm acts on queries."""
    return bool(_Q_NORM.search(path))


def is_k_norm(path: str) -> bool:
    """Whether a norm acts on keys."""
    return bool(_K_NORM.search(path))


def embedding_and_head(matrices: Mapping[str, Pair], place: str) -> tuple[str, str | None]:
    """Paths of the embedding and of the head, the latter None if only one matrix is there.

    Raises:
        RoofgapError: no matrix, more than two, or two that names do not tell apart.
    """
    names = list(matrices)
    if len(names) == 1 and not _HEAD.search(names[0]):
        return names[0], None
    heads = [name for name in names if _HEAD.search(name)]
    embeddings = [name for name in names if _EMBEDDING.search(name) and name not in heads]
    if len(names) == 2 and len(heads) <= 1 and len(embeddings) <= 1 and (heads or embeddings):
        head = heads[0] if heads else next(name for name in names if name != embeddings[0])
        return next(name for name in names if name != head), head
    listed = ", ".join(clip(name) for name in names[:6]) or "none"
    raise refuse(
        place,
        f"outside the layers there must be an embedding and at most a head, both by name; found {listed}",
    )


def roles(matrices: Mapping[str, Pair], biased: set[str], hidden: int, place: str) -> dict[str, str]:
    """Role to path, for one layer: q, k, v or qkv; o; gate, up or gate_up; down.

    Raises:
        RoofgapError: neither names nor shapes tell.
    """
    named = _roles_by_name(matrices) or _roles_by_shape(matrices, biased, hidden)
    if named is None:
        listed = (
            ", ".join(f"{clip(path)} {list(shape)}" for path, shape in list(matrices.items())[:9]) or "none"
        )
        raise refuse(
            place,
            f"neither names nor shapes tell which matrices are q, k, v, o, gate, up and down: {listed}",
            "rename them as Hugging Face does (self_attn.q_proj, ... mlp.down_proj), or use config.json",
        )
    return named


def _roles_by_name(matrices: Mapping[str, Pair]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for path in matrices:
        role = next((role for role, pattern in _ROLES.items() if pattern.search(path)), None)
        if role is None or role in found:
            return None
        found[role] = path
    if found.keys() >= {"gate", "up", "down"}:
        # w1, w2, w3 are numbered differently by different authors; the transposed one is down.
        trio = [found["gate"], found["up"], found["down"]]
        odd = [path for path in trio if sum(matrices[path] == matrices[other] for other in trio) == 1]
        if len(odd) == 1:
            found["down"] = odd[0]
            found["gate"], found["up"] = (path for path in trio if path != odd[0])
    elif "gate" not in found and "up" in found and "gate_up" not in found:
        found["gate_up"] = found.pop("up")  # GGUF stores a fused gate and up under the name of up
    elif "up" not in found and "gate" in found and "gate_up" not in found:
        found["gate_up"] = found.pop("gate")
    return found if set(found) in _COMPLETE else None


def _roles_by_shape(matrices: Mapping[str, Pair], biased: set[str], hidden: int) -> dict[str, str] | None:
    downs = [path for path, (n, k) in matrices.items() if n == hidden and k != hidden]
    if len(downs) != 1 or any(k != hidden for path, (_, k) in matrices.items() if path != downs[0]):
        return None
    found = {"down": downs[0]}
    intermediate = matrices[downs[0]][1]
    split = [path for path, shape in matrices.items() if shape == (intermediate, hidden)]
    fused = [path for path, shape in matrices.items() if shape == (2 * intermediate, hidden)]
    if len(split) == 2 and not fused:
        found["gate"], found["up"] = split
    elif len(fused) == 1 and not split:
        found["gate_up"] = fused[0]
    else:
        return None
    rest = [path for path in matrices if path not in found.values()]
    square = [path for path in rest if matrices[path][0] == hidden]
    other = [path for path in rest if path not in square]
    if len(square) == 2 and len(other) == 2 and matrices[other[0]] == matrices[other[1]]:
        # q has a bias where k and v have one; if both squares agree it does not matter which is which.
        square.sort(key=lambda path: (path in biased) != (other[0] in biased))
        found |= {"q": square[0], "o": square[1], "k": other[0], "v": other[1]}
    elif len(square) == 4 and not other:
        with_bias = [path for path in square if path in biased]
        if len(with_bias) == 2:
            return None
        square.sort(key=lambda path: (path in biased) == (len(with_bias) == 1))
        found |= dict(zip("qkvo", square, strict=True))
    elif len(square) == 1 and len(other) == 1:
        found |= {"o": square[0], "qkv": other[0]}
    else:
        return None
    return found
