"""Whole-number arithmetic of plans: Triton's functions of these names serve kernels too and take 8 us a call."""

from __future__ import annotations


def cdiv(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


def next_power_of_2(value: int) -> int:
    """The least power of two that is not below ``value``, of at least 1."""
    return 1 << max(0, value - 1).bit_length()
