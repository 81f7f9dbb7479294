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
from roofgap.kernels.formats.layout import PackedWeight
from roofgap.kernels.operand_checks import AFTERWARDS, check, check_epilogue, problem_of
from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.kernels.step import launches_depend
from roofgap.kernels.variant import Limits, Operands, Variant, max_cluster
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem, ZeroMode

_TENSORS = "(Tensor x, Tensor codes, Tensor scales, Tensor? zeros, Tensor? bias, "
_LAUNCH = "int group_size, str zero_mode, str config) -> Tensor"
SCHEMA = _TENSORS + _LAUNCH
FUSED_SCHEMA = f"{_TENSORS}Tensor? residual, bool swiglu, {_LAUNCH}"

ConfigLookup = Callable[[Variant, Problem, torch.device, bool], KernelConfig | None]

_lookup: ConfigLookup | None = None
_ops: dict[str, tuple[Variant, Any]] = {}


def set_config_lookup(lookup: ConfigLookup | None) -> None:
    """Installs what an op asks for a config when it is called with an empty one (the tuner installs its winners).

    The lookup gets the variant, the problem, the device and whether launches are dependent ones (``kernels.step``), and
    returns a config or None for the default. It runs once for each of these; None uninstalls it.
    """
    global _lookup  # noqa: PLW0603 - one process-wide hook, as torch's own
    _lookup = lookup
    _found.cache_clear()


def find_config(
    variant: Variant, problem: Problem, device: torch.device, chained: bool = False
) -> KernelConfig:
    """The config an op runs when its caller names none: the installed lookup's, else the default."""
    return _found(variant, problem, device, chained)


@lru_cache(maxsize=4096)
def _found(variant: Variant, problem: Problem, device: torch.device, chained: bool) -> KernelConfig:
    if _lookup is not None:
        found = _lookup(variant, problem, device, chained)
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
        max_cluster=max_cluster(properties.major if torch.version.cuda else 0),
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
    return _registered(variant, variant.name, _implementation, _fake, SCHEMA)


def fused_op_of(variant: Variant) -> Any:
    """The custom op ``roofgap::NAME_fused``, which adds a residual or applies a SwiGLU before it rounds.

    Raises:
        RoofgapError: the variant has no epilogue.
    """
    if not variant.epilogues:
        raise RoofgapError(f"{variant.name} with a residual or SwiGLU", "has no epilogue", AFTERWARDS)
    return _registered(variant, f"{variant.name}_fused", _fused_implementation, _fused_fake, FUSED_SCHEMA)


def _registered(
    variant: Variant,
    name: str,
    implementation: Callable[[Variant], Callable[..., torch.Tensor]],
    fake: Callable[[Variant], Callable[..., torch.Tensor]],
    schema: str,
) -> Any:
    known = _ops.get(name)
    if known is not None and known[0] is variant:
        return known[1]
    op = torch.library.custom_op(f"roofgap::{name}", implementation(variant), mutates_args=(), schema=schema)
    op.register_fake(fake(variant))
    _ops[name] = (variant, op)
    return op


def linear(
    x: torch.Tensor,
    packed: PackedWeight,
    *,
    variant: str,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    swiglu: bool = False,
    config: KernelConfig | str = "",
) -> torch.Tensor:
    """``x @ dequantise(W)^T + bias`` by a variant's op: x [..., K] -> [..., N] in x's dtype.

    Args:
        residual: [..., N] in x's dtype, added in fp32 before the result is rounded. The result is a tensor of its own.
        swiglu: the weight is gate over up, [2 I, K]; returns silu(gate) * up [..., I], of which only the product is
            rounded.
        config: a config or its text; empty means the winner or the default of the plain problem.

    Raises:
        RoofgapError: operands the variant cannot take, or an epilogue it does not have.
    """
    chosen = get_variant(variant)
    if packed.layout != chosen.layout.name:
        raise RoofgapError(
            f"weight in layout {packed.layout!r}",
            f"{variant} reads {chosen.layout.name!r}",
            f"pack it with {chosen.layout.__name__}.pack",
        )
    text = config if isinstance(config, str) else config.key
    tensors = (x, packed.codes, packed.scales, packed.zeros, bias)
    launch = (packed.group_size, packed.zero_mode, text)
    if residual is None and not swiglu:
        return op_of(chosen)(*tensors, *launch)  # type: ignore[no-any-return]
    return fused_op_of(chosen)(*tensors, residual, swiglu, *launch)  # type: ignore[no-any-return]


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """x [..., K] as [M, K] with contiguous rows: a view where rows are merely further apart than K, else a copy."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def _compute(
    variant: Variant,
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    swiglu: bool,
    group_size: int,
    zero_mode: ZeroMode,
    config: str,
) -> torch.Tensor:
    problem = problem_of(variant, x, codes, bias, group_size, zero_mode)
    check(variant, problem, x, codes, scales, zeros, bias)
    if residual is not None or swiglu:
        check_epilogue(variant, problem, x, residual, swiglu)
    width = problem.n // 2 if swiglu else problem.n
    y = torch.empty((problem.m, width), dtype=x.dtype, device=x.device)
    shape = (*x.shape[:-1], width)
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
        chosen = find_config(variant, problem, x.device, launches_depend())
    operands = Operands(
        x=rows_of(x),
        codes=codes,
        scales=scales,
        zeros=zeros,
        bias=bias,
        y=y,
        residual=None if residual is None else rows_of(residual),
        swiglu=swiglu,
    )
    return run_plan(variant, problem, chosen, operands).reshape(shape)


def _implementation(variant: Variant) -> Callable[..., torch.Tensor]:
    def run(
        x: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
        bias: torch.Tensor | None,
        *launch: Any,
    ) -> torch.Tensor:
        return _compute(variant, x, codes, scales, zeros, bias, None, False, *launch)

    return run


def _fake(variant: Variant) -> Callable[..., torch.Tensor]:
    def fake(x: torch.Tensor, codes: torch.Tensor, *_: object) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], variant.layout.out_features(codes)))

    return fake


def _fused_implementation(variant: Variant) -> Callable[..., torch.Tensor]:
    def run(*operands: Any) -> torch.Tensor:
        return _compute(variant, *operands)

    return run


def _fused_fake(variant: Variant) -> Callable[..., torch.Tensor]:
    def fake(
        x: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None,
        swiglu: bool,
        *_: object,
    ) -> torch.Tensor:
        n = variant.layout.out_features(codes)
        return x.new_empty((*x.shape[:-1], n // 2 if swiglu else n))

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


for _variant in VARIANTS.values():
    op_of(_variant)
    if _variant.epilogues:
        fused_op_of(_variant)
