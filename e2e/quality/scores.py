"""What a model loses against another on the same predictions: paired, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from roofgap.e2e.quality.protocol import Window
from roofgap.shapes.errors import RoofgapError

Scorer = Callable[[torch.Tensor], torch.Tensor]
"""Logits [T, V] of tokens [T]: what the model expects after each of them."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Per scored token, fp64, in the order of the text.

    Attributes:
        nll: [n] nats, -log p of the token that came.
        reference_nll: [n] the same of the reference.
        kl: [n] nats, sum_v p_ref (log p_ref - log p).
        same_top: [n] whether both expect the same token most.
    """

    nll: torch.Tensor
    reference_nll: torch.Tensor
    kl: torch.Tensor
    same_top: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Means over n predictions; each SE is the standard deviation / sqrt(n), predictions taken as
    independent.

    Attributes:
        n_tokens: predictions.
        nll: mean, nats per token; ``nll_se`` its standard error.
        ppl: exp(nll). Depends on tokenizer and protocol.
        bits_per_byte: nll in bits over the bytes of the scored text, comparable across tokenizers; None
            without bytes.
        reference_ppl: the reference's.
        delta_nll: mean of nll - reference nll over the same predictions; ``delta_nll_se`` is some four times
            smaller than that of an unpaired difference.
        kl: mean KL(reference || model), nats; ``kl_se``.
        top1: share of predictions whose most likely token is the reference's; ``top1_se``.
    """

    n_tokens: int
    nll: float
    nll_se: float
    ppl: float
    bits_per_byte: float | None
    reference_ppl: float
    delta_nll: float
    delta_nll_se: float
    kl: float
    kl_se: float
    top1: float
    top1_se: float

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"ppl {self.ppl:.2f} (reference {self.reference_ppl:.2f}), delta-NLL {self.delta_nll:+.3f} "
            f"+- {self.delta_nll_se:.3f}, KL {self.kl:.3f} +- {self.kl_se:.3f}, top-1 {self.top1:.3f}, "
            f"n = {self.n_tokens}"
        )


def predict(windows: Iterable[Window], model: Scorer, reference: Scorer) -> Predictions:
    """Runs both over every window; the logits of one window are held at a time.

    Raises:
        RoofgapError: no window, or NaN or infinite logits.
    """
    parts = [_compare(window, model, reference) for window in windows]
    if not parts:
        raise RoofgapError("no window", "of the text holds a prediction", "give a longer text")
    return Predictions(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _compare(window: Window, model: Scorer, reference: Scorer) -> tuple[torch.Tensor, ...]:
    targets = window.tokens[-window.scored :].cpu()
    log_p, log_ref = (
        _log_probabilities(name, scorer(window.tokens), window.scored)
        for name, scorer in (("model", model), ("reference", reference))
    )
    at = targets[:, None]
    return (
        -log_p.gather(1, at)[:, 0],
        -log_ref.gather(1, at)[:, 0],
        (log_ref.exp() * (log_ref - log_p)).sum(-1),
        log_p.argmax(-1) == log_ref.argmax(-1),
    )


def _log_probabilities(name: str, logits: torch.Tensor, scored: int) -> torch.Tensor:
    """fp64 on the CPU: [scored, V], the prediction of each scored token from the one before it."""
    wanted = logits[-scored - 1 : -1].detach().cpu().double()
    if len(wanted) != scored:
        raise RoofgapError(
            f"{len(logits)} rows of logits", f"must be above {scored}", "return the logits of every token"
        )
    if not bool(torch.isfinite(wanted).all()):
        raise RoofgapError(
            f"{name} with NaN or infinite logits",
            "has no perplexity",
            "decode in bf16; fp16 overflows in models with large activations",
        )
    return wanted.log_softmax(-1)


def summarise(predictions: Predictions, n_bytes: int | None = None) -> Quality:
    """Means and standard errors.

    Args:
        n_bytes: UTF-8 bytes of the text that the predictions cover, for ``bits_per_byte``.
    """
    nll, nll_se = mean_se(predictions.nll)
    delta, delta_se = mean_se(predictions.nll - predictions.reference_nll)
    kl, kl_se = mean_se(predictions.kl)
    top1, top1_se = mean_se(predictions.same_top.double())
    count = len(predictions.nll)
    return Quality(
        n_tokens=count,
        nll=nll,
        nll_se=nll_se,
        ppl=math.exp(nll),
        bits_per_byte=nll * count / math.log(2) / n_bytes if n_bytes else None,
        reference_ppl=math.exp(float(predictions.reference_nll.mean())),
        delta_nll=delta,
        delta_nll_se=delta_se,
        kl=kl,
        kl_se=kl_se,
        top1=top1,
        top1_se=top1_se,
    )


def mean_se(values: torch.Tensor) -> tuple[float, float]:
    """Mean and its standard error; 0 for a single value."""
    count = len(values)
    return float(values.mean()), float(values.std()) / count**0.5 if count > 1 else 0.0
