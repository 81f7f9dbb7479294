"""``roofgap inspect``: what a kernel costs, read from code compiled for a named GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from roofgap.kernels.static.metrics import CompileFailure, StaticMetrics
    from roofgap.kernels.static.worker import InspectRequest

Named = TypeVar("Named")

_COLUMNS = (
    "variant", "target", "registers", "spill_bytes", "shared_bytes", "occupancy", "occupancy_limit",
    "instr_per_weight", "weight_load_bits", "loads_per_word", "affordable", "bound",
)  # fmt: skip
_STAGES = "sass, ptx, ttgir, ttir, llir; on AMD amdgcn, ttgir, ttir, llir"


def inspect(
    *,
    variant: Annotated[str, typer.Option(help="Kernel variants, joined by commas, or all.")],
    shape: Annotated[str, typer.Option(help="NxK.")],
    target: Annotated[
        str, typer.Option(help="GPUs to compile for (sm_86, gfx942, ...), joined by commas, or all.")
    ],
    m: Annotated[int, typer.Option(help="Rows of activations (tokens).")] = 1,
    group_size: Annotated[int, typer.Option(help="Weights per scale; -1 for the whole row.")] = 128,
    dtype: Annotated[str, typer.Option(help="Activations and scales: fp16 or bf16.")] = "fp16",
    zero_mode: Annotated[str, typer.Option(help="sym, asym or offset.")] = "sym",
    bias: Annotated[bool, typer.Option("--bias", help="Add a bias of N values.")] = False,
    config: Annotated[
        str | None, typer.Option(help="block_n=64,num_warps=4; default: the variant's.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device profile to weigh the kernel on; default: the target's own.")
    ] = None,
    source: Annotated[str | None, typer.Option(help=f"Print the code instead: {_STAGES}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Registers, spills, occupancy, instructions per weight and what bounds a kernel. Needs no GPU."""
    from roofgap.cli.output import print_json
    from roofgap.kernels.registry import VARIANTS, get_variant
    from roofgap.kernels.static.metrics import CompileFailure
    from roofgap.kernels.static.pool import CompilePool, failure_error, request_for
    from roofgap.kernels.static.targets import TARGETS, device_for, load_target
    from roofgap.shapes.problem import Problem

    problem = Problem.parse(shape, m=m, group_size=group_size, x_dtype=dtype, zero_mode=zero_mode, bias=bias)
    variants = _choose(variant, VARIANTS, get_variant)
    targets = [(chosen, device_for(chosen, device)) for chosen in _choose(target, TARGETS, load_target)]
    requests = [
        request_for(each, problem, chosen, each.config_type.parse(config) if config else None, profile)
        for each in variants
        for chosen, profile in targets
    ]
    for request in requests:
        _warn(request)
    with CompilePool(workers=min(2, len(requests))) as pool:
        if source is not None:
            for request in requests:
                sys.stdout.write(pool.source(request, source))
            return
        results = pool.inspect(requests)
    if len(results) == 1:
        if isinstance(results[0], CompileFailure):
            raise failure_error(results[0])
        if as_json:
            print_json(results[0].model_dump(mode="json"))
        else:
            _print_one(results[0])
        return
    if as_json:
        print_json([result.model_dump(mode="json") for result in results])
    else:
        _print_many(results)
    if any(isinstance(result, CompileFailure) for result in results):
        raise typer.Exit(1)


def _choose(names: str, known: Iterable[str], load: Callable[[str], Named]) -> list[Named]:
    """The named things, or all of them."""
    return [load(name.strip()) for name in (known if names == "all" else names.split(","))]


def _warn(request: InspectRequest) -> None:
    """Says on stderr when the variant would not try the config; its code is of interest all the same."""
    reason = request.variant.is_valid(request.problem, request.config, request.target.limits(request.device))
    if reason is not None:
        print(f"roofgap: {request.variant.name} ({request.config.key}): {reason}", file=sys.stderr)


def _row(result: StaticMetrics) -> dict[str, Any]:
    counts = result.instructions_per_weight
    return {
        **result.model_dump(include=set(_COLUMNS)),
        "instr_per_weight": counts["total"] if counts else None,
        "affordable": result.budget.pipes[0].affordable if result.budget else None,
    }


def _print_many(results: list[StaticMetrics | CompileFailure]) -> None:
    """One row each, then the failures."""
    from roofgap.cli.output import print_table
    from roofgap.kernels.static.metrics import CompileFailure

    measured = [result for result in results if not isinstance(result, CompileFailure)]
    if measured:
        print_table([_row(result) for result in measured], _COLUMNS, title=f"{measured[0].problem}")
    for result in results:
        if isinstance(result, CompileFailure):
            print(f"{result.variant} for {result.target} ({result.config}): {result.kind}: {result.message}")


def _print_one(result: StaticMetrics) -> None:
    """The figures, the instructions by class, and the reasoning."""
    from roofgap.cli.output import cell, print_table

    print_table([_row(result)], _COLUMNS, title=f"{result.variant} at {result.problem} ({result.config})")
    if len(result.launches) > 1:
        columns = ("role", "kernel", "registers", "spill_bytes", "shared_bytes", "occupancy")
        print_table([launch.model_dump(include=set(columns)) for launch in result.launches], columns)
    if result.instructions_per_weight is not None:
        counts = {kind: count for kind, count in result.instructions_per_weight.items() if count}
        print_table([counts], title="thread-instructions per weight, main loop")
        print(
            f"{cell(result.instructions_in_loop)} instructions per {cell(result.weights_per_iteration)} "
            f"weights of a program; each packed word asked for {cell(result.loads_per_word)}x"
        )
    for line in (*result.reasoning, *result.notes):
        print(line)
    if result.torch_steps:
        print(f"Not inspected, left to torch: {', '.join(result.torch_steps)}.")
    if not result.fits:
        print(f"Does not fit on {result.target}: out of {result.occupancy_limit}.")
