"""The numbers behind the shipped manifests, quoted or solved.

``python -m roofgap.shapes.extract.published`` writes the files.

Qwen2.5 base models: torchtune's builders ``qwen2_5_*`` (one per size) and transformers' Qwen2 code, which has
a bias in q, k and v and in nothing else. ORCH-Fusion: the profile README and the portfolio of raihan-js, its
author, and the published total of a sibling model.
"""

from __future__ import annotations

import json
from pathlib import Path

from roofgap.shapes.architecture import Architecture
from roofgap.shapes.manifest import SCHEMA_FILE, Evidence, Manifest, build_manifest, manifest_json

_BUILDERS = "torchtune, models/qwen2_5/_model_builders.py"
_QWEN2_CODE = "transformers, models/qwen2/modeling_qwen2.py"
# layers, hidden, intermediate, heads, kv_heads, vocab, tied, max_context, norm_eps
_QWEN = {
    "0.5b": (24, 896, 4864, 14, 2, 151936, True, 32768, 1e-6),
    "1.5b": (28, 1536, 8960, 12, 2, 151936, True, 131072, 1e-6),
    "3b": (36, 2048, 11008, 16, 2, 151936, True, 32768, 1e-6),
    "7b": (28, 3584, 18944, 28, 4, 152064, False, 131072, 1e-6),
    "14b": (48, 5120, 13824, 40, 8, 152064, False, 131072, 1e-5),
    "32b": (64, 5120, 27648, 40, 8, 152064, False, 131072, 1e-5),
    "72b": (80, 8192, 29568, 64, 8, 152064, False, 131072, 1e-5),
}


def qwen(size: str) -> Manifest:
    """Qwen2.5 of one size, e.g. ``"1.5b"``."""
    layers, hidden, intermediate, heads, kv_heads, vocab, tied, max_context, norm_eps = _QWEN[size]
    architecture = Architecture(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab=vocab,
        tied=tied,
        qkv_bias=True,
        o_bias=False,
        mlp_bias=False,
        max_context=max_context,
        rope_theta=1e6,
        norm_eps=norm_eps,
    )
    coded = ("head_dim", "qkv_bias", "o_bias", "mlp_bias", "layer_norms", "q_norm", "k_norm")
    provenance = {
        field: Evidence(kind="published", source=_QWEN2_CODE if field in coded else _BUILDERS)
        for field in Architecture.model_fields
    }
    provenance["head_dim"] = Evidence(kind="published", source=f"{_QWEN2_CODE}: hidden / heads")
    return build_manifest(
        f"qwen2.5-{size}",
        architecture,
        provenance,
        title=f"Qwen2.5-{size.upper()}",
        source=f"Qwen/Qwen2.5-{size.upper()}; {_BUILDERS}; {_QWEN2_CODE}",
        revision="2024-09 release, base model",
        note="The vocabulary is the padded one: logits of padding rows are read and computed on every step.",
    )


def orch_fusion() -> Manifest:
    """ORCH-Fusion, 272.7M: published but for the MLP width, tying and biases, which its totals fix."""
    architecture = Architecture(
        layers=24,
        hidden=1024,
        intermediate=2816,
        heads=16,
        kv_heads=4,
        head_dim=64,
        vocab=2103,
        tied=True,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        max_context=4096,
    )
    readme = Evidence(kind="published", source="profile README of raihan-js, ORCH Fusion")
    portfolio = Evidence(
        kind="published", source="portfolio of raihan-js, ORCH Fusion: RoPE, GQA, SwiGLU, RMSNorm"
    )
    total = (
        "272.7M = layers * (2 * hidden^2 + 2 * hidden * kv_heads * head_dim + 3 * hidden * intermediate "
        "+ 2 * hidden) + hidden + vocab * hidden"
    )
    sibling = "; with vocab 16,000 the same backbone gives the 286.9M published for ORCH Next.js 350M"
    totals = Evidence(kind="derived", equation="otherwise the published total is missed; see intermediate")
    style = Evidence(
        kind="derived", equation="LLaMA-style with RMSNorm: two a layer, none on queries and keys"
    )
    provenance = {
        **dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "vocab"), readme),
        "head_dim": Evidence(kind="derived", equation="hidden / heads"),
        "intermediate": Evidence(
            kind="derived",
            equation=f"{total} gives 2815.6: 8/3 * hidden rounded up to a multiple of 256{sibling}",
        ),
        **dict.fromkeys(("tied", "qkv_bias", "o_bias", "mlp_bias"), totals),
        **dict.fromkeys(("layer_norms", "q_norm", "k_norm"), style),
        "max_context": portfolio,
    }
    return build_manifest(
        "orch-fusion",
        architecture,
        provenance,
        title="ORCH-Fusion",
        source="raihan-js/orch-fusion, by the author's profile README and portfolio",
        revision="as described in 2026; the checkpoint was not read",
        note="Shapes of ORCH-Fusion, not its weights: speeds are valid on them, perplexities are not.",
    )


def shipped() -> list[Manifest]:
    """Every manifest that roofgap ships."""
    return [*(qwen(size) for size in _QWEN), orch_fusion()]


def schema_json() -> str:
    """The JSON Schema of a manifest."""
    return json.dumps(Manifest.model_json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    folder = Path(__file__).resolve().parents[1] / "manifests"
    folder.mkdir(exist_ok=True)
    (folder / SCHEMA_FILE).write_text(schema_json(), encoding="utf-8")
    for manifest in shipped():
        (folder / f"{manifest.model}.json").write_text(manifest_json(manifest), encoding="utf-8")
