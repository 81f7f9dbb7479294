"""``roofgap shapes``: the matrices of a model, shipped or extracted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roofgap.cli.output import print_table
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.shapes.manifest import Manifest

app = typer.Typer(help="Which matrices a model has: list, show, check, extract.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """Lists the shipped manifests."""
    from roofgap.shapes.manifest import list_manifests, load_manifest

    rows = []
    for name in list_manifests():
        manifest = load_manifest(name)
        a = manifest.architecture
        rows.append(
            {
                "model": name,
                "parameters": manifest.parameters,
                "layers": a.layers,
                "hidden": a.hidden,
                "intermediate": a.intermediate,
                "heads": f"{a.heads}/{a.kv_heads} x {a.head_dim}",
                "vocab": a.vocab,
                "tied": a.tied,
                "max_context": a.max_context,
            }
        )
    print_table(rows)


@app.command()
def show(
    manifest: Annotated[str, typer.Argument(help="A shipped manifest's name, or a file.")],
    fused: Annotated[bool, typer.Option("--fused", help="Join q|k|v and gate|up along N.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest itself.")] = False,
) -> None:
    """Shows a model's matrices, and where each number comes from."""
    from roofgap.shapes.manifest import load_manifest, manifest_json

    found = load_manifest(manifest)
    found = found.fused() if fused else found
    if as_json:
        sys.stdout.write(manifest_json(found))
        return
    _print_manifest(found)


def _print_manifest(manifest: Manifest) -> None:
    architecture = manifest.architecture
    cache = architecture.kv_bytes_per_token(2)
    print(
        f"{manifest.title}: {manifest.parameters:,} parameters; KV cache {cache:,} bytes per token in 16 bits"
    )
    if manifest.note:
        print(manifest.note)
    print(f"source: {manifest.source}\nrevision: {manifest.revision}")
    print_table(
        [
            {
                "role": matrix.role,
                "name": matrix.name,
                "count": matrix.count,
                "n": matrix.n,
                "k": matrix.k,
                "bias": matrix.bias,
                "tied": matrix.tied,
                "weights": matrix.weights,
                "provenance": matrix.provenance,
            }
            for matrix in manifest.matrices
        ]
    )
    print_table(
        [
            {
                "number": field,
                "value": f"{value:g}" if isinstance(value, float) else value,
                "provenance": manifest.provenance[field].kind,
                "from": manifest.provenance[field].equation or manifest.provenance[field].source,
            }
            for field, value in architecture
            if value is not None
        ]
    )


@app.command()
def check(
    manifests: Annotated[list[str], typer.Argument(help="Names of shipped manifests, or files.")],
) -> None:
    """Checks that manifests agree with themselves; prints every contradiction, exit code 2 if any."""
    from roofgap.shapes.manifest import check_manifest, read_manifest

    failed = False
    for name in manifests:
        try:
            contradictions = check_manifest(read_manifest(name))
        except RoofgapError as error:
            contradictions = [str(error)]
        failed = failed or bool(contradictions)
        for line in contradictions:
            print(f"{name}: {line}", file=sys.stderr)
        if not contradictions:
            print(f"{name}: ok")
    if failed:
        raise typer.Exit(RoofgapError.exit_code)


@app.command()
def extract(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="A Hugging Face folder or config.json; safetensors files, or their index; a .pt, .pth or "
            ".bin checkpoint; a .gguf file. Headers only, where the format has one."
        ),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option(help="File to write; without it the manifest is printed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the manifest.")] = None,
    revision: Annotated[str | None, typer.Option(help="Which revision of the model this is.")] = None,
    head_dim: Annotated[
        int | None, typer.Option(help="Values in one head, where the source does not say.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads, where the source does not say.")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key/value heads, where the source does not say.")
    ] = None,
    max_context: Annotated[int | None, typer.Option(help="Positions the model was made for.")] = None,
    rope_theta: Annotated[float | None, typer.Option(help="Base of the rotary frequencies.")] = None,
    norm_eps: Annotated[float | None, typer.Option(help="Epsilon of the norms.")] = None,
    tied: Annotated[
        bool | None, typer.Option("--tied/--untied", help="Whether the head shares the embedding's storage.")
    ] = None,
) -> None:
    """Makes a manifest from a model's files, without loading weights."""
    from roofgap.shapes.extract.source import extract as extract_manifest
    from roofgap.shapes.files import write_text
    from roofgap.shapes.manifest import manifest_json

    if out is not None and out.exists() and not force:
        raise RoofgapError(str(out), "exists already", "choose another name, or replace it with --force")
    options = {
        "head_dim": head_dim,
        "heads": heads,
        "kv_heads": kv_heads,
        "max_context": max_context,
        "rope_theta": rope_theta,
        "norm_eps": norm_eps,
        "tied": tied,
    }
    given = {field: value for field, value in options.items() if value is not None}
    text = manifest_json(extract_manifest(sources, given, name=name, revision=revision))
    if out is None:
        sys.stdout.write(text)
    else:
        write_text(out, text)
        print(f"wrote {out}", file=sys.stderr)
