"""Every variant as a torch custom op, ``torch.ops.roofgap.<variant>``: works under torch.compile and in CUDA graphs.

An op never tunes, never synchronises and keeps no buffer: it looks a config up, plans, and launches on the tensors'
own device and current stream. What it allocates comes from torch's allocator, and so from a graph's pool in capture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.formats.layout import Layout, PackedWeight
from roofgap.kernels.formats.weight import DTYPE_NAMES, FLOATS
from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.kernels.variant import Limits, Operands, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem, ZeroMode

SCHEMA = (
    "(Tensor x, Tensor codes, Tensor scales, Tensor? zeros, Tensor? bias, "
    "int group_size, str zero_mode, str config) -> Tensor"
)

ConfigLookup = Callable[[Variant, Problem, torch.device], KernelConfig | None]

_lookup: ConfigLookup | None = None
_ops: dict[str, tuple[Variant, Any]] = {}


def set_config_lookup(lookup: ConfigLookup | None) -> None:
    """Installs what an op asks for a config when it is called with an empty one (the tuner installs its winners).

    The lookup gets the variant, the problem and the device, and returns a config or None for the default. It runs once
    per variant, problem and device; None uninstalls it.
    """
    global _lookup  # noqa: PLW0603 - one process-wide hook, as torch's own
    _lookup = lookup
    find_config.cache_clear()


@lru_cache(maxsize=4096)
def find_config(variant: Variant, problem: Problem, device: torch.device) -> KernelConfig:
    """The config an op runs when its caller names none: the installed lookup's, else the default."""
    if _lookup is not None:
        found = _lookup(variant, problem, device)
        if found is not None:
            return found
    return variant.default_config(problem, limits_of(device))


@lru_cache(maxsize=64)
def limits_of(device: torch.device) -> Limits:
    """What a config may use on a device; a CPU (the interpreter) gets the defaults."""
    if device.type != "cuda":
        return Limits()
    properties = torch.cuda.get_device_properties(device)
    return Limits(
        sm_count=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]
        warp_size=properties.warp_size,
    )


def run_plan(variant: Variant, problem: Problem, config: KernelConfig, operands: Operands) -> torch.Tensor:
    """Runs a variant's steps on its tensors' device and returns ``operands.y``; with M = 0 nothing is launched."""
    if problem.m == 0:
        return operands.y
    if operands.x.device.type == "cuda":
        with torch.cuda.device(operands.x.device):
            for step in variant.plan(problem, config, operands):
                step.run()
    else:
        for step in variant.plan(problem, config, operands):
            step.run()
    return operands.y


def op_of(variant: Variant) -> Any:
    """The variant's custom op, registered at first use."""
    known = _ops.get(variant.name)
    if known is not None and known[0] is variant:
        return known[1]
    op = torch.library.custom_op(
        f"roofgap::{variant.name}", _implementation(variant), mutates_args=(), schema=SCHEMA
    )
    op.register_fake(_fake(variant))
    _ops[variant.name] = (variant, op)
    return op


def linear(
    x: torch.Tensor,
    packed: PackedWeight,
    *,
    variant: str,
    bias: torch.Tensor | None = None,
    config: KernelConfig | str = "",
) -> torch.Tensor:
    """``x @ dequantise(W)^T + bias`` by a variant's op: x [..., K] -> [..., N] in x's dtype.

    Args:
        config: a config or its text; empty means the winner or the default.

    Raises:
        RoofgapError: operands the variant cannot take.
    """
    chosen = get_variant(variant)
    if packed.layout != chosen.layout.name:
        raise RoofgapError(
            f"weight in layout {packed.layout!r}",
            f"{variant} reads {chosen.layout.name!r}",
            f"pack it with {chosen.layout.__name__}.pack",
        )
    text = config if isinstance(config, str) else config.key
    return op_of(chosen)(  # type: ignore[no-any-return]
        x, packed.codes, packed.scales, packed.zeros, bias, packed.group_size, packed.zero_mode, text
    )


def problem_of(
    variant: Variant,
    x: torch.Tensor,
    codes: torch.Tensor,
    bias: torch.Tensor | None,
    group_size: int,
    zero_mode: ZeroMode,
) -> Problem:
    """The problem that operands pose.

    Raises:
        RoofgapError: x is not fp16 or bf16, or has no K.
    """
    if x.dtype not in (torch.float16, torch.bfloat16) or x.ndim == 0 or x.shape[-1] == 0:
        raise RoofgapError(
            f"x {_describe(x)}", "must be fp16 or bf16 [..., K] with K of at least 1", "cast or reshape it"
        )
    k = x.shape[-1]
    return Problem(
        n=variant.layout.out_features(codes),
        k=k,
        m=x.numel() // k,
        group_size=group_size,
        x_dtype="fp16" if x.dtype == torch.float16 else "bf16",
        zero_mode=zero_mode,
        bias=bias is not None,
    )


