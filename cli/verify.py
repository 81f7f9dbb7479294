"""``roofgap verify``: the correctness suite for a variant, on this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from roofgap.shapes.problem import Problem

INTERPRETER_N, INTERPRETER_K = 64, 512


def verify(
    shape: Annotated[
        str, typer.Argument(metavar="SHAPE|MANIFEST", help="NxK, or a manifest's name or file.")
    ],
    *,
    variant: Annotated[str, typer.Option(help="Kernel variants, joined by commas, or all.")],
    dtype: Annotated[str, typer.Option(help="Activations and scales: fp16 or bf16.")] = "fp16",
    group_size: Annotated[int, typer.Option(help="Weights per scale; -1 for the whole row.")] = 128,
    zero_mode: Annotated[str, typer.Option(help="sym, asym or offset.")] = "sym",
    config: Annotated[
        str | None, typer.Option(help="block_n=64,num_warps=4; default: the variant's.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda or cpu (Triton's interpreter); default: the GPU if there is one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a variant against fp64: exact weights, tails, outliers, infinities, graphs. Exit 1 if a check fails.

    A manifest's smallest shape gets every check, its other shapes exact weights and random products.
    """
    problems = _problems(shape, dtype, group_size, zero_mode)
    device = _choose_device(device)
    if device == "cpu":
        problems = _cut(problems)

    from roofgap.cli.output import print_json, print_table
    from roofgap.kernels.registry import VARIANTS, get_variant
    from roofgap.kernels.verify import EVERY_SHAPE
    from roofgap.kernels.verify import verify as run_checks

    names = list(VARIANTS) if variant == "all" else variant.split(",")
    smallest = min(problems, key=lambda problem: problem.n * problem.k)
    results = []
    for chosen in (get_variant(name.strip()) for name in names):
        settings = chosen.config_type.parse(config) if config else None
        for problem in problems:
            checks = None if problem == smallest else EVERY_SHAPE
            results += run_checks(chosen, [problem], device, config=settings, checks=checks)
    rows = [asdict(result) for result in results]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, title=f"{shape} on {device}")
        counts = {
            name: sum(row["status"] == name for row in rows) for name in ("passed", "failed", "skipped")
        }
        print(", ".join(f"{count} {name}" for name, count in counts.items()))
    if any(result.status == "failed" for result in results):
        raise typer.Exit(1)


def _problems(shape: str, dtype: str, group_size: int, zero_mode: str) -> list[Problem]:
    """The shape, or each distinct shape of the manifest once."""
    from roofgap.shapes.manifest import load_manifest
    from roofgap.shapes.problem import Problem

    base = {"group_size": group_size, "x_dtype": dtype, "zero_mode": zero_mode}
    if shape[:1].isdigit() and "x" in shape:
        return [Problem.parse(shape, **base)]
    return [Problem(n=n, k=k, **base) for n, k in load_manifest(shape).distinct_shapes()]  # type: ignore[arg-type]


def _choose_device(asked: str | None) -> str:
    """``cuda`` or ``cpu``; for the CPU the interpreter is switched on before any kernel is defined."""
    import torch

    from roofgap.shapes.errors import RoofgapError

    if asked not in (None, "cuda", "cpu"):
        raise RoofgapError(f"device {asked!r}", "is not one that kernels run on", "use cuda or cpu")
    if asked == "cuda" and not torch.cuda.is_available():
        raise RoofgapError(
            "device 'cuda'", "torch sees no GPU", "use cpu, or check the driver with nvidia-smi"
        )
    device = asked or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu" and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    return device


def _cut(problems: list[Problem]) -> list[Problem]:
    """Shapes small enough for the interpreter, groups and tails kept; says what was cut, on stderr."""
    from roofgap.shapes.cut import cut_problem

    kept: list[Problem] = []
    for problem in problems:
        small = cut_problem(problem, INTERPRETER_N, INTERPRETER_K)
        if small != problem:
            print(f"roofgap: {problem.shape} is cut to {small.shape} for the interpreter", file=sys.stderr)
        kept.append(small)
    return list(dict.fromkeys(kept))
