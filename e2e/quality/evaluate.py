"""What 4 bits cost a model, without a GPU if need be."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from roofgap.e2e.models import ModelSource
from roofgap.e2e.quality.paths import window_scorer
from roofgap.e2e.quality.protocol import Protocol
from roofgap.e2e.quality.scores import Quality, predict, summarise
from roofgap.e2e.quality.text import Text, TokenText, tokenise
from roofgap.kernels.formats.quantise import quantise
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.results import Cell


def evaluate(model: Any, reference: Any, text: TokenText, protocol: Protocol) -> Quality:
    """A model against the unquantised one, both through the window path.

    Args:
        model: causal LM, any dtype, with swapped linears or without.
        reference: the unquantised causal LM.
        text: what is read.
        protocol: how it is cut.

    Raises:
        RoofgapError: no prediction, or NaN logits.
    """
    windows = list(protocol.cut(text.tokens))
    n_bytes = sum(text.bytes_of(window.first, window.scored) for window in windows)
    return summarise(predict(windows, window_scorer(model), window_scorer(reference)), n_bytes)


def load_tokens(source: ModelSource, text: Text) -> TokenText:
    """A text in a model's tokens.

    Raises:
        RoofgapError: random weights, or a model that comes without a tokenizer.
    """
    if not source.has_real_weights:
        raise RoofgapError(f"{source.manifest.model}: {source.note}", "has no quality", "give real weights")
    if source.folder is None:
        raise RoofgapError(
            f"{source.manifest.model}", "comes without a tokenizer", "put tokenizer.json beside its weights"
        )
    from transformers import AutoTokenizer

    return tokenise(text, AutoTokenizer.from_pretrained(source.folder))


def round_linears(model: nn.Module, group_size: int, *, symmetric: bool) -> None:
    """Replaces the weight of every linear but the head by what round-to-nearest at 4 bits makes of it, dense,
    in place.
    """
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and path != "lm_head":
            weight = module.weight.data
            packed = quantise(weight, group_size, symmetric=symmetric)
            module.weight = nn.Parameter(packed.dequantise(weight.dtype), requires_grad=False)


def record(
    quality: Quality, source: ModelSource, text: TokenText, protocol: Protocol, scheme: str
) -> dict[str, Cell]:
    """A flat record of everything that a perplexity must not be quoted without."""
    return {
        "model": source.manifest.model,
        "reference": source.note,
        "scheme": scheme,
        "text": text.source.name,
        "text_sha256": text.source.sha256,
        "protocol": protocol.label,
        **asdict(quality),
    }


def rtn_cost(
    source: ModelSource,
    text: TokenText,
    protocol: Protocol,
    *,
    group_size: int = 64,
    symmetric: bool = False,
    device: torch.device | str = "cpu",
) -> Quality:
    """What round-to-nearest of all linears but the head costs against the weights as they come, in fp32.

    No own kernel takes part: this is the cost of the format, which a kernel can only add to. Minutes on a
    CPU.

    Raises:
        RoofgapError: as ``evaluate``.
    """
    where = torch.device(device)
    reference, model = (source.build(where, torch.float32) for _ in range(2))
    round_linears(model, group_size, symmetric=symmetric)
    return evaluate(model, reference, text, protocol)
