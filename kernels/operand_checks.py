"""What an op refuses before it launches anything: operands that its kernels would misread."""

from __future__ import annotations

from functools import lru_cache

import torch

from roofgap.kernels.formats.layout import Layout, PackedWeight
from roofgap.kernels.formats.weight import DTYPE_NAMES, FLOATS
from roofgap.kernels.variant import Epilogue, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem, ZeroMode

AFTERWARDS = "compute it after the product, in an operator of its own"


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


def check_epilogue(
    variant: Variant, problem: Problem, x: torch.Tensor, residual: torch.Tensor | None, swiglu: bool
) -> None:
    """Refuses an epilogue that the variant does not have, and a residual that its kernels would misread.

    Raises:
        RoofgapError: naming the rule and the remedy.
    """
    asked: dict[Epilogue, bool] = {"residual": residual is not None, "swiglu": swiglu}
    wanted = [epilogue for epilogue, is_asked in asked.items() if is_asked]
    refusals = [variant.refuses_epilogue(problem, epilogue) for epilogue in wanted]
    if len(wanted) > 1:
        refusals.append("a product has one epilogue")
    for refusal in filter(None, refusals):
        raise RoofgapError(f"{' and '.join(wanted)} at {problem.key}", refusal, AFTERWARDS)
    if residual is None:
        return
    shape = (*x.shape[:-1], problem.n)
    if tuple(residual.shape) != shape or residual.dtype != x.dtype or residual.device != x.device:
        raise RoofgapError(
            f"residual {_describe(residual)} on {residual.device}",
            f"must be {DTYPE_NAMES[x.dtype]} {list(shape)} on {x.device}",
            "cast or reshape it",
        )


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")
