"""What a build makes of a dense linear: an own 4-bit one, or that of another project, imported only when asked for."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from roofgap.e2e.arms import Build
from roofgap.e2e.projections import DecodeLinear, MakeLinear
from roofgap.kernels.formats.kpacked import KPacked
from roofgap.kernels.formats.quantise import quantise
from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem, ZeroMode

ZERO_MODES: dict[str, ZeroMode] = {"tinygemm": "offset", "gemlite": "asym", "marlin": "sym"}
"""What peers store; own linears store what is asked for."""


def missing(build: Build) -> str | None:
    """Why a build cannot be made here, or None."""
    if build.weights == "w4" and build.variant not in VARIANTS:
        return f"no kernel variant {build.variant}"
    if build.weights == "nf4" and not _installed("bitsandbytes"):
        return "bitsandbytes is not installed"
    if build.weights == "gemlite" and not _installed("gemlite"):
        return "gemlite is not installed"
    if build.weights == "marlin" and not hasattr(torch.ops.gptqmodel_marlin_bf16, "gptq_marlin_gemm_bf16"):
        return "no op gptqmodel_marlin_bf16::gptq_marlin_gemm_bf16 is loaded (GPTQModel's Marlin)"
    if build.weights == "tinygemm" and not torch.cuda.is_available():
        return "tinygemm needs a GPU"
    return None


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


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
    """

    bias: torch.Tensor | None

    def __init__(self, linear: nn.Linear, weight: QuantizedWeight) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._cpu = weight.to("cpu")
        self._device = linear.weight.device
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    @property
    def weight_values(self) -> QuantizedWeight:
        """The canonical weight on the linear's device."""
        return self._cpu.to(self._device)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """x [1, K] -> [1, N], without bias."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One row through the peer's kernel; a prompt through the rebuilt dense weight, as own linears do."""
        if x.numel() != self.in_features:
            return functional.linear(x, self.weight_values.dequantise(x.dtype), self.bias)
        y = self.matvec(x.reshape(1, self.in_features))
        return (y if self.bias is None else y + self.bias).reshape(*x.shape[:-1], self.out_features)


class TinyGemmLinear(PeerLinear):
    """torch's ``_weight_int4pack_mm``: w = (q - 8) * s + z, s and z bf16 interleaved as [K/g, N, 2]."""

    def __init__(self, linear: nn.Linear, group_size: int) -> None:
        n, k = linear.out_features, linear.in_features
        if group_size not in (32, 64, 128, 256) or k % group_size or k % 128 or n % 8:
            raise RoofgapError(
                f"N={n}, K={k}, group_size={group_size}",
                "tinygemm takes N in multiples of 8, K of 128 and of the group, groups of 32 to 256",
                "leave the tinygemm arms out",
            )
        weight = canonical(linear, group_size, "offset")
        super().__init__(linear, weight)
        self.group_size = group_size
        packed = (weight.codes[:, ::2] << 4) | weight.codes[:, 1::2]
        self.register_buffer("packed", torch._convert_weight_to_int4pack(packed.contiguous(), 8))
        assert weight.zeros is not None
        zeros = weight.zeros + 8 * weight.scales  # offset of code 8
        self.register_buffer(
            "scales_zeros", torch.stack([weight.scales.T, zeros.T], dim=-1).to(torch.bfloat16).contiguous()
        )

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """bf16 only."""
        return torch._weight_int4pack_mm(x, self.packed, self.group_size, self.scales_zeros)  # type: ignore[arg-type]


class GemLiteLinear(PeerLinear):
    """GemLite's A16W4 linear. It tunes every shape when it first runs, about 40 s each."""

    def __init__(self, linear: nn.Linear, group_size: int) -> None:
        weight = canonical(linear, group_size, "asym")
        super().__init__(linear, weight)
        core = importlib.import_module("gemlite.core")
        self.inner: Any = core.GemLiteLinearTriton(
            W_nbits=4,
            group_size=group_size,
            in_features=linear.in_features,
            out_features=linear.out_features,
            input_dtype=core.DType.BF16,
            output_dtype=core.DType.BF16,
        )
        assert weight.zeros is not None
        self.inner.pack(weight.codes, weight.scales, weight.zeros.to(weight.scales.dtype), bias=None)

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """bf16."""
        return cast("torch.Tensor", self.inner(x))


class MarlinLinear(PeerLinear):
    """Marlin (vLLM lineage) as GPTQModel builds it: symmetric codes, scales permuted in blocks of 64, fp32 reduction.

    Its op is loaded by GPTQModel; weights go through its own repacking op from GPTQ's layout, which is `KPacked`.
    """

    UINT4B8 = 4 << 8 | 8 << 17 | 1 << 50  # ScalarType id: 4 mantissa bits, bias 8, IEEE NaN tag

    def __init__(self, linear: nn.Linear, group_size: int) -> None:
        n, k = linear.out_features, linear.in_features
        if n % 64 or k % 128 or (group_size != -1 and k % group_size):
            raise RoofgapError(
                f"N={n}, K={k}, group_size={group_size}",
                "Marlin takes N in multiples of 64, K of 128 and of the group",
                "leave the Marlin arms out",
            )
        weight = canonical(linear, group_size, "sym")
        super().__init__(linear, weight)
        packed = KPacked.pack(weight)
        device = linear.weight.device
        self.register_buffer("none", torch.empty(0, dtype=torch.int32, device=device))
        self.register_buffer(
            "codes", torch.ops.gptqmodel_marlin_bf16.gptq_marlin_repack(packed.codes, self.none, k, n, 4)
        )
        order = [i + 8 * j for i in range(8) for j in range(8)]
        scales = packed.scales.reshape(-1, 64)[:, order].reshape(-1, n)
        self.register_buffer("scales", scales.to(torch.bfloat16).contiguous())
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        self.register_buffer("workspace", torch.zeros(max(sms, 128), dtype=torch.int32, device=device))

    def matvec(self, x: torch.Tensor) -> torch.Tensor:
        """bf16."""
        y = torch.ops.gptqmodel_marlin_bf16.gptq_marlin_gemm_bf16(
            x, None, self.codes, None, self.scales, None, self.none, self.none, self.none, self.workspace,
            self.UINT4B8, 1, self.out_features, self.in_features, True, False, True, False,
        )  # fmt: skip
        return cast("torch.Tensor", y)
