"""A pseudo-arm that reads the bytes of a model, tensor by tensor, and computes nothing.

It is what kernels that run one after the other could reach at best, tails and launches included: fairer to a small
model than bytes over bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from roofgap.shapes.accounting import TokenBytes, WeightFormat, bias_bytes
from roofgap.shapes.manifest import Manifest
from roofgap.tuning.measure.bytestream import ALIGNED_WORDS, WORD_BYTES, StreamConfig, random_words
from roofgap.tuning.measure.device import Device, Graph

CONFIGS = (
    StreamConfig(kernel="once", warps=4, loads=4),
    StreamConfig(kernel="once", warps=8, loads=8),
    StreamConfig(kernel="loop", warps=8, loads=4, programs_per_sm=4),
    StreamConfig(kernel="loop", warps=8, loads=8, programs_per_sm=4),
)


@dataclass(frozen=True, slots=True)
class StreamStep:
    """One token's reads as a captured graph.

    Attributes:
        graph: the launches, one per tensor in the order of use, keys and values per layer.
        config: the fastest of the configs that were tried, every one over the whole step.
        launches: kernels in it.
    """

    graph: Graph
    config: str
    launches: int


def tensor_bytes(
    manifest: Manifest, weights: WeightFormat, head: WeightFormat, read: TokenBytes
) -> list[int]:
    """Bytes of every read of one token: linears with scales, zeros and bias; KV per layer; the head. Norms ride along
    with the KV. The sum is ``read.total`` to the byte."""
    layers = manifest.architecture.layers
    sizes: list[int] = []
    rest = int(read.kv + read.norms + read.embedding)
    shared = [rest // layers + (index < rest % layers) for index in range(layers)]
    linears = [
        weights.matrix_bytes(matrix.n, matrix.k).total + bias_bytes(matrix)
        for matrix in manifest.matrices
        if matrix.role != "head"
    ]
    for index in range(layers):
        sizes += [*linears, shared[index]]
    top = manifest.matrix("head")
    return [*sizes, head.matrix_bytes(top.n, top.k).total + bias_bytes(top)]


def prepare_stream(
    sizes: list[int], device: Device, configs: tuple[StreamConfig, ...] = CONFIGS
) -> StreamStep:
    """Allocates one buffer of all bytes and captures the fastest way to read it, tensor by tensor."""
    words = [-(-size // (WORD_BYTES * ALIGNED_WORDS)) * ALIGNED_WORDS for size in sizes]
    arena = random_words(sum(words) * WORD_BYTES, device.torch_device)
    views = torch.split(arena[: sum(words)], words)
    timed: list[tuple[float, StreamStep]] = []
    for config in configs:
        works = [_work(config, view, device) for view in views]
        for work in works:
            work()
        step = StreamStep(device.capture(works), config.key, len(works))
        for _ in range(3):
            step.graph.replay()
        readings = [device.elapsed_us(step.graph.replay, queued=False) for _ in range(5)]
        timed.append((min(reading for reading in readings if reading is not None), step))
    return min(timed, key=lambda pair: pair[0])[1]


def _work(config: StreamConfig, words: torch.Tensor, device: Device) -> Callable[[], None]:
    count = config.programs(words.numel(), device.sm_count)
    out = torch.empty(count, dtype=torch.int32, device=words.device)
    return config.launch(words, out, device.sm_count).run
