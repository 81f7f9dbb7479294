"""The architecture from tensor names and shapes, and from what a source or the user states.

Shapes fix everything but the split of q into heads. Where the source does not state that either, it is
asked for: head_dim cannot be told from [heads * head_dim, hidden].
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import ValidationError

from roofgap.shapes.architecture import Architecture
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.extract.found import Found, Shape, Stated, clip, measured, refuse
from roofgap.shapes.extract.names import (
    Stack,
    embedding_and_head,
    is_k_norm,
    is_q_norm,
    read_stack,
    roles,
    split_tensors,
)
from roofgap.shapes.matrices import Evidence

_HEADS = ("head_dim", "heads", "kv_heads")


def infer(found: Found, options: Mapping[str, Stated]) -> tuple[Architecture, dict[str, Evidence]]:
    """Works out the architecture, with evidence for each number.

    Args:
        found: what an extractor read.
        options: numbers the user states, by field.

    Raises:
        RoofgapError: tensors that are not a gated, grouped-query decoder's; numbers that contradict each
            other; or a number that nothing states, naming the option that gives it.
    """
    if any(size < 1 for shape in found.shapes.values() for size in shape):
        raise refuse(found.place, "holds a tensor with a dimension below 1")
    stack = read_stack(found.shapes, found.place)
    numbers = _outer_numbers(stack, found, options.get("tied"))
    layer, q_features, kv_features = _layer_numbers(stack, int(numbers["hidden"].value), found.place)
    numbers |= layer
    settled = {
        field: _settle(field, number, found.stated.get(field), options.get(field))
        for field, number in numbers.items()
    }
    settled |= _heads(q_features, kv_features, settled["q_norm"], found, options)
    for field in ("max_context", "rope_theta", "norm_eps"):
        stated = [number for number in (found.stated.get(field), options.get(field)) if number is not None]
        if stated:
            settled[field] = _settle(field, *stated)
    try:
        architecture = Architecture.model_validate({field: number.value for field, number in settled.items()})
    except ValidationError as error:
        first = error.errors()[0]
        raise refuse(f"{found.place}: {first['loc'][0]}={clip(first['input'])}", first["msg"]) from error
    return architecture, {field: number.evidence for field, number in settled.items()}


def _layer_numbers(stack: Stack, hidden: int, place: str) -> tuple[dict[str, Stated], int, int]:
    """Numbers that one layer fixes, and the output features of q and of k."""
    matrices, biased, norms = split_tensors(stack.layer, place)
    role = roles(matrices, biased, hidden, place)
    shape = {name: matrices[path] for name, path in role.items()}
    q_features = shape["o"][1]
    intermediate = shape["down"][1]
    kv_features = (shape["qkv"][0] - q_features) // 2 if "qkv" in shape else shape["k"][0]
    expected: dict[str, Shape] = {
        "q": (q_features, hidden),
        "k": (kv_features, hidden),
        "v": (kv_features, hidden),
        "qkv": (q_features + 2 * kv_features, hidden),
        "o": (hidden, q_features),
        "gate": (intermediate, hidden),
        "up": (intermediate, hidden),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
    }
    for name, path in role.items():
        if shape[name] != expected[name] or min(expected[name]) < 1:
            raise refuse(
                f"{place}: {clip(path)} {list(shape[name])}",
                f"as {name} of a gated, grouped-query layer it must be {list(expected[name])}",
            )
    numbers = {
        "layers": measured(stack.layers, f"{place}: numbered layers"),
        "intermediate": measured(intermediate, f"{place}: columns of {clip(role['down'])}"),
    }
    for field, members in (
        ("qkv_bias", ("q", "k", "v", "qkv")),
        ("o_bias", ("o",)),
        ("mlp_bias", ("gate", "up", "gate_up", "down")),
    ):
        flags = {role[name] in biased for name in members if name in role}
        if len(flags) != 1:
            raise refuse(place, f"{field}: some of {', '.join(members)} have a bias and some have none")
        numbers[field] = measured(flags.pop(), f"{place}: bias tensors of a layer")
    q_norm = [size for path, size in norms.items() if is_q_norm(path)]
    k_norm = [size for path, size in norms.items() if is_k_norm(path)]
    plain = [size for path, size in norms.items() if not is_q_norm(path) and not is_k_norm(path)]
    if len(q_norm) > 1 or len(k_norm) > 1 or any(size != hidden for size in plain):
        raise refuse(f"{place}: norms of {sorted(norms.values())}", f"must be of the hidden size, {hidden}")
    numbers["layer_norms"] = measured(len(plain), f"{place}: norms of a layer")
    numbers["q_norm"] = measured(sum(q_norm), f"{place}: query norm of a layer")
    numbers["k_norm"] = measured(sum(k_norm), f"{place}: key norm of a layer")
    return numbers, q_features, kv_features


def _outer_numbers(stack: Stack, found: Found, option: Stated | None) -> dict[str, Stated]:
    """Hidden size, vocabulary and tying, from the embedding, the head and the final norm."""
    place = found.place
    matrices, biased, norms = split_tensors(stack.outer, place)
    embedding, head = embedding_and_head(matrices, place)
    vocab, hidden = matrices[embedding]
    if biased:
        raise refuse(f"{place}: {clip(min(biased))}", "has a bias, which the head of this decoder does not")
    if list(norms.values()) != [hidden]:
        raise refuse(
            f"{place}: norms outside the layers, of {sorted(norms.values())}", f"must be one of {hidden}"
        )
    if head is None:
        tied = measured(True, f"{place}: no tensor for the head")
    elif matrices[head] != matrices[embedding]:
        claim = " all the more so if it is tied" if option and option.value else ""
        raise refuse(
            f"{place}: {clip(head)} {list(matrices[head])}",
            f"the head must have the shape of the embedding, {list(matrices[embedding])}{claim}",
        )
    elif (same := found.same(embedding, head)) is not None:
        verb = "equals" if same else "differs from"
        tied = measured(same, f"{place}: {clip(head)} {verb} {clip(embedding)}")
    else:
        tied = option or measured(False, f"{place}: {clip(head)} is stored beside {clip(embedding)}")
    return {
        "hidden": measured(hidden, f"{place}: columns of {clip(embedding)}"),
        "vocab": measured(vocab, f"{place}: rows of {clip(embedding)}"),
        "tied": tied,
    }


def _heads(
    q_features: int, kv_features: int, q_norm: Stated, found: Found, options: Mapping[str, Stated]
) -> dict[str, Stated]:
    """head_dim, heads and kv_heads from any one of them."""
    known: dict[str, Stated] = {}
    for field in _HEADS:
        numbers = [number for number in (found.stated.get(field), options.get(field)) if number is not None]
        if field == "head_dim" and 0 < q_norm.value < q_features:
            numbers.insert(0, measured(q_norm.value, f"{found.place}: length of the query norm"))
        if numbers:
            known[field] = _settle(field, *numbers)
    if not known:
        raise RoofgapError(
            f"{found.place}: head_dim",
            f"q has {q_features} rows and k has {kv_features}, which fit several head sizes",
            "state it with --head-dim (or --heads, or --kv-heads)",
        )
    field, number = next(iter(known.items()))
    rows = kv_features if field == "kv_heads" else q_features
    head_dim = (
        int(number.value) if field == "head_dim" else _divide(rows, int(number.value), field, found.place)
    )
    k_or_q = "k" if field == "kv_heads" else "q"
    solved = {
        "head_dim": (head_dim, f"rows of {k_or_q} / {field} = {rows} / {number.value}"),
        "heads": (
            _divide(q_features, head_dim, "head_dim", found.place),
            f"rows of q / head_dim = {q_features} / {head_dim}",
        ),
        "kv_heads": (
            _divide(kv_features, head_dim, "head_dim", found.place),
            f"rows of k / head_dim = {kv_features} / {head_dim}",
        ),
    }
    return {
        field: _settle(field, known.get(field), Stated(value, Evidence(kind="derived", equation=equation)))
        for field, (value, equation) in solved.items()
    }


def _divide(rows: int, by: int, field: str, place: str) -> int:
    if by < 1 or rows % by:
        raise RoofgapError(
            f"{place}: {field}={by}", f"must divide the {rows} rows of the projection", "correct the number"
        )
    return rows // by


def _settle(field: str, *numbers: Stated | None) -> Stated:
    """The first of several statements of one number, which must agree."""
    given = [number for number in numbers if number is not None]
    for other in given[1:]:
        agree = (
            math.isclose(given[0].value, other.value, rel_tol=1e-6)  # GGUF keeps floats in 32 bits
            if isinstance(given[0].value, float)
            else given[0].value == other.value
        )
        if not agree:
            first = given[0].evidence.source or given[0].evidence.equation
            second = other.evidence.source or other.evidence.equation
            raise RoofgapError(
                f"{field}={given[0].value} ({first}) and {field}={other.value} ({second})",
                "must agree",
                "correct the option, or the source that is wrong",
            )
    return given[0]
