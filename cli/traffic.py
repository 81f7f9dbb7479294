"""``roofgap traffic``: bytes that a variant moves, counted in Triton's interpreter."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

_COLUMNS = (
    "tensor", "kind", "asked_bytes", "unique_bytes", "size_bytes", "ratio", "bytes_per_weight", "modelled"
)  # fmt: skip


def traffic(
    *,
    variant: Annotated[str, typer.Option(help="Kernel variant.")],
    shape: Annotated[str, typer.Option(help="NxK, at most 256x1536 weights.")],
    m: Annotated[int, typer.Option(help="Rows of activations (tokens).")] = 1,
    group_size: Annotated[int, typer.Option(help="Weights per scale; -1 for the whole row.")] = 128,
    dtype: Annotated[str, typer.Option(help="Activations and scales: fp16 or bf16.")] = "fp16",
    zero_mode: Annotated[str, typer.Option(help="sym, asym or offset.")] = "sym",
    bias: Annotated[bool, typer.Option("--bias", help="Add a bias of N values.")] = False,
    config: Annotated[
        str | None, typer.Option(help="block_n=64,num_warps=4; default: the variant's.")
    ] = None,
    cut: Annotated[
        bool, typer.Option("--cut", help="Cut a larger shape down; groups and tails are kept.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count the bytes a variant loads, stores and atomically adds, per tensor. Needs no GPU."""
    if "triton" not in sys.modules:  # Triton reads it when a kernel is defined, for its own library at import
        os.environ["TRITON_INTERPRET"] = "1"
    from roofgap.cli.output import print_json
    from roofgap.kernels.traffic.run import count_traffic
    from roofgap.shapes.cut import cut_problem
    from roofgap.shapes.problem import Problem

    asked = Problem.parse(shape, m=m, group_size=group_size, x_dtype=dtype, zero_mode=zero_mode, bias=bias)
    problem = cut_problem(asked) if cut else asked
    counted = count_traffic(variant, problem, config)
    if problem != asked:
        counted = counted.model_copy(update={"cut_from": asked.shape})
        print(f"roofgap: {asked.shape} is cut to {problem.shape}", file=sys.stderr)
    if as_json:
        print_json(counted.model_dump(mode="json"))
    else:
        _print(counted)


def _print(counted: Any) -> None:
    """The rows as a table, then what to look at first."""
    from roofgap.cli.output import cell, print_table

    settings = ",".join(f"{name}={value}" for name, value in counted.config.items())
    rows = [row.model_dump() for row in counted.rows]
    print_table(rows, _COLUMNS, title=f"{counted.variant} at {counted.problem.key} ({settings})")
    print(f"weight path: {cell(counted.bytes_per_weight)} bytes per weight (codes and workspaces)")
    ratios = {name: counted.ratio(name) for name in ("codes", "scales", "zeros", "x")}
    print(
        "loaded, of its size: "
        + ", ".join(f"{name} {cell(value)}x" for name, value in ratios.items() if value)
    )
    print(
        f"asked for {cell(counted.asked_bytes)} bytes, {cell(counted.cached_bytes)} without repeats; "
        f"at least {cell(counted.minimum_bytes)} must move"
    )
