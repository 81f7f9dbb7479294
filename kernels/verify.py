"""Runs the correctness checks for a variant; shared by the tests, the tuner's gate and ``roofgap verify``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from roofgap.kernels.checks import CHECKS, Case, SkipCheckError, WrongResultError
from roofgap.kernels.config import KernelConfig
from roofgap.kernels.ops import limits_of, refuse_missing_gpu
from roofgap.kernels.variant import Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

CheckStatus = Literal["passed", "failed", "skipped"]

EVERY_SHAPE = ("identity", "random")
"""Enough for a large real shape whose formats are checked in full on a small one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check said of one variant on one problem."""

    variant: str
    problem: str
    check: str
    status: CheckStatus
    detail: str


def verify(
    variant: Variant,
    problems: Iterable[Problem],
    device: torch.device | str,
    *,
    config: KernelConfig | None = None,
    checks: Sequence[str] | None = None,
) -> list[CheckResult]:
    """Runs checks on every problem; M and bias of a problem are the checks' own to choose.

    Args:
        config: launch values to check instead of the defaults.
        checks: names from ``CHECKS``; None runs all of them.

    Raises:
        RoofgapError: an unknown check, a config that is not valid, or a device that kernels cannot run on.
    """
    device = torch.device(device)
    refuse_missing_gpu(variant, device)
    names = list(CHECKS) if checks is None else list(checks)
    for name in names:
        if name not in CHECKS:
            raise RoofgapError(f"check {name!r}", "does not exist", f"use {', '.join(CHECKS)}")
    results = []
    for problem in problems:
        refusal = variant.supports(problem)
        if refusal is None and config is not None:
            refusal = variant.is_valid(problem, config, limits_of(device))
        if refusal is not None:
            raise RoofgapError(
                f"{variant.name} at {problem.key}", refusal, "choose another config or variant"
            )
        case = Case(variant, problem, device, config)
        results += [_run(case, name) for name in names]
    return results


def _run(case: Case, name: str) -> CheckResult:
    status: CheckStatus = "passed"
    try:
        with warnings.catch_warnings():
            # NumPy remarks on the infinities that checks send through the interpreter.
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton.runtime.interpreter")
            detail = CHECKS[name](case)
    except SkipCheckError as reason:
        status, detail = "skipped", str(reason)
    except WrongResultError as failure:
        status, detail = "failed", str(failure)
    except Exception as error:  # a kernel that does not compile or launch has failed its check, by name
        status, detail = "failed", f"{type(error).__name__}: {error}"
    return CheckResult(
        variant=case.variant.name, problem=case.problem.key, check=name, status=status, detail=detail
    )
