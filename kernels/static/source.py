"""The code of a variant at one stage of compilation, for reading."""

from __future__ import annotations

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.static import sass
from roofgap.kernels.static.compile import compile_launch, plan_on_meta, readable, with_file
from roofgap.kernels.static.targets import Target
from roofgap.kernels.variant import Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem


def read_source(variant: Variant, problem: Problem, config: KernelConfig, target: Target, stage: str) -> str:
    """Code of every launch, each under a line with its role. Runs in a compile worker.

    Raises:
        RoofgapError: the target has no such stage.
    """
    launches, _, codes = plan_on_meta(variant, problem, config)
    parts = []
    for launch in launches:
        compiled = compile_launch(launch, target, codes)
        if stage == "sass" and target.backend == "cuda":
            text = sass.strip_lines(with_file(compiled.binary, "cubin", sass.disassemble))
        elif stage in compiled.asm:
            text = readable(stage, compiled.asm[stage])
        else:
            stages = [name for name in compiled.asm if name != "source"]
            stages += ["sass"] if target.backend == "cuda" else []
            raise RoofgapError(
                f"--source {stage}", f"{target.name} has no such stage", f"use one of {', '.join(stages)}"
            )
        parts.append(f"// {launch.role}: {launch.kernel.__name__}, grid {launch.grid}\n{text}")
    return "\n".join(parts)
