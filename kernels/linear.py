"""A drop-in ``nn.Linear`` over a variant."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.formats.layout import PackedWeight
from roofgap.kernels.formats.quantise import quantise
from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.ops import linear
from roofgap.kernels.registry import get_variant
from roofgap.kernels.variant import Epilogue
from roofgap.shapes.problem import Problem, ZeroMode


class W4Linear(nn.Module):
    """``y = x @ W^T + bias`` with W packed at 4 bits in the variant's layout; inference only.

    Packed tensors are buffers, so that ``to(device)`` and ``state_dict`` carry them. ``to(dtype)`` casts scales and
    bias as it casts any float buffer; kernels take scales of another dtype than x, a bias must have x's.

    Args:
        weight: the canonical weight.
        bias: [N] in the activations' dtype, or None.
        variant: a registered variant's name.
        config: launch values; None means the winner or the default at each call.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self,
        weight: QuantizedWeight,
        bias: torch.Tensor | None = None,
        *,
        variant: str = "gemm",
        config: KernelConfig | None = None,
    ) -> None:
        super().__init__()
        packed = get_variant(variant).layout.pack(weight)
        self.in_features, self.out_features = weight.k, weight.n
        self.group_size = weight.group_size
        self.zero_mode: ZeroMode = weight.zero_mode
        self.variant, self.config = variant, config
        self.layout = packed.layout
        self.register_buffer("codes", packed.codes)
        self.register_buffer("scales", packed.scales)
        self.register_buffer("zeros", packed.zeros)
        self.register_buffer("bias", None if bias is None else bias.detach())

    @classmethod
    def from_linear(
        cls,
        module: nn.Linear,
        group_size: int = 128,
        *,
        symmetric: bool = True,
        variant: str = "gemm",
        config: KernelConfig | None = None,
    ) -> W4Linear:
        """Quantises a dense layer round-to-nearest."""
        weight = quantise(module.weight.detach(), group_size, symmetric=symmetric)
        return cls(weight, module.bias, variant=variant, config=config)

    @property
    def packed(self) -> PackedWeight:
        """The weight as the op takes it."""
        return PackedWeight(
            n=self.out_features,
            k=self.in_features,
            group_size=self.group_size,
            zero_mode=self.zero_mode,
            layout=self.layout,
            codes=self.codes,
            scales=self.scales,
            zeros=self.zeros,
        )

    def forward(
        self, x: torch.Tensor, *, residual: torch.Tensor | None = None, swiglu: bool = False
    ) -> torch.Tensor:
        """x [..., K] fp16 or bf16 -> [..., N]; ``add_to`` and ``swiglu`` say what the options do."""
        return linear(
            x,
            self.packed,
            variant=self.variant,
            bias=self.bias,
            residual=residual,
            swiglu=swiglu,
            config=self.config or "",
        )

    def fuses(self, epilogue: Epilogue) -> bool:
        """Whether the variant can do this in its own launches: ``add_to`` for ``residual``, ``swiglu``."""
        problem = Problem(
            n=self.out_features, k=self.in_features, group_size=self.group_size, zero_mode=self.zero_mode
        )
        return get_variant(self.variant).refuses_epilogue(problem, epilogue) is None

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """``residual + W x + bias``, rounded once: [..., N], [..., K] -> [..., N], a tensor of its own."""
        return cast("torch.Tensor", self(x, residual=residual))  # a call, so that hooks see it

    def swiglu(self, x: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` of a weight gate over up, only the product rounded: [..., K] -> [..., N / 2]."""
        return cast("torch.Tensor", self(x, swiglu=True))

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"group_size={self.group_size}, zero_mode={self.zero_mode}, variant={self.variant}"
        )
