"""What values are compared with: the dequantised product in fp64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton import knobs

from roofgap.kernels.formats.weight import QuantizedWeight

CHUNK_ELEMENTS = 1 << 27
"""Dense fp64 weights held at a time (1 GiB), so that a vocabulary of 151,936 rows needs no 2 GiB temporaries."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Sums over k of one product, in fp64.

    Attributes:
        y: [M, N] x @ W^T + bias.
        magnitude: [M, N] sum of |x| |w|, plus |bias|.
        code_magnitude: [M, N] sum of |x| |s| (q + z), or of |x| (|s| q + |o|), plus |bias|; never below magnitude.
        energy: [M, N] square root of the sum of (x w)^2.
        x_sum: [M, 1] sum of |x|, or of |x| times what it is multiplied with [M, N].
    """

    y: torch.Tensor
    magnitude: torch.Tensor
    code_magnitude: torch.Tensor
    energy: torch.Tensor
    x_sum: torch.Tensor


def reference(
    x: torch.Tensor,
    weight: QuantizedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> Reference:
    """Computes the product [M, N] of x [M, K] and a canonical weight on their own device, in fp64 throughout.

    Args:
        bias: [N], added to every row.
        residual: [M, N], added too; like a bias it is one more term of the sum.
    """
    x64 = x.double()
    rows = max(1, CHUNK_ELEMENTS // weight.k)
    parts: list[tuple[torch.Tensor, ...]] = []
    for start in range(0, weight.n, rows):
        part = slice_rows(weight, start, start + rows)
        dense, coded = part.dequantise(torch.float64).T, part.code_magnitude().T
        energy = ((x64 * x64) @ (dense * dense)).sqrt()
        parts.append((x64 @ dense, x64.abs() @ dense.abs(), x64.abs() @ coded, energy))
    y, magnitude, code_magnitude, energy = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    for addend in (bias, residual):
        if addend is not None:
            wide = addend.double()
            y, magnitude, code_magnitude = y + wide, magnitude + wide.abs(), code_magnitude + wide.abs()
    x_sum = x64.abs().sum(1, keepdim=True)
    return Reference(y=y, magnitude=magnitude, code_magnitude=code_magnitude, energy=energy, x_sum=x_sum)


SILU_SLOPE = 1.1
"""Above the largest derivative of silu, 1.0998 at 2.4."""


def gated(ref: Reference) -> Reference:
    """Of ``silu(gate) * up``, from the sums [M, 2 I] of a weight gate over up, neither of them rounded.

    Errors of first order: an error d of the gate moves the product by at most SILU_SLOPE |up| d, one of the up by
    |silu(gate)| d, so magnitudes and energies go through the same factors. The exponential turns fp32's error of its
    argument into a relative one, and division and products round too: u32 (8 + 4 |gate|) |y| more, which is in the
    magnitudes because ``tolerance`` multiplies these by at least 2 u32.
    """
    gate, up = ref.y.chunk(2, dim=1)
    silu = gate * gate.sigmoid()
    of_gate, of_up, y = SILU_SLOPE * up.abs(), silu.abs(), silu * up
    inside = (4 + 2 * gate.abs()) * y.abs()

    def moved(sums: torch.Tensor) -> torch.Tensor:
        first, second = sums.chunk(2, dim=1)
        return of_gate * first + of_up * second

    first, second = ref.energy.chunk(2, dim=1)
    return Reference(
        y=y,
        magnitude=moved(ref.magnitude) + inside,
        code_magnitude=moved(ref.code_magnitude) + inside,
        energy=((of_gate * first) ** 2 + (of_up * second) ** 2).sqrt(),
        x_sum=ref.x_sum * (of_gate + of_up),
    )


def slice_rows(weight: QuantizedWeight, start: int, stop: int) -> QuantizedWeight:
    """Outputs ``start`` to ``stop`` of a weight."""
    return QuantizedWeight(
        codes=weight.codes[start:stop],
        scales=weight.scales[start:stop],
        zeros=None if weight.zeros is None else weight.zeros[start:stop],
        group_size=weight.group_size,
    )


def identity_rows(start: int, stop: int, k: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows ``start`` to ``stop`` of the identity [K, K]: as activations they read single weights out of a kernel."""
    x = torch.zeros((stop - start, k), dtype=dtype, device=device)
    x[torch.arange(stop - start), torch.arange(start, stop)] = 1
    return x


def interpreted() -> bool:
    """Whether kernels defined now run in Triton's interpreter."""
    return bool(knobs.runtime.interpret)


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """fp32 values in ``dtype`` as a kernel here would round them.

    GPUs round to the nearest; Triton's interpreter cuts bf16 off, which costs one more bit.
    """
    if dtype == torch.bfloat16 and interpreted():
        return (values.float().view(torch.int32) & -65536).view(torch.float32).to(dtype)
    return values.to(dtype)
