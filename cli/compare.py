"""``roofgap compare``: own kernels beside every peer, same problem, same policy, one run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofgap.cli.output import print_json, print_table
from roofgap.cli.targets import problems_of
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roofgap.tuning.peers.compare import Row
    from roofgap.tuning.results import ResultFile


def compare(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SHAPE|MANIFEST", help="NxK, or a manifest by name or file; several joined by commas."
        ),
    ],
    *,
    variant: Annotated[str, typer.Option(help="Own kernels, joined by commas.")] = "v3,v4",
    peers: Annotated[str, typer.Option(help="Peers, joined by commas, or all.")] = "all",
    m: Annotated[str, typer.Option(help="Rows of activations (tokens), joined by commas.")] = "1",
    group_size: Annotated[int, typer.Option(help="Weights per scale.")] = 128,
    dtype: Annotated[str, typer.Option(help="Activations and scales: fp16 or bf16.")] = "fp16",
    zero_mode: Annotated[str, typer.Option(help="sym, asym or offset; Marlin takes sym only.")] = "sym",
    include_fused: Annotated[
        bool, typer.Option("--include-fused", help="Also q|k|v and gate|up joined.")
    ] = False,
    gemlite_tuning: Annotated[
        str,
        typer.Option(
            help="Setting of GemLite's tuner: max, fast or default. Above M = 4, max is over 1,000 configs."
        ),
    ] = "max",
    gemlite_configs: Annotated[
        Path | None,
        typer.Option(envvar="ROOFGAP_GEMLITE_CONFIGS", help="File of GemLite's configs: read, and added to."),
    ] = None,
    marlin: Annotated[
        str | None,
        typer.Option(
            envvar="ROOFGAP_MARLIN",
            help="Marlin: a shared library, a folder of them, unpacked sources, or a package.",
        ),
    ] = None,
    chained: Annotated[
        bool,
        typer.Option(
            "--chained",
            help="Kernels that can as programmatic dependent launches (sm_90 on), as in decoding.",
        ),
    ] = False,
    gpu: Annotated[int, typer.Option(help="CUDA index.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the random operands.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds one contender may take on a problem.")] = 600.0,
    out: Annotated[Path | None, typer.Option(help="Result file, e.g. results/compare/h200.json.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what --out holds of this GPU; measure what it lacks.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Time own kernels and every peer in turns, each checked against an fp64 product with its own weights."""
    if gemlite_tuning not in ("max", "fast", "default"):
        raise RoofgapError(
            f"--gemlite-tuning {gemlite_tuning}", "must be max, fast or default", "use one of them"
        )
    if resume and out is None:
        raise RoofgapError("--resume", "needs the file to resume from", "name it with --out")
    from roofgap.kernels.registry import get_variant
    from roofgap.tuning.gpu_session import require_gpu
    from roofgap.tuning.measure.policy import CHAINED, COLD
    from roofgap.tuning.peers import rows as merging
    from roofgap.tuning.peers import worker as workers
    from roofgap.tuning.peers.compare import CompareSettings, tasks_of
    from roofgap.tuning.peers.registry import PeerSettings, choose_peers, spare_cores
    from roofgap.tuning.results import make_results, read_results

    fields: dict[str, Any] = {"group_size": group_size, "x_dtype": dtype, "zero_mode": zero_mode}
    problems = problems_of(target, m, also_fused=include_fused, **fields)
    settings = CompareSettings(
        variants=tuple(get_variant(name.strip()).name for name in variant.split(",")),
        peers=choose_peers(peers),
        settings=PeerSettings(
            gemlite_setting=gemlite_tuning,  # type: ignore[arg-type]
            gemlite_configs=gemlite_configs,
            gemlite_workers=spare_cores(),
            marlin=marlin,
        ),
        seed=seed,
        gpu=gpu,
        policy=CHAINED if chained else COLD,
    )
    held = read_results(out) if resume and out is not None and out.exists() else None
    require_gpu([gpu])
    worker = workers.Worker(settings, timeout)
    try:
        hello = worker.hello()
        rows: list[Row] = [] if held is None else _held(held, str(out), hello.gpu, settings.policy.key)
        keys = set()
        for task in tasks_of(problems):
            keys.add(task.problem.key)
            if merging.is_measured(rows, task.problem, settings.names, worker.runnable(task.problem)):
                print(f"{task.problem.key}: kept", file=sys.stderr)
                continue
            fresh = merging.measure_task(worker, task, settings.names)
            rows = merging.merged(rows, fresh)
            _say(fresh)
            if out is not None:
                make_results(hello.gpu, hello.versions, rows).save(out)
        results = make_results(hello.gpu, hello.versions, rows)
    finally:
        worker.close()
    asked = [row for row in rows if row["problem"] in keys and row["variant"] in settings.names]
    means = merging.summary(asked)
    if as_json:
        print_json(results.model_dump(mode="json", by_alias=True) | {"summary": means})
    else:
        _print(asked, means, f"{hello.device}, {settings.policy.key}, {hello.read_gbps:,.0f} GB/s read")
    own = [row for row in asked if row["variant"] in settings.variants]
    if not own or any(row["status"] not in ("ok", "unsupported") for row in own):
        raise typer.Exit(1)


def _held(held: ResultFile, out: str, gpu: str, policy: str) -> list[Row]:
    """The rows to go on from.

    Raises:
        RoofgapError: they are of another GPU or were measured otherwise.
    """
    if held.gpu != gpu:
        raise RoofgapError(f"{out}: {held.gpu}", f"is not this GPU ({gpu})", "name another --out")
    others = {str(row["policy"]) for row in held.rows if "policy" in row} - {policy}
    if others:
        raise RoofgapError(
            f"{out}: {', '.join(sorted(others))}", f"was not measured under {policy}", "name another --out"
        )
    return [dict(row) for row in held.rows]


def _say(rows: Sequence[Row]) -> None:
    """One line per problem while the rest is being measured."""
    told = [
        f"{row['variant']} {row['latency_us']:.2f}"
        if row["status"] == "ok"
        else f"{row['variant']} {row['status']}"
        for row in rows
    ]
    print(f"{rows[0]['problem']}: {', '.join(told)}", file=sys.stderr)


def _print(rows: Sequence[Row], means: Sequence[dict[str, Any]], title: str) -> None:
    """Rows, reasons of those without a time, means."""
    table = [
        {
            "N x K": f"{row['n']} x {row['k']}",
            "M": row["m"],
            "variant": row["variant"],
            "dtype": row["dtype"],
            "us": row.get("latency_us"),
            "probe us": row.get("probe_us"),
            "attainable gap": row.get("attainable_gap"),
            "rel. error": f"{row['rel_error']:.1e}" if "rel_error" in row else None,
            "MB": weight_bytes / 1e6 if isinstance(weight_bytes := row.get("weight_bytes"), int) else None,
            "best peer / it": row.get("best_peer_ratio"),
            "counts": row.get("ratio_counts"),
            "tuning s": row.get("tuning_s"),
            "status": row.get("labels") or row["status"],
        }
        for row in rows
    ]
    print_table(table, title=title)
    reasons = dict.fromkeys(
        f"{row['variant']}: {row['status']}: {row.get('evidence')}" for row in rows if row["status"] != "ok"
    )
    for reason in reasons:
        print(reason, file=sys.stderr)
    if means:
        print_table(means, title="geometric means over the shapes whose ratio counts")
    else:
        uncounted = dict.fromkeys(str(row["ratio_reason"]) for row in rows if row.get("ratio_reason"))
        print(f"no ratio counts: {'; '.join(uncounted)}", file=sys.stderr)
