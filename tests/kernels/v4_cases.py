"""Products of v4 for the tests: every operand amid memory that must not be read, the result amid memory that must not
be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from kernel_cases import DEVICE

from roofgap.kernels.formats.interleaved import Interleaved
from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.inputs import generator, operands, random_bias, random_weight, random_x
from roofgap.kernels.ops import run_plan
from roofgap.kernels.reference import Reference, gated, reference
from roofgap.kernels.registry import get_variant
from roofgap.kernels.step import Launch
from roofgap.kernels.tolerance import Verdict, judge
from roofgap.kernels.variant import Operands
from roofgap.kernels.variants._v4_config import V4Config
from roofgap.shapes.problem import Problem

T = TypeVar("T")
V4 = get_variant("v4")
MARGIN = 256
"""Elements before and after; more than a tile's scales."""


def amid_poison(tensor: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """The same values, ``offset`` elements behind an aligned address; around them NaN, or words of ones."""
    poison = float("nan") if tensor.dtype.is_floating_point else -1
    around = torch.full((tensor.numel() + 2 * MARGIN,), poison, dtype=tensor.dtype, device=tensor.device)
    inside = around[MARGIN + offset : MARGIN + offset + tensor.numel()].view(tensor.shape)
    return inside.copy_(tensor)


def in_turns(options: Sequence[T], turn: int) -> Sequence[T]:
    """All of them on a GPU; in the interpreter, which is slow, the ``turn``-th one (counted around)."""
    return options if DEVICE.type == "cuda" else [options[turn % len(options)]]


def words_of(codes: torch.Tensor) -> list[Any]:
    """Codes [16 tiles, 128] as eight registers [tiles, 32]: four words of row r, four of row r + 8."""
    weight = QuantizedWeight(codes=codes, scales=torch.ones(len(codes), 1), group_size=128)
    packed = Interleaved.pack(weight).codes.reshape(-1, 256).numpy().view(np.uint32)
    rows, quarters = np.arange(32) // 4, np.arange(32) % 4
    return [packed[:, (rows + 8 * half) * 16 + quarters * 4 + u] for half in range(2) for u in range(4)]


class Product:
    """Inputs of a product with an epilogue, its result, and what it should be."""

    def __init__(self, problem: Problem, epilogue: str = "", *, seed: int = 3) -> None:
        self.problem, self.swiglu = problem, epilogue == "swiglu"
        self.weight = random_weight(problem, seed, DEVICE)
        self.x = amid_poison(random_x(problem, seed, DEVICE))
        bias = random_bias(problem, seed, DEVICE)
        self.bias = None if bias is None else amid_poison(bias)
        self.residual: torch.Tensor | None = None
        if epilogue == "residual":
            noise = torch.randn((problem.m, problem.n), generator=generator(seed + 7, DEVICE), device=DEVICE)
            self.residual = amid_poison(3 * noise.to(self.x.dtype))

    def operands(self) -> Operands:
        """Tensors as a plan takes them, the output poisoned too."""
        width = self.problem.n // (2 if self.swiglu else 1)
        y = amid_poison(torch.full((self.problem.m, width), float("nan"), dtype=self.x.dtype, device=DEVICE))
        packed = Interleaved.pack(self.weight)
        packed = replace(
            packed,
            codes=amid_poison(packed.codes),
            scales=amid_poison(packed.scales),
            zeros=None if packed.zeros is None else amid_poison(packed.zeros),
        )
        plain = operands(self.x, packed, self.bias, y)
        return replace(plain, residual=self.residual, swiglu=self.swiglu)

    def run(self, config: V4Config, given: Operands | None = None) -> torch.Tensor:
        """y; nothing is written beside it."""
        given = self.operands() if given is None else given
        y = run_plan(V4, self.problem, config, given)
        around = torch.as_strided(y, (y.numel() + 2 * MARGIN,), (1,), 0)
        assert int((~around.isnan()).sum()) <= y.numel()
        assert around[:MARGIN].isnan().all()
        assert around[-MARGIN:].isnan().all()
        return y

    def kernel(self, config: V4Config) -> str:
        """Name of the kernel that a plan launches first."""
        (main, *_) = V4.plan(self.problem, config, self.operands())
        assert isinstance(main, Launch)
        return str(main.kernel.__name__)

    def expected(self) -> Reference:
        """In fp64."""
        sums = reference(self.x, self.weight, self.bias, self.residual)
        return gated(sums) if self.swiglu else sums

    def judge(self, y: torch.Tensor, config: V4Config) -> Verdict:
        """Under the policy of every variant."""
        return judge(
            y, self.expected(), k=self.problem.k, split_count=config.split_k, factors_zero=V4.factors_zero
        )

    def check(self, config: V4Config) -> None:
        """Runs and fails with the verdict's line."""
        verdict = self.judge(self.run(config), config)
        assert verdict.passed, f"{config.key} {self.problem.key}: {verdict.detail}"
