"""The canonical 4-bit weight: one code per byte, one scale and one zero (or offset) per group of a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem, ZeroMode

SYM_ZERO = 8
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class QuantizedWeight:
    """``w = s * (q - 8)`` (sym), ``s * (q - z)`` (asym) or ``s * q + o`` (offset), where k's group is ``k // group``.

    A K that the group size does not divide ends in a shorter, ragged group with a scale of its own. Scales may be
    negative: quantisers that spend all sixteen codes put the largest magnitude of a group on code 0.

    Attributes:
        codes: uint8 [N, K], values 0..15.
        scales: fp16, bf16 or fp32 [N, G] with G = ceil(K / group).
        zeros: None (sym), uint8 [N, G] of 0..15 (asym), or offsets [N, G] in the scales' dtype (offset).
        group_size: a positive multiple of 8, or -1 for the whole row.

    Raises:
        RoofgapError: shapes, dtypes or values that break the rules above.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    group_size: int = 128

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.dtype != torch.uint8:
            raise RoofgapError(
                f"codes {_describe(self.codes)}", "must be uint8 [N, K]", "store one code of 0..15 per byte"
            )
        if self.codes.device.type != "meta" and bool((self.codes > 15).any()):
            raise RoofgapError(f"code {int(self.codes.max())}", "must lie in 0..15", "use 4-bit codes")
        expected = (self.n, self.groups)
        if tuple(self.scales.shape) != expected or self.scales.dtype not in FLOATS:
            raise RoofgapError(
                f"scales {_describe(self.scales)}",
                f"must be fp16, bf16 or fp32 {list(expected)}",
                "give one scale per group of each row",
            )
        if self.zeros is None:
            return
        if tuple(self.zeros.shape) != expected or self.zeros.dtype not in (torch.uint8, self.scales.dtype):
            raise RoofgapError(
                f"zeros {_describe(self.zeros)}",
                f"must be uint8 zeros or {DTYPE_NAMES[self.scales.dtype]} offsets {list(expected)}",
                "give one per scale",
            )
        if self.zero_mode == "asym" and self.zeros.device.type != "meta" and bool((self.zeros > 15).any()):
            raise RoofgapError(
                f"zero {int(self.zeros.max())}",
                "must lie in 0..15 to be packed at 4 bits",
                "call with_offsets(), which also takes the zero of 16 that old GPTQ files can mean",
            )

    @property
    def n(self) -> int:
        """Output features."""
        return self.codes.shape[0]

    @property
    def k(self) -> int:
        """Input features."""
        return self.codes.shape[1]

    @property
    def group(self) -> int:
        """Group size with -1 resolved, never above K."""
        return self.problem_sizes.group

    @property
    def groups(self) -> int:
        """Groups in a row, the ragged one included."""
        return self.problem_sizes.groups

    @property
    def problem_sizes(self) -> Problem:
        """N, K and group size as a problem; checks them."""
        return Problem(n=self.n, k=self.k, group_size=self.group_size)

    @property
    def zero_mode(self) -> ZeroMode:
        """How ``zeros`` is read."""
        if self.zeros is None:
            return "sym"
        return "asym" if self.zeros.dtype == torch.uint8 else "offset"

    def dequantise(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The dense weight [N, K]: computed in fp32 (fp64 for a float64 result), then rounded once to ``dtype``."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        group = torch.arange(self.k, device=self.codes.device) // self.group
        codes, scales = self.codes.to(wide), self.scales.to(wide)[:, group]
        if self.zeros is None:
            return (scales * (codes - SYM_ZERO)).to(dtype)
        zeros = self.zeros.to(wide)[:, group]
        if self.zero_mode == "asym":
            return (scales * (codes - zeros)).to(dtype)
        return (scales * codes + zeros).to(dtype)

    def code_magnitude(self) -> torch.Tensor:
        """fp64 [N, K] of |s| (q + z), or |s| q + |o|: what is summed where codes and zeros are summed apart."""
        group = torch.arange(self.k, device=self.codes.device) // self.group
        scales = self.scales.double().abs()[:, group]
        if self.zeros is None:
            return scales * (self.codes + SYM_ZERO)
        zeros = self.zeros.double().abs()[:, group]
        return scales * self.codes + (scales * zeros if self.zero_mode == "asym" else zeros)

    def with_offsets(self, zeros: torch.Tensor | None = None) -> QuantizedWeight:
        """The same weight in ``offset`` mode, ``o = -s * z``, scales and offsets widened to fp32 so that o is exact.

        Args:
            zeros: integer zeros [N, G] to use instead of the weight's own, of any value; a GPTQ (v1) file stores
                zero - 1, so a zero of 16 is legal there and does not fit into 4 bits.
        """
        if zeros is None:
            if self.zero_mode == "offset":
                return self
            zeros = torch.full_like(self.scales, SYM_ZERO) if self.zeros is None else self.zeros
        scales = self.scales.float()
        return QuantizedWeight(
            codes=self.codes, scales=scales, zeros=-scales * zeros.float(), group_size=self.group_size
        )

    def to(self, device: torch.device | str) -> QuantizedWeight:
        """The same weight on another device."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        return QuantizedWeight(
            codes=self.codes.to(device),
            scales=self.scales.to(device),
            zeros=zeros,
            group_size=self.group_size,
        )

    def equal(self, other: QuantizedWeight) -> bool:
        """Bit-for-bit equality of every field (NaN scales count as equal to themselves)."""
        if (self.group_size, self.zero_mode, self.scales.dtype) != (
            other.group_size,
            other.zero_mode,
            other.scales.dtype,
        ):
            return False
        pairs = [(self.codes, other.codes), (self.scales, other.scales)]
        if self.zeros is not None and other.zeros is not None:
            pairs.append((self.zeros, other.zeros))
        return all(torch.equal(_bits(left), _bits(right)) for left, right in pairs)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers, so that -0.0 differs from 0.0 and NaN equals itself."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")
