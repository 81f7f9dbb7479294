"""What an arm's logits are compared with: the same quantised weights in an fp32 forward pass.

The weights are quantised anew from the dense ones and never packed, so that packing, layouts, the swap and every kernel
are under test. The gate asks whether what is timed computes what it should, not whether 4 bits are enough.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from roofgap.e2e.arms import Build
from roofgap.e2e.models import ModelSource, empty_model, place_buffers
from roofgap.e2e.peers import ZERO_MODES, canonical
from roofgap.shapes.problem import ZeroMode

DECIDED_MARGIN = 0.1
"""Of the standard deviation of a position's logits. Rounding the residual stream to bf16 moves logits by 1-2 % of it in
28 layers, so that a smaller gap between the first two tokens is a coin toss that says nothing of the kernel."""
LEAST_AGREEMENT = 0.95
MOST_LOGIT_ERROR = 0.10

Dense = Callable[[nn.Linear], torch.Tensor]
"""From a dense linear to the fp32 weight [N, K] that its 4-bit form stands for."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How an arm's logits compare with the reference's.

    Attributes:
        top1: share of the decided positions with the same most likely token.
        decided: positions where the reference prefers its first token by more than rounding can undo.
        positions: all positions compared.
        logit_error: ||logits - reference|| / ||reference - its mean||.
        first_flip: the first decided position with another token, None if there is none.
        flip_margin: the reference's margin there, in standard deviations of its logits.
    """

    top1: float
    decided: int
    positions: int
    logit_error: float
    first_flip: int | None = None
    flip_margin: float | None = None

    @property
    def fault(self) -> str | None:
        """Why the arm must not be timed, or None."""
        if self.decided and self.top1 < LEAST_AGREEMENT:
            return (
                f"top-1 agreement {self.top1:.1%} of {self.decided} decided positions is below {LEAST_AGREEMENT:.0%}; "
                f"first flip at {self.first_flip} with a margin of {self.flip_margin:.2f} sd"
            )
        if not self.logit_error <= MOST_LOGIT_ERROR:
            return f"logits differ by {self.logit_error:.1%} from the reference, more than {MOST_LOGIT_ERROR:.0%}"
        return None


def compare_logits(logits: torch.Tensor, reference: torch.Tensor) -> Agreement:
    """Compares [T, vocab] with [T, vocab], position by position."""
    got, want = logits.float(), reference.float()
    first, second = want.topk(2, dim=-1).values.unbind(-1)
    margins = (first - second) / want.std(-1)
    decided = margins > DECIDED_MARGIN
    agrees = got.argmax(-1) == want.argmax(-1)
    flips = (decided & ~agrees).nonzero().flatten()
    count = int(decided.sum())
    centred = want - want.mean(-1, keepdim=True)
    flip = int(flips[0]) if len(flips) else None
    return Agreement(
        top1=float((agrees & decided).sum()) / count if count else 1.0,
        decided=count,
        positions=len(want),
        logit_error=float((got - want).norm() / centred.norm()),
        first_flip=flip,
        flip_margin=None if flip is None else float(margins[flip]),
    )


class ReferenceLinear(nn.Module):
    """A linear whose weight is quantised and dequantised in each call: one fp32 matrix in memory at a time."""

    def __init__(self, source: nn.Linear, dense: Dense) -> None:
        super().__init__()
        self.source, self._dense = source, dense

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x fp32 [..., K] -> fp32 [..., N]."""
        bias = None if self.source.bias is None else self.source.bias.float()
        return functional.linear(x, self._dense(self.source), bias)


def stored_as(build: Build, group_size: int, zero_mode: ZeroMode) -> Dense:
    """What a build's linears mean, by round-to-nearest as its format does it."""
    if build.weights == "nf4":
        return _nf4
    if build.weights == "bf16":
        return as_given
    mode = ZERO_MODES.get(build.weights, zero_mode)
    return lambda linear: canonical(linear, group_size, mode).dequantise(torch.float32)


def as_given(linear: nn.Linear) -> torch.Tensor:
    """The weight itself, unquantised."""
    return linear.weight.float()


def _nf4(linear: nn.Linear) -> torch.Tensor:
    bnb: Any = importlib.import_module("bitsandbytes.functional")
    codes, state = bnb.quantize_4bit(linear.weight.data, quant_type="nf4", compress_statistics=False)
    return cast("torch.Tensor", bnb.dequantize_4bit(codes, state)).float()


def reference_model(source: ModelSource, device: torch.device, linears: Dense, head: Dense) -> Any:
    """An fp32 causal LM whose linears act as quantised; the dense bf16 model is held beside it.

    Raises:
        RoofgapError: as ``ModelSource.build``.
    """
    dense = source.build(device)
    model = empty_model(source.manifest.architecture, torch.float32)
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            parent, _, leaf = path.rpartition(".")
            owner = model.get_submodule(parent) if parent else model
            given = head if path == "lm_head" else linears
            setattr(owner, leaf, ReferenceLinear(dense.get_submodule(path), given))
        elif parameters := dict(module.named_parameters(recurse=False)):
            for name in parameters:
                values = getattr(dense.get_submodule(path), name).float()
                setattr(module, name, nn.Parameter(values, requires_grad=False))
    return place_buffers(model, device)


def reference_logits(
    source: ModelSource, build: Build, tokens: torch.Tensor, *, group_size: int, zero_mode: ZeroMode
) -> torch.Tensor:
    """fp32 logits [T, vocab] of ``tokens`` [1, T] with a build's weights, in one causal pass without a cache."""
    linears = stored_as(build, group_size, zero_mode)
    model = reference_model(source, tokens.device, linears, linears if build.head_w4 else as_given)
    with torch.inference_mode():
        return cast("torch.Tensor", model(input_ids=tokens, use_cache=False).logits[0])