def check(
    variant: Variant,
    problem: Problem,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> None:
    """Refuses operands whose shapes, dtypes, strides or devices a kernel would misread.

    Raises:
        RoofgapError: naming the operand, the rule and the remedy.
    """
    wanted = _shapes(variant.layout, problem)
    pairs = [("codes", codes, wanted.codes), ("scales", scales, wanted.scales)]
    if (zeros is None) != (wanted.zeros is None):
        raise RoofgapError(
            f"zeros {'missing' if zeros is None else 'given'} with zero_mode={problem.zero_mode!r}",
            "sym has no zeros, asym and offset have them",
            "pass what the layout's pack() returned, unchanged",
        )
    if zeros is not None and wanted.zeros is not None:
        pairs.append(("zeros", zeros, wanted.zeros))
    for name, given, want in pairs:
        floats = want.dtype.is_floating_point
        if tuple(given.shape) != tuple(want.shape) or not (
            given.dtype in FLOATS if floats else given.dtype == want.dtype
        ):
            dtype = "a float dtype" if floats else str(want.dtype).removeprefix("torch.")
            raise RoofgapError(
                f"{name} {_describe(given)}",
                f"must be {dtype} {list(want.shape)} for N={problem.n}, K={problem.k}, "
                f"group_size={problem.group_size} in layout {variant.layout.name}",
                "check x's in-features and the weight's layout and group size",
            )
        if not given.is_contiguous():
            raise RoofgapError(
                f"{name} with strides {given.stride()}", "must be contiguous", "repack the weight"
            )
    if bias is not None and (
        tuple(bias.shape) != (problem.n,) or bias.dtype != x.dtype or bias.stride(0) != 1
    ):
        raise RoofgapError(
            f"bias {_describe(bias)}",
            f"must be a contiguous {DTYPE_NAMES[x.dtype]} vector of N={problem.n}",
            "cast it to x's dtype",
        )
    for name, other in (("codes", codes), ("scales", scales), ("zeros", zeros), ("bias", bias)):
        if other is not None and other.device != x.device:
            raise RoofgapError(
                f"{name} on {other.device}, x on {x.device}", "must share a device", "move one of them"
            )
    refusal = variant.supports(problem)
    if refusal:
        raise RoofgapError(f"{variant.name} at {problem.key}", refusal, "choose a variant that takes it")


@lru_cache(maxsize=4096)
def _shapes(layout: type[Layout], problem: Problem) -> PackedWeight:
    """The layout's meta tensors, made once per problem: an eager call has no time for them."""
    return layout.meta(problem)


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """x [..., K] as [M, K] with contiguous rows: a view where rows are merely further apart than K, else a copy."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def _implementation(variant: Variant) -> Callable[..., torch.Tensor]:
    def run(
        x: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
        bias: torch.Tensor | None,
        group_size: int,
        zero_mode: ZeroMode,
        config: str,
    ) -> torch.Tensor:
        problem = problem_of(variant, x, codes, bias, group_size, zero_mode)
        check(variant, problem, x, codes, scales, zeros, bias)
        y = torch.empty((problem.m, problem.n), dtype=x.dtype, device=x.device)
        shape = (*x.shape[:-1], problem.n)
        if problem.m == 0:
            return y.reshape(shape)
        refuse_missing_gpu(variant, x.device)
        if config:
            chosen = variant.config_type.parse(config)
            refusal = variant.is_valid(problem, chosen, limits_of(x.device))
            if refusal:
                raise RoofgapError(
                    f"config {config} at {problem.key}", refusal, "choose others, or none for the default"
                )
        else:
            chosen = find_config(variant, problem, x.device)
        operands = Operands(x=rows_of(x), codes=codes, scales=scales, zeros=zeros, bias=bias, y=y)
        return run_plan(variant, problem, chosen, operands).reshape(shape)

    return run


def _fake(variant: Variant) -> Callable[..., torch.Tensor]:
    def fake(
        x: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
        bias: torch.Tensor | None,
        group_size: int,
        zero_mode: str,
        config: str,
    ) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], variant.layout.out_features(codes)))

    return fake


def refuse_missing_gpu(variant: Variant, device: torch.device) -> None:
    """Raises a RoofgapError for CPU tensors whose kernels were defined for a GPU (or the reverse needs no refusal)."""
    from triton.runtime.jit import JITFunction

    if device.type == "cpu" and isinstance(variant.kernels()[0], JITFunction):
        raise RoofgapError(
            "tensors on the CPU",
            "Triton kernels run on a GPU or in the interpreter",
            "move them to a GPU, or set TRITON_INTERPRET=1 before roofgap.kernels is imported",
        )


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")


for _variant in VARIANTS.values():
    op_of(_variant)
