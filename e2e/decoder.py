"""One decode loop for every arm: static cache, positions and sampling on the device, no host synchronisation.

A step is one token: forward pass, argmax, and the bookkeeping that makes the next step the same sequence of launches.
It can be called, captured into a CUDA graph, or compiled and then captured.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch

from roofgap.kernels.step import dependent_launches
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure.device import Device, Graph

CAPACITY_UNIT = 512
Advance = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], object]
"""Ends a step in place: logits [1, vocab], token [1, 1], generated [capacity], position [1, 1]."""


def capacity_for(depth: int, steps: int) -> int:
    """Positions of the cache: depth, the timed steps and one more, in whole units of 512."""
    return -(-(depth + steps + 1) // CAPACITY_UNIT) * CAPACITY_UNIT


def _torch_advance(
    logits: torch.Tensor, token: torch.Tensor, generated: torch.Tensor, position: torch.Tensor
) -> None:
    chosen = logits.argmax(-1)
    generated.index_copy_(0, position.view(1), chosen)
    token.copy_(chosen.view(1, 1))
    position.add_(1)


class CapturedStep:
    """A step as a graph, whose replay also points ``decoder.logits`` back at what it writes.

    Attributes:
        nodes: nodes of the graph, None where the runtime cannot tell.
    """

    def __init__(self, decoder: Decoder, graph: Graph) -> None:
        self._decoder, self._graph = decoder, graph
        self._logits = decoder.logits
        self.nodes = graph.nodes

    def replay(self) -> None:
        """Queues one token on the current stream."""
        self._decoder.logits = self._logits
        self._graph.replay()


class Decoder:
    """A model with a cache of its own, decoding greedily or along given tokens.

    Attributes:
        capacity: positions of the cache.
        depth: positions that the last prefill filled.
        token: [1, 1] the token that the next step reads; each step leaves its argmax here.
        position: [1, 1] the next position.
        generated: [capacity] the argmax made at each position, where one was.
        logits: [1, 1, vocab] of the last step; in a graph it is overwritten by every replay.

    Args:
        model: a transformers causal LM.
        capacity: positions of the cache.
        advance: ends a step greedily; torch's operations unless given.
    """

    logits: torch.Tensor

    def __init__(self, model: Any, capacity: int, advance: Advance | None = None) -> None:
        from transformers import StaticCache

        self.model, self.capacity, self.depth = model, capacity, 0
        self.cache = StaticCache(config=model.config, max_cache_len=capacity)
        device = model.model.embed_tokens.weight.device
        self.token, self.position = (torch.zeros((1, 1), dtype=torch.int64, device=device) for _ in range(2))
        self.generated = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._first = torch.zeros_like(self.token)
        self._forward: Callable[..., Any] = model
        self._advance: Advance = advance or _torch_advance
        # transformers renamed the argument; the old name still works but warns at every call, which costs host time.
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    def prefill(self, tokens: torch.Tensor) -> None:
        """Fills the cache from position 0 with ``tokens`` [1, D], and makes the first token.

        Raises:
            RoofgapError: no token, or more than the cache holds.
        """
        depth = tokens.shape[1]
        if not 0 < depth < self.capacity:
            raise RoofgapError(
                f"{depth} tokens of prompt",
                f"must be 1 to {self.capacity - 1}, the cache's capacity less one",
                "shorten the prompt or raise the capacity",
            )
        with torch.inference_mode():
            self._set_length(0)
            positions = torch.arange(depth, device=tokens.device)[None]
            logits = self._call(self.model, tokens, positions)
            self._first.copy_(logits[0, -1:].argmax(-1).view(1, 1))
        self.depth = depth
        self.rewind()

    def rewind(self) -> None:
        """Back to the end of the prompt. What lies beyond in the cache is masked until it is overwritten."""
        with torch.inference_mode():
            self._set_length(self.depth)
            self.token.copy_(self._first)
            self.position.fill_(self.depth)

    def step(self) -> None:
        """One token. Only queues work; reads and writes nothing but the tensors above."""
        with torch.inference_mode():
            logits = self._call(self._forward, self.token, self.position)
            self.logits = logits
            self._advance(logits[0], self.token, self.generated, self.position)

    def forced(self, step: Callable[[], None], tokens: torch.Tensor) -> torch.Tensor:
        """Logits [T, vocab] of ``tokens`` [T] fed one by one from the current position, teacher forced.

        Every arm so does identical work, and it is the timed ``step`` that is scored.
        """
        found = []
        with torch.inference_mode():
            for token in tokens:
                self.token.fill_(token)
                step()
                found.append(self.logits[0, -1].clone())
        return torch.stack(found)

    def compile(self) -> None:
        """Lets inductor compile the forward pass of a step (of one token; prefill stays as it is)."""
        self._forward = torch.compile(self.model, dynamic=False)

    def capture(self, device: Device, *, pdl: bool = False) -> CapturedStep:
        """One step as a graph. Two steps run before, so that everything is compiled and allocated.

        Args:
            device: where.
            pdl: capture own kernels as programmatic dependent launches. A step begins with torch's embedding lookup,
                an ordinary launch, as ``kernels.step`` asks for.

        Raises:
            RoofgapError: nothing was captured, or a replay does not write what a step writes.
        """
        self.rewind()
        with dependent_launches(pdl):
            for _ in range(2):
                self.step()
            self.rewind()
            graph = CapturedStep(self, device.capture([self.step]))
        self.generated[self.depth] = -1
        self.rewind()
        graph.replay()
        device.synchronise()
        if graph.nodes == 0 or int(self.generated[self.depth]) < 0 or int(self.position) != self.depth + 1:
            raise RoofgapError(
                f"a captured step of {graph.nodes} nodes",
                "does not do the work of a step",
                "find the kernel that launches on another stream",
            )
        self.rewind()
        return graph

    def generate(self, tokens: torch.Tensor, count: int) -> torch.Tensor:
        """``count`` new tokens by transformers' own greedy generate with its default cache, as users call it."""
        with torch.inference_mode():
            made = self.model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        return cast("torch.Tensor", made[:, tokens.shape[1] :])

    def _call(
        self, forward: Callable[..., Any], tokens: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        given = {self._cache_name: self.cache}
        out = forward(input_ids=tokens, position_ids=positions, use_cache=True, logits_to_keep=1, **given)
        return cast("torch.Tensor", out.logits)

    def _set_length(self, length: int) -> None:
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(length)
