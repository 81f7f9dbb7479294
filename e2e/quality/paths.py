"""Two ways to the same predictions: a whole window at once (M > 1), and token by token through the step that
is timed.

A swapped model has different kernels on the two: prefill multiplies dequantised weights, decoding runs the
GEMV and the fused operators. A perplexity of the first says nothing of the second until both are seen to
agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from roofgap.e2e.quality.protocol import Window
from roofgap.e2e.quality.scores import Predictions, Scorer, predict
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.e2e.decoder import Decoder


@dataclass(frozen=True, slots=True)
class PathTolerance:
    """How far the nats of one prediction may differ between the paths.

    Attributes:
        mean: of the absolute mean difference: a bias, which rounding does not have.
        rms: of the root mean square difference.
    """

    mean: float
    rms: float


PATH_TOLERANCE = {
    torch.float32: PathTolerance(1e-4, 1e-3),
    torch.float16: PathTolerance(2.5e-3, 2.5e-2),
    torch.bfloat16: PathTolerance(2e-2, 2e-1),
}
"""Both paths round the residual stream to the dtype after every block, at different places, and may differ by
what the dtype costs against fp32. Measured with SmolLM2-135M (30 layers; 191 predictions of technical text;
torch on a CPU), decode against window: fp32 6e-6 rms, fp16 0.009, bf16 0.063, where fp16 and bf16 against fp32
are 0.007 and 0.052 rms; in the mean bf16 -0.002. Allowed is three times that, and a tenth of it in the mean:
rounding has no bias.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathAgreement:
    """The decode path against the window path of one model, over the same predictions.

    Attributes:
        n_tokens: predictions compared.
        mean: mean difference of their nats, decode - window.
        rms: root mean square difference.
        top1: share with the same most likely token.
        tolerance: what was allowed.
    """

    n_tokens: int
    mean: float
    rms: float
    top1: float
    tolerance: PathTolerance

    @property
    def fault(self) -> str | None:
        """Why the paths do not compute the same model, or None."""
        if abs(self.mean) <= self.tolerance.mean and self.rms <= self.tolerance.rms:
            return None
        return (
            f"decode and window path differ by {self.mean:+.4f} nats in the mean (allowed {self.tolerance.mean:g}) and "
            f"{self.rms:.4f} rms (allowed {self.tolerance.rms:g}) over {self.n_tokens} tokens"
        )


def window_scorer(model: Any) -> Scorer:
    """Logits of a window in one causal pass without a cache."""
    device = model.model.embed_tokens.weight.device

    def score(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = model(input_ids=tokens[None].to(device), use_cache=False).logits
        return logits[0]

    return score


def decode_scorer(decoder: Decoder, context: int, step: Callable[[], None] | None = None) -> Scorer:
    """Logits after each token from the ``context``-th on, teacher forced, one step per token.

    Args:
        decoder: model, cache and buffers of an arm.
        context: tokens that a prefill puts into the cache; at least 1.
        step: what is timed, e.g. a captured graph's replay; None for the eager step.
    """
    device = decoder.token.device

    def score(tokens: torch.Tensor) -> torch.Tensor:
        if not 0 < context < len(tokens):
            raise RoofgapError(
                f"{len(tokens)} tokens with a context of {context}",
                "leave no token to decode",
                "give more text",
            )
        given = tokens.to(device)
        decoder.prefill(given[None, :context])
        return decoder.forced(decoder.step if step is None else step, given[context:])

    return score


def decode_window(tokens: torch.Tensor, context: int, count: int) -> Window:
    """The predictions that both paths are compared on: of the tokens after the first that is decoded.

    Raises:
        RoofgapError: fewer than ``context + count`` tokens.
    """
    if len(tokens) < context + count or count < 2:
        raise RoofgapError(
            f"a text of {len(tokens)} tokens",
            f"must hold {context} of context and at least 2 to decode, {count} were asked for",
            "give a longer text or decode fewer tokens",
        )
    return Window(tokens=tokens[: context + count], scored=count - 1, first=context + 1)


def compare_paths(
    decoder: Decoder,
    tokens: torch.Tensor,
    *,
    context: int,
    count: int,
    step: Callable[[], None] | None = None,
) -> PathAgreement:
    """Scores ``count`` tokens after ``context`` ones by both paths of the decoder's model.

    Args:
        step: as in ``decode_scorer``.

    Raises:
        RoofgapError: too few tokens, NaN logits, or a dtype without a tolerance.
    """
    dtype = decoder.model.model.embed_tokens.weight.dtype
    window = decode_window(tokens, context, count)
    found = predict([window], decode_scorer(decoder, context, step), window_scorer(decoder.model))
    return path_agreement(found, dtype)


def path_agreement(found: Predictions, dtype: torch.dtype) -> PathAgreement:
    """Judges predictions whose model is the decode path and whose reference is the window path."""
    if dtype not in PATH_TOLERANCE:
        raise RoofgapError(
            f"{dtype}".removeprefix("torch."), "has no path tolerance", "use fp32, fp16 or bf16"
        )
    difference = found.nll - found.reference_nll
    return PathAgreement(
        n_tokens=len(difference),
        mean=float(difference.mean()),
        rms=float(difference.square().mean().sqrt()),
        top1=float(found.same_top.double().mean()),
        tolerance=PATH_TOLERANCE[dtype],
    )
