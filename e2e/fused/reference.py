"""What the fused operators are compared with: fp64, and how far a 16-bit result may be from it.

With u the unit roundoff of the dtype and u32 that of fp32, every output may err by its own rounding, u |y|,
and by what fp32 arithmetic inside adds:

- *norm*: two fp32 products, a root, and a sum of H squares whose roundings grow with its root: u32 (sqrt(H) +
8) |y|. - *SwiGLU*: the exponential turns an absolute error of its argument into a relative one: u32 (8 + 4
|gate|) |y|. - *attention*: rotated q and k and the probabilities p are rounded to 16 bits. A score of D
products that err by u each,
  independently, errs by at most six standard deviations, e = 6 u scale sqrt(sum_d (q_d k_d)^2) for each of q
  and k; y moves by the p-weighted e |v - y|. Rounding of p adds 6 u sqrt(sum_j (p_j v_j)^2), fp32 sums 2 u32
  sqrt(t) sum_j p_j |v_j|.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roofgap.kernels.reference import interpreted
from roofgap.kernels.tolerance import HALF_SUBNORMAL, UNIT, UNIT_FP32

SIGMAS = 6.0


@dataclass(frozen=True, slots=True)
class Bounded:
    """A reference y in fp64 and the largest error that each of its values may have."""

    y: torch.Tensor
    bound: torch.Tensor

    def worst_of(self, got: torch.Tensor) -> float:
        """The largest error over its bound; above 1 is wrong, infinite where NaN or infinity is misplaced."""
        error = (got.double() - self.y).abs()
        ratio = torch.where(torch.isfinite(got.double()), error / self.bound, float("inf"))
        return float(ratio.max())


def unit_of(dtype: torch.dtype) -> float:
    """Unit roundoff; twice that of bf16 in Triton's interpreter, which cuts off instead of rounding."""
    return UNIT[dtype] * (2 if dtype == torch.bfloat16 and interpreted() else 1)


def _bounded(y: torch.Tensor, extra: torch.Tensor, dtype: torch.dtype) -> Bounded:
    return Bounded(y, unit_of(dtype) * y.abs() + HALF_SUBNORMAL[dtype] + extra)


def rms_norm(total: torch.Tensor, weight: torch.Tensor, eps: float) -> Bounded:
    """Of the rounded sum [M, H], which the operator returns beside it."""
    wide = total.double()
    y = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
    return _bounded(y, UNIT_FP32 * (total.shape[-1] ** 0.5 + 8) * y.abs(), total.dtype)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> Bounded:
    """Of gate and up [M, I]."""
    wide = gate.double()
    y = wide * wide.sigmoid() * up.double()
    return _bounded(y, UNIT_FP32 * (8 + 4 * wide.abs()) * y.abs(), gate.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [heads, D] by one row of the tables [D], fp64."""
    first, second = x.double().chunk(2, dim=-1)
    return x.double() * cos.double() + torch.cat([-second, first], dim=-1) * sin.double()


def attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> Bounded:
    """Of rotated q [H, D] fp64 and the filled part of a cache, keys and values [Hkv, T, D] 16-bit."""
    heads, cache_heads = q.shape[0], keys.shape[0]
    k, v = (part.double().repeat_interleave(heads // cache_heads, dim=0) for part in (keys, values))
    p = (torch.einsum("hd,htd->ht", q, k) * scale).softmax(-1)
    y = torch.einsum("ht,htd->hd", p, v)
    unit = unit_of(values.dtype)
    score = 2 * SIGMAS * unit * scale * torch.einsum("hd,htd->ht", q.square(), k.square()).sqrt()
    moved = torch.einsum("ht,htd->hd", p * score, (v - y[:, None]).abs())
    rounded = SIGMAS * unit * torch.einsum("ht,htd->hd", p.square(), v.square()).sqrt()
    sums = 2 * UNIT_FP32 * keys.shape[1] ** 0.5 * torch.einsum("ht,htd->hd", p, v.abs())
    return _bounded(y, moved + rounded + sums, values.dtype)
