"""Seeded inputs of a problem: activations, a canonical weight, a bias, and meta operands for compile-only work."""

from __future__ import annotations

import torch

from roofgap.kernels.formats.layout import PackedWeight
from roofgap.kernels.formats.quantise import quantise
from roofgap.kernels.formats.weight import DTYPES, QuantizedWeight
from roofgap.kernels.variant import Operands, Variant
from roofgap.shapes.problem import Problem


def generator(seed: int, device: torch.device | str) -> torch.Generator:
    """A generator of its own, so that inputs depend on the seed alone and not on what ran before."""
    return torch.Generator(device=device).manual_seed(seed)


def random_x(problem: Problem, seed: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """[M, K] standard normal in x's dtype."""
    x = torch.randn((problem.m, problem.k), generator=generator(seed, device), device=device)
    return x.to(DTYPES[problem.x_dtype])


def random_bias(problem: Problem, seed: int, device: torch.device | str = "cpu") -> torch.Tensor | None:
    """[N] standard normal in x's dtype, or None where the problem has no bias."""
    if not problem.bias:
        return None
    bias = torch.randn((problem.n,), generator=generator(seed + 1, device), device=device)
    return bias.to(DTYPES[problem.x_dtype])


def random_weight(problem: Problem, seed: int, device: torch.device | str = "cpu") -> QuantizedWeight:
    """Uniform codes and zeros, and scales of both signs sized so that outputs are of order one.

    Every code, zero and sign occurs, which quantised normal weights would not give.
    """
    g, shape = generator(seed + 2, device), (problem.n, problem.groups)
    dtype = DTYPES[problem.x_dtype]
    codes = torch.randint(0, 16, (problem.n, problem.k), generator=g, device=device, dtype=torch.uint8)
    size = 0.5 + torch.rand(shape, generator=g, device=device)
    sign = torch.where(torch.rand(shape, generator=g, device=device) < 0.5, -1.0, 1.0)
    scales = (sign * size / (5 * problem.k**0.5)).to(dtype)
    zeros = None
    if problem.zero_mode == "asym":
        zeros = torch.randint(0, 16, shape, generator=g, device=device, dtype=torch.uint8)
    elif problem.zero_mode == "offset":
        zeros = (-scales.float() * 15 * torch.rand(shape, generator=g, device=device)).to(dtype)
    return QuantizedWeight(codes=codes, scales=scales, zeros=zeros, group_size=problem.group_size)


def quantised_weight(problem: Problem, seed: int, device: torch.device | str = "cpu") -> QuantizedWeight:
    """Normal weights of deviation K^-0.5 quantised round-to-nearest, as a model's would be."""
    dense = torch.randn((problem.n, problem.k), generator=generator(seed + 3, device), device=device)
    dense = (dense * problem.k**-0.5).to(DTYPES[problem.x_dtype])
    weight = quantise(dense, problem.group_size, symmetric=problem.zero_mode == "sym")
    return weight.with_offsets() if problem.zero_mode == "offset" else weight


def poisoned(problem: Problem, device: torch.device | str = "cpu") -> torch.Tensor:
    """An output [M, N] full of NaN: whatever a kernel does not write, or reads first, shows."""
    dtype = DTYPES[problem.x_dtype]
    return torch.full((problem.m, problem.n), float("nan"), dtype=dtype, device=device)


def operands(x: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None, y: torch.Tensor) -> Operands:
    """The tensors of one product as a plan takes them."""
    return Operands(x=x, codes=packed.codes, scales=packed.scales, zeros=packed.zeros, bias=bias, y=y)


def meta_operands(variant: Variant, problem: Problem) -> Operands:
    """Operands without memory, for ``plan`` to be compiled for another GPU."""
    dtype = DTYPES[problem.x_dtype]
    return operands(
        torch.empty((problem.m, problem.k), dtype=dtype, device="meta"),
        variant.layout.meta(problem),
        torch.empty((problem.n,), dtype=dtype, device="meta") if problem.bias else None,
        torch.empty((problem.m, problem.n), dtype=dtype, device="meta"),
    )
