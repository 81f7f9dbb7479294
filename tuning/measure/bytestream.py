"""Streams of random words made ready to be timed: the ops behind probe and bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from roofgap.kernels.step import Launch
from roofgap.tuning.measure import stream
from roofgap.tuning.measure.device import Device
from roofgap.tuning.measure.op import Instance, Prepared, Verdict, prepare
from roofgap.tuning.measure.policy import MeasurePolicy

WORD_BYTES = 4
ALIGNED_WORDS = 16  # Triton's divisibility hint for integers


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """How a stream is read.

    Attributes:
        kernel: ``once`` (a program per tile), ``lane`` (the same, not reduced across threads), ``loop`` (persistent
            programs) or ``copy`` (read and written).
        warps: warps per program.
        loads: 16-byte loads in flight per thread.
        evict: eviction policy of the loads, or empty.
        programs_per_sm: programs per SM of ``loop``.
    """

    kernel: Literal["once", "lane", "loop", "copy"]
    warps: int
    loads: int
    evict: str = ""
    programs_per_sm: int = 0

    @property
    def key(self) -> str:
        """Printable and unique."""
        programs = f" x{self.programs_per_sm}/SM" if self.programs_per_sm else ""
        return f"{self.kernel} {self.warps}w {self.loads}x16B{programs} {self.evict}".rstrip()

    @property
    def block(self) -> int:
        """Words one round of loads of a program covers: 16 bytes per thread."""
        return 128 * self.warps

    def programs(self, words: int, sm_count: int) -> int:
        """Programs that read ``words`` words."""
        tiles = -(-words // (self.block * self.loads))
        return min(tiles, self.programs_per_sm * sm_count) if self.kernel == "loop" else tiles

    def launch(self, words: torch.Tensor, out: torch.Tensor, sm_count: int) -> Launch:
        """One launch over a contiguous int32 tensor."""
        kernels = {
            "once": stream.stream_once,
            "lane": stream.stream_lane,
            "loop": stream.stream_loop,
            "copy": stream.stream_copy,
        }
        evict = {} if self.kernel == "copy" else {"EVICT": self.evict}
        return Launch(
            kernel=kernels[self.kernel],
            grid=(self.programs(words.numel(), sm_count),),
            args={
                "words_ptr": words,
                "out_ptr": out,
                "words": words.numel(),
                "BLOCK": self.block,
                "LOADS": self.loads,
                **evict,
            },
            num_warps=self.warps,
        )


def random_words(size_bytes: int, device: torch.device, seed: int = 0) -> torch.Tensor:
    """At least ``size_bytes`` of random non-negative int32 below 2^30, padded to the alignment.

    No xor of such words equals the poison of outputs, whose bit 30 is set.
    """
    words = -(-size_bytes // (WORD_BYTES * ALIGNED_WORDS)) * ALIGNED_WORDS
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(1 << 30, (words,), dtype=torch.int32, device=device, generator=generator)


def xor_last(values: torch.Tensor) -> torch.Tensor:
    """Xor along the last axis, by folding halves."""
    while (size := values.shape[-1]) > 1:
        half = size // 2
        folded = values[..., :half] ^ values[..., half : 2 * half]
        values = folded if size % 2 == 0 else torch.cat((folded, values[..., -1:]), dim=-1)
    return values[..., 0]


def prepare_read(
    config: StreamConfig, copies: torch.Tensor, size_bytes: int, device: Device, policy: MeasurePolicy
) -> Prepared:
    """Reads each row of ``copies`` [launches, words], all rows alike, in its own launch.

    Raises:
        MeasureError: the xor of what was read is not the xor of the words (of every tile's first lane for ``lane``).
    """
    truth = xor_last(copies[0][:: config.block if config.kernel == "lane" else 1])

    def check(outputs: torch.Tensor) -> Verdict:
        wrong = int((xor_last(outputs) != truth).sum())
        return Verdict(passed=wrong == 0, evidence=f"{wrong} streams were not read whole" if wrong else "")

    def build(index: int, out: torch.Tensor) -> Instance:
        return Instance(config.launch(copies[index], out, device.sm_count).run)

    return prepare(
        build,
        label=f"stream {config.key}",
        device=device,
        policy=policy,
        launches=len(copies),
        read_bytes=size_bytes,
        shape=(config.programs(copies.shape[1], device.sm_count),),
        dtype=torch.int32,
        check=check,
    )


def prepare_copy(
    config: StreamConfig, words: torch.Tensor, device: Device, policy: MeasurePolicy
) -> Prepared:
    """Copies ``words`` in one launch; reads and writes count."""

    def check(outputs: torch.Tensor) -> Verdict:
        same = torch.equal(outputs[0], words)
        return Verdict(passed=same, evidence="" if same else "the copy differs")

    def build(index: int, out: torch.Tensor) -> Instance:
        return Instance(config.launch(words, out, device.sm_count).run)

    return prepare(
        build,
        label=f"stream {config.key}",
        device=device,
        policy=policy,
        launches=1,
        read_bytes=words.numel() * WORD_BYTES,
        shape=tuple(words.shape),
        dtype=torch.int32,
        check=check,
    )
