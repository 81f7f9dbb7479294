"""What a build makes of a dense linear: an own 4-bit one, or that of another project, imported only when asked for."""

from __future__ import annotations

import importlib
from typing import ClassVar, cast

import torch
from torch import nn
from torch.nn import functional

from roofgap.e2e.arms import Build
from roofgap.e2e.projections import DecodeLinear, MakeLinear
from roofgap.kernels.formats.quantise import quantise
from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem, ZeroMode
from roofgap.tuning.peers.peer import Peer
from roofgap.tuning.peers.registry import make_peers

ZERO_MODES: dict[str, ZeroMode] = {"tinygemm": "offset", "gemlite": "asym", "marlin": "sym"}
"""What peers store; own linears store what is asked for."""

_PEERS = make_peers()


def missing(build: Build) -> str | None:
    """Why a build cannot be made here, or None."""
    if build.weights == "w4" and build.variant not in VARIANTS:
        return f"no kernel variant {build.variant}"
    peer = _PEERS.get("bnb-nf4" if build.weights == "nf4" else build.weights)
    return None if peer is None else peer.missing(torch.bfloat16)


def linear_factory(build: Build, group_size: int, zero_mode: ZeroMode) -> MakeLinear:
    """Makes a build's linear out of a dense one.

    Raises:
        RoofgapError: the build cannot be made here; the returned function raises it for a shape that is refused.
    """
    reason = missing(build)
    if reason:
        raise RoofgapError(f"{build.weights} linears", reason, "install it, or leave its arms out")
    if build.weights == "nf4":
        return _nf4
    if build.weights == "tinygemm":
        return lambda linear: TinyGemmLinear(linear, group_size)
    if build.weights == "gemlite":
        return lambda linear: GemLiteLinear(linear, group_size)
    if build.weights == "marlin":
        return lambda linear: MarlinLinear(linear, group_size)
    variant = get_variant(str(build.variant))

    def own(linear: nn.Linear) -> nn.Module:
        problem = Problem(
            n=linear.out_features,
            k=linear.in_features,
            group_size=group_size,
            x_dtype="bf16",
            zero_mode=zero_mode,
            bias=linear.bias is not None,
        )
        refusal = variant.supports(problem)
        if refusal:
            raise RoofgapError(
                f"{variant.name} at {problem.key}", refusal, "choose another variant or format"
            )
        return DecodeLinear(canonical(linear, group_size, zero_mode), linear.bias, variant=variant.name)

    return own


def canonical(linear: nn.Linear, group_size: int, zero_mode: ZeroMode) -> QuantizedWeight:
    """Round-to-nearest; the same codes for every arm of one zero mode. Offsets are in the weight's dtype."""
    weight = quantise(linear.weight.detach(), group_size, symmetric=zero_mode == "sym")
    if zero_mode != "offset":
        return weight
    wide = weight.with_offsets()
    assert wide.zeros is not None
    dtype = linear.weight.dtype
    return QuantizedWeight(
        codes=wide.codes, scales=wide.scales.to(dtype), zeros=wide.zeros.to(dtype), group_size=group_size
    )


def _nf4(linear: nn.Linear) -> nn.Module:
    """bitsandbytes' own module: its Python cost per call is a part of what is measured."""
    bnb = importlib.import_module("bitsandbytes")
    made = bnb.nn.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        compute_dtype=linear.weight.dtype,
        compress_statistics=False,
        quant_type="nf4",
        device="meta",
    )
    made.weight = bnb.nn.Params4bit(
        linear.weight.detach(),
        requires_grad=False,
        compress_statistics=False,
        quant_type="nf4",
        module=made,
    ).to(linear.weight.device)
    made.bias = linear.bias
    return cast("nn.Module", made)


class PeerLinear(nn.Module):
    """A peer's packed weight beside the canonical one that it was made from.

    The canonical weight stays on the CPU, for the reference and for prefill on peers without it; it is not a buffer.

    Raises:
        RoofgapError: the peer does not take the shape.
    """

    peer: ClassVar[Peer]
    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear, group_size: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        zero_mode = ZERO_MODES[self.peer.name]
        problem = Problem(
            n=self.out_features,
            k=self.in_features,
            group_size=group_size,
            x_dtype="bf16",
            zero_mode=zero_mode,
        )
        refusal = self.peer.refuses(problem)
        if refusal is not None:
            raise RoofgapError(
                f"N={problem.n}, K={problem.k}, group_size={group_size}",
                refusal,
                f"leave the {self.peer.name} arms out",
            )
        weight = canonical(linear, group_size, zero_mode)
        self._cpu = weight.to("cpu")
        self._device = linear.weight.device
        self._packed = self.peer.pack(weight, torch.bfloat16)
        for name, tensor in self._packed.read.items():
            self.register_buffer(name, tensor)  # the same storage: what it takes can be counted
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    @property
    def weight_values(self) -> QuantizedWeight:
        """The canonical weight on the linear's device."""
        return self._cpu.to(self._device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One row through the peer's kernel; a prompt through the rebuilt dense weight, as own linears do."""
        if x.numel() != self.in_features:
            return functional.linear(x, self.weight_values.dequantise(x.dtype), self.bias)
        y = self.peer.run(x.reshape(1, self.in_features), self._packed)
        return (y if self.bias is None else y + self.bias).reshape(*x.shape[:-1], self.out_features)


class TinyGemmLinear(PeerLinear):
    """torch's ``_weight_int4pack_mm``."""

    peer = _PEERS["tinygemm"]


class GemLiteLinear(PeerLinear):
    """GemLite's A16W4. It tunes every shape when it first runs, with the settings that the library comes with."""

    peer = _PEERS["gemlite"]


class MarlinLinear(PeerLinear):
    """Marlin as GPTQModel builds it; GPTQModel loads its op."""

    peer = _PEERS["marlin"]
