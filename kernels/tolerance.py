"""One tolerance policy, derived from K, the dtype and the number of splits. No test has a number of its own.

With u the unit roundoff of a format (fp16 2^-11, bf16 2^-8, fp32 2^-24), the error of one output is bounded by three
terms, where ``magnitude`` is sum |x||w| and ``energy`` is sqrt(sum (x w)^2), both from the fp64 reference:

- *output*: the sum is rounded once to 16 bits, at most u16 |y|, plus half the smallest subnormal.
- *sum*: K + splits fp32 roundings, each at most u32 of a partial sum that never exceeds ``magnitude``. Roundings are as
  often up as down, so they grow with the root of their number (Higham and Mary 2019): u32 sqrt(K + splits) magnitude.
  Tensor cores cut off instead of rounding but add eight or more products at a time; the factor of two covers it.
  Variants that sum x q and x z apart (``factors_zero``) have partial sums up to ``code_magnitude``, which is
  sum |x| |s| (q + z): far more than ``magnitude`` where an activation stands out at a weight near 0.
- *weight*: variants that pass dequantised weights through 16 bits (``rounds_weights``) err by at most u16 |w| in each,
  spread evenly and independently of x: at most u16 energy / sqrt(3) in standard deviation, of which six are the worst
  that 10^8 outputs show.

``worst`` adds the terms (the weight term sixfold). ``rms`` is their root mean square over all outputs, the output term
spread evenly as well, with 3 / sqrt(count) of slack for the scatter of a mean over few outputs.

Infinities and NaN belong where the reference has them, each its own kind and sign; a finite reference too large for 16
bits may become an infinity of its sign. Where x q and x z are summed apart, an infinite activation gives inf - inf in
every output of its token, as a NaN would: such variants (``factors_zero``) owe no kind, only that an output is finite
where the reference is and not finite where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roofgap.kernels.reference import Reference, interpreted

UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
HALF_SUBNORMAL = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134}
UNIT_FP32 = 2.0**-24
WEIGHT_SIGMAS = 6.0
EVEN = 3**-0.5
"""Standard deviation of an error spread evenly over -1..1."""
SUM_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How far a result is from its reference. Errors are absolute unless named otherwise.

    Attributes:
        passed: every output within its bound, the RMS within its own, infinities and NaN where they belong.
        worst_of_bound: the largest error / bound over all outputs; above 1 fails.
        rms_of_bound: RMS error / RMS bound; above 1 fails.
        worst: the largest absolute error.
        relative_error: ||y - ref|| / ||ref|| over the finite outputs.
        misplaced: outputs that are infinite or NaN where they should not be, or the reverse, or of the wrong kind.
    """

    passed: bool
    worst_of_bound: float
    rms_of_bound: float
    worst: float
    relative_error: float
    misplaced: int

    @property
    def detail(self) -> str:
        """One line for a report."""
        text = (
            f"worst {self.worst_of_bound:.2f} of bound, rms {self.rms_of_bound:.2f} of bound, "
            f"relative error {self.relative_error:.2e}"
        )
        return text + (f", {self.misplaced} infinite or NaN outputs misplaced" if self.misplaced else "")


def judge(
    y: torch.Tensor,
    ref: Reference,
    *,
    k: int,
    split_count: int = 1,
    rounds_weights: bool = False,
    factors_zero: bool = False,
) -> Verdict:
    """Compares y [M, N] fp16 or bf16 with its fp64 reference under the policy above."""
    unit, subnormal = UNIT[y.dtype], HALF_SUBNORMAL[y.dtype]
    if y.dtype == torch.bfloat16 and interpreted():
        unit *= 2  # the interpreter cuts bf16 off instead of rounding
    output = unit * ref.y.abs() + subnormal
    magnitude = ref.code_magnitude if factors_zero else ref.magnitude
    sums = SUM_FACTOR * UNIT_FP32 * (k + split_count) ** 0.5 * magnitude
    weight = torch.zeros_like(ref.y)
    if rounds_weights:
        weight = EVEN * (unit * ref.energy + subnormal * ref.x_sum)
    bound = output + sums + WEIGHT_SIGMAS * weight

    got = y.double()
    largest = torch.finfo(y.dtype).max
    # A finite reference past the largest 16-bit number may become infinite; one that is surely below it may not.
    saturates = torch.isfinite(ref.y) & (ref.y.abs() + bound >= largest)
    expected_finite = torch.isfinite(ref.y)
    kind = ~torch.isfinite(got) if factors_zero else (torch.isnan(got) & torch.isnan(ref.y)) | (got == ref.y)
    same = torch.where(
        expected_finite,
        torch.isfinite(got) | (saturates & torch.isinf(got) & (got.sign() == ref.y.sign())),
        kind,
    )
    misplaced = int((~same).sum())
    counted = expected_finite & torch.isfinite(got) & torch.isfinite(bound)
    error, limit, target = (got - ref.y)[counted].abs(), bound[counted], ref.y[counted]
    if error.numel() == 0:
        return Verdict(
            passed=misplaced == 0,
            worst_of_bound=0.0,
            rms_of_bound=0.0,
            worst=0.0,
            relative_error=0.0,
            misplaced=misplaced,
        )
    squares = (EVEN * output) ** 2 + sums**2 + weight**2
    rms_bound = squares[counted].mean().sqrt() * (1 + 3 / error.numel() ** 0.5)
    worst_of_bound = float((error / limit.clamp_min(torch.finfo(torch.float64).tiny)).max())
    rms_of_bound = float(error.square().mean().sqrt() / rms_bound.clamp_min(torch.finfo(torch.float64).tiny))
    norm = float(target.norm())
    return Verdict(
        passed=misplaced == 0 and worst_of_bound <= 1 and rms_of_bound <= 1,
        worst_of_bound=worst_of_bound,
        rms_of_bound=rms_of_bound,
        worst=float(error.max()),
        relative_error=float(error.norm()) / norm if norm else float(error.norm()),
        misplaced=misplaced,
    )
