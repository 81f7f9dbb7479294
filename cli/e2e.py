"""``roofgap e2e``: whole models decoded, one token at a time, by every arm; or what that would take, without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofgap.cli.output import print_json, print_table
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.e2e.arms import Arm
    from roofgap.e2e.models import ModelSource
    from roofgap.e2e.plan import PlanRow
    from roofgap.e2e.prepare import Options
    from roofgap.e2e.rows import Row
    from roofgap.shapes.manifest import Manifest

DEFAULT_DEVICE = "rtx-3060"
_ACCOUNTINGS = ("both", "honest", "published")


def e2e(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Manifest by name or file, or a name for --weights.")
    ] = None,
    *,
    arms: Annotated[str, typer.Option(help="Arms joined by commas; all; or a beginning with *.")] = "all",
    depth: Annotated[
        str, typer.Option(help="Positions in the cache before the first timed token, joined by commas.")
    ] = "512",
    weights: Annotated[
        str, typer.Option(help="random, smollm2, or a folder, .gguf or .pt of your own.")
    ] = "random",
    steps: Annotated[int, typer.Option(help="Timed tokens of a repetition; an eighth for eager arms.")] = 128,
    repeats: Annotated[int, typer.Option(help="Repetitions; half, at least five, for eager arms.")] = 10,
    group_size: Annotated[int, typer.Option(help="Weights per scale of 4-bit arms.")] = 128,
    zero_mode: Annotated[str, typer.Option(help="Of own 4-bit arms: sym, asym or offset.")] = "asym",
    seed: Annotated[int, typer.Option(help="Of random weights, prompt and order.")] = 0,
    plan: Annotated[
        bool, typer.Option("--plan", help="Memory, bytes and bounds per arm; time nothing.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="Device profile to plan for.")] = None,
    published: Annotated[str | None, typer.Option(help="Published table to show, e.g. rtx-3060.")] = None,
    accounting: Annotated[str, typer.Option(help="Of ceilings: honest, published or both.")] = "both",
    llama_bench: Annotated[
        Path | None, typer.Option(help="JSON of your own `llama-bench -o json` run, as further rows.")
    ] = None,
    breakdown: Annotated[
        Path | None, typer.Option(help="Folder for each arm's time by role and its waterfall (JSON, SVG).")
    ] = None,
    quality: Annotated[
        bool, typer.Option("--quality", help="Score the committed text too; real weights only.")
    ] = False,
    list_arms: Annotated[bool, typer.Option("--list-arms", help="Print every arm and what it is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    as_jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print a llama-bench-like object per row.")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table to paste.")] = False,
    out: Annotated[Path | None, typer.Option(help="Result file to write.")] = None,
) -> None:
    """Decode a model with every arm and say what bounds each; without a GPU, plan it."""
    if accounting not in _ACCOUNTINGS:
        raise RoofgapError(f"accounting={accounting!r}", "unknown", f"use {', '.join(_ACCOUNTINGS)}")
    forms = [name for name, on in (("json", as_json), ("jsonl", as_jsonl), ("markdown", as_markdown)) if on]
    if len(forms) > 1:
        raise RoofgapError(f"--{' --'.join(forms)}", "exclude one another", "choose one")
    form = forms[0] if forms else "table"
    if list_arms:
        _list_arms(form)
        return
    if model is None and weights == "random":
        if published is None:
            raise RoofgapError(
                "no MODEL", "there is nothing to decode", "name a manifest, or give --published"
            )
        _print_published(published, accounting, form)
        return
    from roofgap.e2e.arms import cast_zero_mode, choose_arms
    from roofgap.e2e.prepare import Options

    chosen = choose_arms(arms)
    options = [
        Options(
            depth=positions,
            steps=steps,
            repeats=repeats,
            group_size=group_size,
            zero_mode=cast_zero_mode(zero_mode),
            seed=seed,
        )
        for positions in _depths(depth)
    ]
    name = model or "model"
    if plan or device is not None or not _has_gpu():
        for option, given in (("--out", out), ("--breakdown", breakdown), ("--quality", quality or None)):
            if given is not None:
                raise RoofgapError(
                    option,
                    "is about arms that ran, and a plan runs none",
                    "leave it out; see `roofgap quality`",
                )
        if not (plan or device):
            print(
                "no GPU that torch can use: nothing is timed; `roofgap quality` scores real weights",
                file=sys.stderr,
            )
        _plan(name, weights, seed, chosen, options, device or DEFAULT_DEVICE, accounting, form)
        if published is not None and form == "table":
            _print_published(published, accounting, form)
        return
    _run(
        name,
        weights,
        seed,
        chosen,
        options,
        llama_bench=llama_bench,
        breakdown=breakdown,
        quality=quality,
        form=form,
        out=out,
        published=published,
        accounting=accounting,
    )


def _depths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RoofgapError(
            f"depth {text!r}", "must be whole numbers joined by commas", "write it like 128,512"
        ) from None


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _run(
    name: str,
    weights: str,
    seed: int,
    arms: list[Arm],
    options: list[Options],
    *,
    llama_bench: Path | None,
    breakdown: Path | None,
    quality: bool,
    form: str,
    out: Path | None,
    published: str | None,
    accounting: str,
) -> None:
    from roofgap.e2e.compare import to_stderr
    from roofgap.e2e.llama_bench import read_llama_bench
    from roofgap.e2e.run import run_on_gpu
    from roofgap.e2e.sources import open_source

    source = open_source(name, weights, seed=seed)
    to_stderr(f"{source.manifest.model}: {source.note}")
    extra = [] if llama_bench is None else read_llama_bench(llama_bench, source.manifest)
    results, rows, warnings = run_on_gpu(
        source, arms, options, extra, progress=to_stderr, breakdown=breakdown, quality=quality, out=out
    )
    for warning in warnings:
        to_stderr(f"warning: {warning}")
    _print_rows(
        rows, form, results.model_dump(mode="json", by_alias=True), f"{source.manifest.model}, {results.gpu}"
    )
    if published is not None and form == "table":
        _print_published(published, accounting, form)
    if any(row.status == "error" for row in rows):
        raise typer.Exit(1)


def _print_rows(rows: list[Row], form: str, document: dict[str, Any], title: str) -> None:
    from roofgap.e2e.report import jsonl, markdown, shown_columns, table_cells

    if form == "json":
        print_json(document)
    elif form == "jsonl":
        sys.stdout.write(jsonl(rows))
    elif form == "markdown":
        sys.stdout.write(markdown(rows))
    else:
        cells = [table_cells(row) for row in rows]
        print_table(cells, shown_columns(cells), title=title)


def _plan(
    name: str,
    weights: str,
    seed: int,
    arms: list[Arm],
    options: list[Options],
    device: str,
    accounting: str,
    form: str,
) -> None:
    from roofgap.e2e.plan import plan, title
    from roofgap.shapes.device import load_device

    profile = load_device(device)
    manifest = _manifest(name, weights, seed)
    for option in options:
        rows = plan(
            manifest,
            arms,
            profile,
            depth=option.depth,
            steps=option.steps,
            group_size=option.group_size,
            zero_mode=option.zero_mode,
        )
        _print_plan(rows, accounting, form, title(manifest, profile, option.depth))


def _manifest(name: str, weights: str, seed: int) -> Manifest:
    """Shapes alone: weights are opened only where they are not the manifest's own random ones."""
    from roofgap.shapes.manifest import load_manifest

    if weights == "random":
        return load_manifest(name)
    from roofgap.e2e.sources import open_source

    source: ModelSource = open_source(name, weights, seed=seed)
    return source.manifest


