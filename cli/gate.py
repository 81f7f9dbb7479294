"""``roofgap gate``: is a commit worse than another? For CI: the exit code is the answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.tracking.gate.records import Lane, Report


def gate(
    before: Annotated[str, typer.Argument(help="Commit that is the standard.")],
    after: Annotated[str, typer.Argument(help="Commit that is judged.")] = "HEAD",
    *,
    lanes: Annotated[
        str | None,
        typer.Option(
            help="static, traffic, quality, device, joined by commas. Default: static, traffic and, with a GPU, device."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Pattern of cells, like 'static/v2/*/sm_86' or 'device/*/8960x1536/1'; repeat for more."
        ),
    ] = None,
    allow: Annotated[
        Path | None, typer.Option(help='JSON file: {"allow": [{"cell", "reason", "until"}]}.')
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=8, help="Device lane: rounds per cell; more where the grid needs them.")
    ] = 24,
    alpha: Annotated[
        float,
        typer.Option(min=1e-6, max=0.5, help="Device lane: false findings among all findings, at most."),
    ] = 0.01,
    min_effect: Annotated[float, typer.Option(min=0.0, help="Device lane: least change to report.")] = 0.01,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the report as markdown.")
    ] = None,
) -> None:
    """Compare two commits. Exit 0: nothing worse; 1: worse; 2: something could not be measured."""
    from roofgap.tracking.gate import allow as allow_list
    from roofgap.tracking.gate import checkout, run
    from roofgap.tracking.gate.report import markdown

    options = run.Options(
        lanes=_lanes(lanes),
        required=lanes is not None,
        only=tuple(only or ()),
        allowed=allow_list.load(allow) if allow else allow_list.AllowList(),
        rounds=rounds,
        alpha=alpha,
        min_effect=min_effect,
    )
    report = run.gate(
        checkout.repository(), before, after, options, lambda text: print(f"roofgap: {text}", file=sys.stderr)
    )
    from roofgap.shapes.files import write_text

    if json_file is not None:
        write_text(json_file, report.model_dump_json(indent=2, by_alias=True) + "\n")
    if markdown_file is not None:
        write_text(markdown_file, markdown(report))
    _print(report)
    raise typer.Exit(report.exit_code)


def _lanes(text: str | None) -> tuple[Lane, ...]:
    from roofgap.tracking.gate.records import LANES

    if text is None:
        return ("static", "traffic", "device")
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in LANES:
            raise RoofgapError(f"lane {name!r}", "does not exist", f"use {', '.join(LANES)}")
    return tuple(lane for lane in LANES if lane in names)


def _print(report: Report) -> None:
    from roofgap.cli.output import print_table
    from roofgap.tracking.gate.report import device_rows, reasons, rows, summary

    if report.gpu is not None:
        print_table(device_rows(report), title=f"timed on {report.gpu}")
    if listed := rows(report):
        print_table(listed, title="changes, worst first")
    for text in reasons(report):
        print(text)
    for warning in report.warnings:
        print(f"roofgap: {warning}", file=sys.stderr)
    print(summary(report))
