"""One launch for a profiler to look at, and the command that does so."""

from __future__ import annotations

import shlex
import shutil

import torch

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.inputs import operands
from roofgap.kernels.variant import Variant
from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.workload import Workload


def ncu_command(variant: Variant, problem: Problem, config: KernelConfig) -> str:
    """The Nsight Compute command for exactly one launch of a config.

    ncu flushes the caches before each pass (``--cache-control all``), as the cold policy does; clocks are
    left alone.
    """
    options = [
        "--m", str(problem.m), "--group-size", str(problem.group_size), "--dtype", problem.x_dtype,
        "--zero-mode", problem.zero_mode, *(["--bias"] if problem.bias else []),
    ]  # fmt: skip
    report = f"{variant.name}-{problem.key}"
    return shlex.join(
        [
            *("ncu", "--profile-from-start", "off", "--set", "full", "--import-source", "yes"),
            *("--cache-control", "all", "--clock-control", "none", "--force-overwrite", "-o", report),
            *(shutil.which("roofgap") or "roofgap", "bench", problem.shape, "--variant", variant.name),
            *("--config", config.key, *options, "--one-launch"),
        ]
    )


def run_one_launch(workload: Workload, variant: Variant, config: KernelConfig) -> None:
    """Compiles and runs once, then once more between cudaProfilerStart and cudaProfilerStop."""
    packed = workload.packed(variant.layout, 1)[0]
    out = torch.empty(
        (workload.problem.m, workload.problem.n), dtype=workload.dtype, device=workload.x.device
    )
    given = operands(workload.x, packed, workload.bias, out)
    steps = variant.plan(workload.problem, config, given)
    for step in steps:
        step.run()
    workload.device.synchronise()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    for step in steps:
        step.run()
    workload.device.synchronise()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
