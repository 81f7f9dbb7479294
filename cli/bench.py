"""``roofgap bench``: the working tree's kernels as they are now, checked and timed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofgap.cli.output import print_json, print_table
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.kernels.config import KernelConfig
    from roofgap.kernels.variant import Variant
    from roofgap.shapes.problem import Problem
    from roofgap.tuning.measure.bench import Contender
    from roofgap.tuning.measure.cuda import CudaDevice

_MODES = {"cold": "cold-graph", "chained": "chained-graph", "warm": "warm-graph", "eager": "eager"}


def bench(
    target: Annotated[
        str, typer.Argument(metavar="SHAPE|MANIFEST", help="NxK, or a manifest by name or file.")
    ],
    *,
    variant: Annotated[str, typer.Option(help="Kernel variants, joined by commas, or all.")],
    config: Annotated[
        list[str] | None,
        typer.Option(
            help="block_n=64,num_warps=4; repeat it to compare. Default: the winner, else the default."
        ),
    ] = None,
    m: Annotated[str, typer.Option(help="Rows of activations (tokens), joined by commas.")] = "1",
    group_size: Annotated[int, typer.Option(help="Weights per scale; -1 for the whole row.")] = 128,
    dtype: Annotated[str, typer.Option(help="Activations and scales: fp16 or bf16.")] = "fp16",
    zero_mode: Annotated[str, typer.Option(help="sym, asym or offset.")] = "sym",
    bias: Annotated[
        bool, typer.Option("--bias", help="Add a bias of N values (a manifest knows by itself).")
    ] = False,
    cold: Annotated[bool, typer.Option("--cold", help="CUDA graph, L2 cold (the default).")] = False,
    chained: Annotated[
        bool,
        typer.Option("--chained", help="As --cold, with programmatic dependent launches (sm_90 on)."),
    ] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="CUDA graph, the same weight again and again.")
    ] = False,
    eager: Annotated[bool, typer.Option("--eager", help="No graph: host cost included, L2 cold.")] = False,
    baseline: Annotated[str, typer.Option(help="torch, or none.")] = "torch",
    seed: Annotated[int, typer.Option(help="Of the random operands.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Result file to write.")] = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Print the ncu command for one launch of each, and time nothing."),
    ] = False,
    one_launch: Annotated[bool, typer.Option("--one-launch", hidden=True)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result file instead of a table.")
    ] = False,
) -> None:
    """Check kernels against an fp64 reference, then time them: us, roof and attainable gap. Tunes nothing."""
    asked = {"cold": cold, "chained": chained, "warm": warm, "eager": eager}
    chosen = [name for name, given in asked.items() if given] or ["cold"]
    if len(chosen) > 1:
        raise RoofgapError(
            " ".join(f"--{name}" for name in chosen), "exclude one another", "choose one of them"
        )
    if baseline not in ("torch", "none"):
        raise RoofgapError(f"baseline {baseline!r}", "must be torch or none", "use one of them")
    problems = _problems(target, m, group_size=group_size, x_dtype=dtype, zero_mode=zero_mode, bias=bias)
    from roofgap.kernels.registry import VARIANTS, get_variant
    from roofgap.kernels.step import require_dependent
    from roofgap.tuning.measure.bandwidth import open_device
    from roofgap.tuning.measure.cuda import CudaDevice
    from roofgap.tuning.measure.policy import MeasurePolicy

    variants = (
        list(VARIANTS.values()) if variant == "all" else [get_variant(n.strip()) for n in variant.split(",")]
    )
    configs = _configs(variants, config or [])
    policy = MeasurePolicy(mode=_MODES[chosen[0]])  # type: ignore[arg-type]
    if profile or one_launch:
        _profile(CudaDevice(), problems, variants, configs, seed=seed, run=one_launch)
        return
    from roofgap.tuning.environment import gpu_name
    from roofgap.tuning.measure.bench import bench as run
    from roofgap.tuning.measure.failure import reported
    from roofgap.tuning.measure.gap import Ceilings
    from roofgap.tuning.measure.workload import Workload
    from roofgap.tuning.results import make_results

    with reported():
        device = open_device()
        if policy.is_chained:
            require_dependent(device.name)
        ceilings = Ceilings.of(device, policy)
    rows = []
    for role, problem in problems:
        contenders = _contenders(device, problem, variants, configs, baseline, chained=chained)
        found = run(Workload(problem, device, seed), contenders, policy, ceilings)
        rows += [{"matrix": role, **row} for row in found]
        if not as_json:
            print(
                f"{role} {problem.key}: {sum(row['status'] == 'ok' for row in found)} timed", file=sys.stderr
            )
    results = make_results(gpu_name(device.name), device.versions(), rows)
    if out is not None:
        results.save(out)
    if as_json:
        print_json(results.model_dump(mode="json", by_alias=True))
    else:
        _print(rows, f"{device.name}, {policy.key}, {device.read_gbps:,.0f} GB/s read")
    failed = [row for row in rows if row["status"] != "ok"]
    if failed:
        raise typer.Exit(1)


def _problems(target: str, m: str, **fields: Any) -> list[tuple[str, Problem]]:
    """Distinct problems, each under the roles that pose it."""
    from roofgap.shapes.manifest import load_manifest
    from roofgap.shapes.problem import Problem

    tokens = _tokens(m)
    if re.fullmatch(r"\d+x\d+", target):
        return [("-", Problem.parse(target, m=count, **fields)) for count in tokens]
    manifest = load_manifest(target)
    fields.pop("bias")
    roles: dict[Problem, list[str]] = {}
    for count in tokens:
        for matrix, problem in manifest.problems(m=count, **fields):
            roles.setdefault(problem, []).append(matrix.role)
    return [(",".join(names), problem) for problem, names in roles.items()]


def _tokens(m: str) -> list[int]:
    """The counts of ``--m``, each at least 1."""
    try:
        counts = [int(part) for part in m.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise RoofgapError(
            f"m={m!r}", "must be whole numbers of at least 1, joined by commas", "write it like 1,4"
        )
    return counts


def _configs(variants: list[Variant], texts: list[str]) -> list[KernelConfig]:
    """The given configs, which only one variant can have."""
    if texts and len(variants) > 1:
        raise RoofgapError("--config", "belongs to one variant", "name one --variant, or leave --config out")
    return [variants[0].config_type.parse(text) for text in texts]


def _pairs(
    device: CudaDevice,
    problem: Problem,
    variants: list[Variant],
    configs: list[KernelConfig],
    *,
    chained: bool = False,
) -> list[tuple[Variant, KernelConfig]]:
    """Each variant with the given configs (invalid ones are refused), else its winner, else its default."""
    from roofgap.kernels.ops import find_config, limits_of
    from roofgap.tuning import lookup

    lookup.install()
    limits = limits_of(device.torch_device)
    pairs: list[tuple[Variant, KernelConfig]] = []
    for variant in variants:
        for config in configs or [find_config(variant, problem, device.torch_device, chained)]:
            refusal = variant.is_valid(problem, config, limits) if configs else None
            if refusal is not None:
                raise RoofgapError(f"{variant.name} {config.key}", refusal, "choose another config")
            pairs.append((variant, config))
    return pairs


def _contenders(
    device: CudaDevice,
    problem: Problem,
    variants: list[Variant],
    configs: list[KernelConfig],
    baseline: str,
    *,
    chained: bool,
) -> list[Contender]:
    from roofgap.tuning.measure.bench import Contender

    pairs = _pairs(device, problem, variants, configs, chained=chained)
    own = [Contender(variant, config) for variant, config in pairs]
    return [*own, Contender(None, None)] if baseline == "torch" else own


def _profile(
    device: CudaDevice,
    problems: list[tuple[str, Problem]],
    variants: list[Variant],
    configs: list[KernelConfig],
    *,
    seed: int,
    run: bool,
) -> None:
    """Prints the ncu commands, or is what they run."""
    from roofgap.tuning.measure.profiler import ncu_command, run_one_launch
    from roofgap.tuning.measure.workload import Workload

    for _, problem in problems:
        for variant, config in _pairs(device, problem, variants, configs):
            if run:
                run_one_launch(Workload(problem, device, seed), variant, config)
            else:
                print(ncu_command(variant, problem, config))


def _print(rows: list[dict[str, Any]], title: str) -> None:
    """The rows as people read them; evidence of failures below."""
    table = [
        {
            "matrix": row["matrix"],
            "N x K": f"{row['n']} x {row['k']}",
            "M": row["m"],
            "variant": row["variant"],
            "us": row.get("latency_us"),
            "p20-p80": f"{row['p20_us']:.3g}-{row['p80_us']:.3g}" if "p20_us" in row else None,
            "roof gap": row.get("roof_gap"),
            "attainable gap": row.get("attainable_gap"),
            "rel. error": f"{row['rel_error']:.1e}" if "rel_error" in row else None,
            "over torch": row.get("speedup_over_torch"),
            "status": row.get("labels") or row["status"],
        }
        for row in rows
    ]
    print_table(table, title=title)
    for row in rows:
        if row["status"] != "ok":
            print(f"{row['variant']} {row['n']}x{row['k']} M={row['m']}: {row['evidence']}", file=sys.stderr)
