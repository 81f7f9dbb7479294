"""``roofgap winners``: look at, check, explain, merge and export tuned configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofgap.cli.output import print_json, print_table
from roofgap.cli.targets import problems_of
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.tuning.winner import Winner

app = typer.Typer(help="Look at, check, explain, merge and export tuned configs.", no_args_is_help=True)

Folder = Annotated[Path | None, typer.Option(help="Winners folder; default: project, user and shipped ones.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def show(*, folder: Folder = None, as_json: AsJson = False) -> None:
    """List winners."""
    rows = [
        {
            "gpu": winner.identity.gpu,
            "variant": winner.identity.variant,
            "problem": winner.identity.problem,
            "config": winner.config_key,
            "latency_us": winner.latency_us,
            "over_default": winner.default.ratio if winner.default else None,
            "ties": len(winner.tie_set),
            "date": winner.provenance.date[:10],
            "folder": str(path.parents[2]),
        }
        for path, winner in _winners(folder)
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(rows)
    else:
        print("no winners; tune some with `roofgap tune`")


@app.command()
def check(
    *,
    folder: Folder = None,
    strict: Annotated[bool, typer.Option("--strict", help="An unvalidated winner fails the check.")] = False,
    as_json: AsJson = False,
) -> None:
    """List winners that are damaged, no longer valid, or unvalidated here. Exit code 1 if any fails."""
    from roofgap.tuning.check import check_folder
    from roofgap.tuning.winners_store import folders

    found = [row for one in ([folder] if folder else folders()) for row in check_folder(one)]
    if as_json:
        print_json(found)
    else:
        print_table([row for row in found if row["verdict"] != "validated"], title=_count(found))
    failing = {"damaged", "invalid"} | ({"unvalidated"} if strict else set())
    if any(row["verdict"] in failing for row in found):
        raise typer.Exit(1)


@app.command()
def explain(
    shape: Annotated[str, typer.Argument(metavar="SHAPE|MANIFEST", help="NxK, or a manifest.")],
    *,
    variant: Annotated[str, typer.Option(help="Kernel variant.")],
    m: Annotated[str, typer.Option(help="Rows of activations (tokens), joined by commas.")] = "1",
    group_size: Annotated[int, typer.Option(help="Weights per scale; -1 for the whole row.")] = 128,
    dtype: Annotated[str, typer.Option(help="fp16 or bf16.")] = "fp16",
    zero_mode: Annotated[str, typer.Option(help="sym, asym or offset.")] = "sym",
    bias: Annotated[bool, typer.Option("--bias", help="With a bias.")] = False,
    fused: Annotated[bool, typer.Option("--fused", help="q|k|v and gate|up joined.")] = False,
    chained: Annotated[bool, typer.Option("--chained", help="As a dependent launch.")] = False,
    gpu: Annotated[str | None, typer.Option(help="GPU the winners are for; default: this machine's.")] = None,
) -> None:
    """Say which config a problem runs with and why: lookup, tie set, second, rejected."""
    from roofgap.kernels.registry import get_variant
    from roofgap.tuning.environment import current_gpu, gpu_name, limits_for
    from roofgap.tuning.explain import explain as lines_of

    name = gpu_name(gpu) if gpu else current_gpu()
    if name is None:
        raise RoofgapError("--gpu", "is needed where there is no GPU", "name one, for example --gpu h200")
    fields: dict[str, Any] = {"group_size": group_size, "x_dtype": dtype, "zero_mode": zero_mode}
    for problem in problems_of(shape, m, fused=fused, bias=bias, **fields):
        print("\n".join(lines_of(get_variant(variant), problem, name, limits_for(name), chained=chained)))


@app.command()
def merge(
    source: Annotated[Path, typer.Argument(help="Winners folder to read.")],
    into: Annotated[Path, typer.Argument(help="Winners folder to write.")],
) -> None:
    """Copy winners from one folder into another; of two for one problem the later stays."""
    from roofgap.tuning.winners_store import merge as merge_folders

    if not source.is_dir():
        raise RoofgapError(f"{source}", "is no folder", "give a winners folder")
    copied = merge_folders(source, into)
    for path in copied:
        print(path)
    print(f"{len(copied)} copied")


@app.command()
def export(
    out: Annotated[Path, typer.Option(help="File to write.")],
    *,
    folder: Folder = None,
    run: Annotated[str | None, typer.Option(help="Export every trial of this run instead.")] = None,
) -> None:
    """Write winners, or all trials of a run, in Kernel Tuner's T4 format."""
    from roofgap.shapes.files import write_text
    from roofgap.tuning import t4
    from roofgap.tuning.journal import read_journal
    from roofgap.tuning.trial import Trial
    from roofgap.tuning.tune import JOURNALS, run_path, stored_header

    document: dict[str, Any]
    if run is None:
        document = t4.from_winners(winner for _, winner in _winners(folder))
    else:
        path = run_path(JOURNALS, run)
        trials = [entry.data for entry in read_journal(path) if entry.kind == "trial"]
        pairs = [(data["problem"], Trial.model_validate(data["trial"])) for data in trials]
        document = t4.from_trials(pairs, stored_header(path).date)
    write_text(out, json.dumps(document, indent=1, allow_nan=False) + "\n")
    print(f"{out}: {len(document['results'])} results")


def _winners(folder: Path | None) -> list[tuple[Path, Winner]]:
    """Winners by path; the first damaged one is the error.

    Raises:
        RoofgapError: a file is damaged.
    """
    from roofgap.tuning.winners_store import folders, load_all

    found = []
    for one in [folder] if folder else folders():
        for path, winner in load_all(one).items():
            if isinstance(winner, RoofgapError):
                raise winner
            found.append((path, winner))
    return found


def _count(rows: list[dict[str, Any]]) -> str:
    verdicts = [str(row["verdict"]) for row in rows]
    counted = ", ".join(f"{verdicts.count(one)} {one}" for one in sorted(set(verdicts)))
    return counted or "no winners"