def _print_plan(rows: list[PlanRow], accounting: str, form: str, heading: str) -> None:
    from roofgap.e2e.report import markdown_table, plan_cells

    if form == "json":
        print_json({"title": heading, "rows": [row.model_dump() for row in rows]})
        return
    if form == "jsonl":
        sys.stdout.write("".join(row.model_dump_json() + "\n" for row in rows))
        return
    hidden = {"honest": "published ceiling", "published": "ceiling"}.get(accounting)
    cells = [plan_cells(row) for row in rows]
    columns = [name for name in cells[0] if name != hidden and any(row[name] is not None for row in cells)]
    if form == "markdown":
        sys.stdout.write(markdown_table(cells, columns))
    else:
        print_table(cells, columns, title=heading)


def _print_published(name: str, accounting: str, form: str) -> None:
    from roofgap.e2e.published_table import load_published, recompute

    table = load_published(name)
    rows = [row.model_dump() for row in recompute(table) if accounting in ("both", row.accounting)]
    title = f"{table.source}; {table.device}, {table.bandwidth_gbps} GB/s, context {table.context}"
    if form == "json":
        print_json({"table": table.model_dump(mode="json", by_alias=True), "recomputed": rows})
    elif form == "jsonl":
        import json

        sys.stdout.write("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "markdown":
        from roofgap.e2e.report import markdown_table

        sys.stdout.write(markdown_table(rows, list(rows[0])))
    else:
        print_table(rows, title=title)


def _list_arms(form: str) -> None:
    from roofgap.e2e.arms import ARMS

    rows = [
        {
            "arm": arm.name,
            "weights": arm.build.variant or arm.build.weights,
            "loop": arm.loop,
            "q|k|v, gate|up joined": arm.build.fused_linears,
            "4-bit head": arm.build.head_w4,
            "fused operators": arm.build.fused_operators,
            "epilogues": arm.build.epilogues,
            "PDL": arm.pdl,
            "in all": not arm.opt_in,
        }
        for arm in ARMS.values()
    ]
    if form == "json":
        print_json(rows)
    else:
        print_table(rows)
