"""What 16-bit atomics add to the error of a sum, in the terms of ``kernels.tolerance``."""

from __future__ import annotations

from dataclasses import replace

from roofgap.kernels.reference import Reference


def with_atomics(ref: Reference, splits: int) -> Reference:
    """A reference whose ``energy`` covers partial sums that were added to a 16-bit output one after the other.

    With u the unit roundoff, each of S partial sums is rounded once (together at most u energy / sqrt(3), as weights
    are) and each of S additions rounds the sum so far. In the arbitrary order of atomics that sum walks from 0 to y
    as a bridge whose mean square is y^2 / 3 + energy^2 / 6. The bound of the worst output must hold for the walk
    that strays farthest, not the mean one: an integrated squared Brownian bridge has the tail exp(-pi^2 x / 2),
    which makes the error's own tail exp(-pi t / (u sqrt(S / 3) energy)), so that 10^8 outputs stay within six
    standard deviations where each is taken as u sqrt(S / 3) (|y| + energy).

    ``judge(rounds_weights=True)`` uses u energy / sqrt(3) as the standard deviation; the widened energy is the root
    of the sum of squares: one rounding per weight, one per partial sum, S additions.
    """
    if splits <= 1:
        return ref
    walk = splits * (ref.y.abs() + ref.energy) ** 2
    return replace(ref, energy=(2 * ref.energy**2 + walk).sqrt())
