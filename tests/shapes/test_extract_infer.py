"""What shapes and names do and do not tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.extract.found import Found, Shape, Stated, measured
from roofgap.shapes.extract.infer import infer
from roofgap.shapes.extract.source import extract
from roofgap.shapes.matrices import Evidence


def tensors(layers: int = 2, **changes: Shape | None) -> dict[str, Shape]:
    """A small decoder: hidden 32, q 32 and k 16 rows, intermediate 48, vocab 50. None removes a tensor."""
    layer: dict[str, Shape | None] = {
        "q_proj": (32, 32),
        "k_proj": (16, 32),
        "v_proj": (16, 32),
        "o_proj": (32, 32),
        "gate_proj": (48, 32),
        "up_proj": (48, 32),
        "down_proj": (32, 48),
        "input_layernorm": (32,),
        "post_attention_layernorm": (32,),
    }
    outer: dict[str, Shape | None] = {"embed_tokens": (50, 32), "norm": (32,)}
    for name, shape in changes.items():
        (outer if name in (*outer, "lm_head", "wpe") else layer)[name] = shape
    made = {f"{name}.weight": shape for name, shape in outer.items() if shape}
    for index in range(layers):
        for name, shape in layer.items():
            suffix = "" if name.endswith("_bias") else ".weight"
            path = name.replace("_proj_bias", "_proj.bias").replace("norm_bias", "norm.bias")
            if shape:
                made[f"layers.{index}.{path}{suffix}"] = shape
    return made


def option(value: Any, name: str = "--head-dim") -> Stated:
    return Stated(value, Evidence(kind="published", source=f"given as {name}"))


HEAD_DIM = {"head_dim": option(8)}


def run(shapes: dict[str, Shape], options: dict[str, Stated] | None = None, **stated: Stated) -> Any:
    return infer(Found("a file", shapes, stated), HEAD_DIM if options is None else options)


def test_the_small_decoder() -> None:
    architecture, evidence = run(tensors())
    assert (architecture.layers, architecture.hidden, architecture.intermediate) == (2, 32, 48)
    assert (architecture.heads, architecture.kv_heads, architecture.head_dim) == (4, 2, 8)
    assert (architecture.vocab, architecture.tied, architecture.layer_norms) == (50, True, 2)
    assert evidence["hidden"].kind == "measured"
    assert evidence["head_dim"].kind == "published"
    assert evidence["heads"].kind == "derived"
    assert "32 / 8" in (evidence["heads"].equation or "")


def test_head_dim_is_asked_for_and_never_guessed() -> None:
    with pytest.raises(RoofgapError, match="--head-dim") as caught:
        run(tensors(), {})
    assert "32 rows" in caught.value.rule


@pytest.mark.parametrize(
    ("field", "value", "head_dim"), [("head_dim", 8, 8), ("heads", 8, 4), ("kv_heads", 1, 16)]
)
def test_any_one_of_three_fixes_the_heads(field: str, value: int, head_dim: int) -> None:
    architecture, _ = run(tensors(), {field: option(value)})
    assert architecture.head_dim == head_dim
    assert getattr(architecture, field) == value


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"head_dim": 5}, "divide"),
        ({"head_dim": 0}, "divide"),
        ({"head_dim": 32}, "divide"),  # one query head, half a key head
        ({"heads": 4, "head_dim": 4}, "heads=4"),
        ({"heads": 4, "kv_heads": 1}, "kv_heads=1"),
        ({"head_dim": 8, "tied": False}, "tied"),
        ({"head_dim": 8, "max_context": -1}, "max_context"),
        ({"head_dim": 8, "norm_eps": float("nan")}, "norm_eps"),
    ],
)
def test_options_that_contradict(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RoofgapError, match=says):
        run(tensors(), {field: option(value) for field, value in options.items()})


@pytest.mark.parametrize(
    ("field", "value"), [("layers", 3), ("hidden", 64), ("intermediate", 49), ("vocab", 51), ("heads", 5)]
)
def test_metadata_that_contradicts_the_shapes(field: str, value: int) -> None:
    with pytest.raises(RoofgapError, match=f"{field}="):
        infer(Found("a file", tensors(), {field: measured(value, "the metadata")}), HEAD_DIM)


def test_agreeing_statements_settle_on_the_strongest() -> None:
    _, evidence = run(
        tensors(), {"rope_theta": option(1e6)}, rope_theta=measured(1e6, "m"), heads=measured(4, "m")
    )
    assert evidence["rope_theta"].kind == "measured"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"q_proj": None}, "neither names nor shapes"),
        ({"router_proj": (8, 32)}, "neither names nor shapes"),
        ({"down_proj": (32, 47)}, "must be"),
        ({"v_proj": (8, 32)}, "as v of"),
        ({"up_proj": (40, 32)}, "must be"),
        ({"k_proj": (16, 31)}, "as k of"),
        ({"q_proj_bias": (32,)}, "qkv_bias"),
        ({"up_proj_bias": (48,)}, "mlp_bias"),
        ({"o_proj_bias": (31,)}, "32 values"),
        ({"input_layernorm": (31,)}, "hidden size"),
        ({"input_layernorm_bias": (32,)}, "without bias"),
        ({"experts": (8, 48, 32)}, "plain linears"),
        ({"embed_tokens": None}, "embedding"),
        ({"norm": None}, "norms outside"),
        ({"norm": (16,)}, "norms outside"),
        ({"wpe": (512, 32)}, "embedding"),
        ({"lm_head": (51, 32)}, "shape of the embedding"),
        ({"gate_proj": None, "up_proj": (48, 32)}, "as gate_up of"),
        ({"embed_tokens": (0, 32)}, "dimension below 1"),
    ],
)
def test_what_is_no_gated_decoder(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RoofgapError, match=says):
        run(tensors(**changes))


def test_layers_must_be_complete_and_alike() -> None:
    shapes = {name: shape for name, shape in tensors(4).items() if not name.startswith("layers.2.")}
    with pytest.raises(RoofgapError, match="layer 2 is missing"):
        run(shapes)
    with pytest.raises(RoofgapError, match="not alike"):
        run(tensors() | {"layers.1.q_proj.weight": (64, 32)})
    with pytest.raises(RoofgapError, match="only one of layers"):
        run(tensors() | {"layers.1.q_proj.bias": (32,)})
    with pytest.raises(RoofgapError, match="one stack"):
        run({"embed.weight": (50, 32), "norm.weight": (32,)})
    with pytest.raises(RoofgapError, match="one stack"):
        run(tensors() | {"vision.0.weight": (3, 3)})
    with pytest.raises(RoofgapError, match="two tensors"):
        run(tensors() | {"module.norm.weight": (32,)})


def test_packed_weights_are_refused_by_name() -> None:
    shapes = {name.replace("proj.weight", "proj.qweight"): shape for name, shape in tensors().items()}
    with pytest.raises(RoofgapError, match="config"):
        run(shapes)


def test_a_head_beside_the_embedding_is_untied_unless_said() -> None:
    with_head = tensors(lm_head=(50, 32))
    assert not run(with_head)[0].tied
    assert run(with_head, HEAD_DIM | {"tied": option(True)})[0].tied
    with pytest.raises(RoofgapError, match="tied"):
        run(tensors(lm_head=(51, 32)), HEAD_DIM | {"tied": option(True)})


def test_multi_head_attention_by_shape_alone() -> None:
    names = {
        "q_proj": "a",
        "k_proj": "b",
        "v_proj": "c",
        "o_proj": "d",
        "gate_proj": "e",
        "up_proj": "f",
        "down_proj": "g",
    }
    shapes = {}
    for name, shape in tensors(k_proj=(32, 32), v_proj=(32, 32)).items():
        leaf = name.split(".")[-2]
        shapes[name.replace(leaf, names.get(leaf, leaf))] = shape
    assert run(shapes)[0].kv_heads == 4
    biased = shapes | {f"layers.{i}.{leaf}.bias": (32,) for i in range(2) for leaf in "abc"}
    assert (run(biased)[0].qkv_bias, run(biased)[0].o_bias) == (True, False)
    ambiguous = shapes | {f"layers.{i}.{leaf}.bias": (32,) for i in range(2) for leaf in "ab"}
    with pytest.raises(RoofgapError, match="neither names nor shapes"):
        run(ambiguous)


@pytest.mark.parametrize("source", ["gone.pt", "model.txt", "."])
def test_sources_that_are_none(tmp_path: Path, source: str) -> None:
    (tmp_path / "model.txt").write_text("hello")
    with pytest.raises(RoofgapError):
        extract([tmp_path / source], {})


def test_names_that_are_not_text(tmp_path: Path) -> None:
    odd = "\udcff"
    shapes = {name.replace("embed_tokens", f"{odd}.embed"): shape for name, shape in tensors().items()}
    architecture, evidence = run(shapes)
    assert architecture.vocab == 50
    assert odd not in str(evidence["vocab"].source)
    with pytest.raises(RoofgapError, match="printable"):
        extract([tmp_path / f"{odd}.gguf"], {})
