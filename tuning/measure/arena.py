"""Outputs of one graph: poisoned before every replay, set apart by guards that no kernel may touch."""

from __future__ import annotations

import math

import torch

POISON = 0x7FDB  # as fp16 and bf16 a quiet NaN; twice in a row, as fp32 too
GUARD_BYTES = 256
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Arena:
    """``count`` outputs in one allocation.

    Memory: ``guard | output 0 | guard | output 1 | guard ...``. A guard starts at the byte after its output,
    so that a store one element past the end lands in it, and reaches 256 bytes past the next multiple of 256.

    Args:
        count: outputs.
        shape: of one output; at least one element.
        dtype: of the outputs, 2, 4 or 8 bytes wide.
        device: where they live.

    Attributes:
        outputs: [count, *shape], a view with gaps; ``outputs[i]`` is contiguous and aligned to 256 bytes.
        bits: the same elements as integers [count, elements], for comparisons that NaN must not blur.
    """

    def __init__(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        elements, width = math.prod(shape), dtype.itemsize
        stride = -(-elements * width // GUARD_BYTES) * GUARD_BYTES + GUARD_BYTES
        self._memory = torch.empty((GUARD_BYTES + count * stride) // 2, dtype=torch.int16, device=device)
        self._head = self._memory[: GUARD_BYTES // 2]
        body = self._memory[GUARD_BYTES // 2 :]
        rows = body.view(BITS[width]).view(count, stride // width)
        self.bits, self._guards = rows[:, :elements], rows[:, elements:]
        self.outputs = body.view(dtype).view(count, stride // width)[:, :elements].view(count, *shape)
        self._poison_bits = sum(POISON << (16 * half) for half in range(width // 2))
        self.poison()

    def poison(self) -> None:
        """Overwrites outputs and guards."""
        self._memory.fill_(POISON)

    def unwritten(self) -> torch.Tensor:
        """Number of output elements that still hold poison; 0-d, so that the host need not wait yet."""
        return (self.bits == self._poison_bits).sum()

    def overwritten(self) -> torch.Tensor:
        """Number of guard elements that no longer hold poison."""
        return (self._head != POISON).sum() + (self._guards != self._poison_bits).sum()


def poison_scratch(tensor: torch.Tensor) -> None:
    """Fills a workspace with NaN, or with a large number where its type has none."""
    if tensor.is_floating_point():
        tensor.fill_(math.nan)
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max // 3)
