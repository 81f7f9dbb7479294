"""``roofgap roofline``: bytes and ceilings of a decoded token, before anything is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofgap.cli.output import print_json, print_table
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.shapes.accounting import TokenBytes, WeightFormat
    from roofgap.shapes.device import Bandwidth
    from roofgap.shapes.manifest import Manifest
    from roofgap.shapes.roofline import TokenFloor

BandwidthOption = Annotated[
    float | None, typer.Option("--bandwidth", help="Read bandwidth in GB/s; overrides that of --device.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="Device profile, by name or .json file (see `roofgap device list`)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def roofline(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Manifest names or files; all shipped by default."),
    ] = None,
    *,
    accounting: Annotated[
        str, typer.Option(help="honest: each byte read, once. published: as the first write-up counted.")
    ] = "honest",
    weights: Annotated[
        str | None, typer.Option(help="Format of the linears: bf16, int8, w4, nf4, nf4-dq. Default: w4.")
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(help="Weights that share a scale, -1 for a whole row. Default: w4 128, nf4 64."),
    ] = None,
    zero_mode: Annotated[str | None, typer.Option(help="w4: sym, asym or offset. Default: asym.")] = None,
    head: Annotated[
        str | None, typer.Option(help="Format of the head, named as for --weights. Default: bf16.")
    ] = None,
    kv_dtype: Annotated[
        str | None,
        typer.Option(help="KV cache: bf16, fp16, fp8 or int8; for the bf16 row too. Default: bf16."),
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens in the KV cache that the step reads.")] = 2048,
    bandwidth: BandwidthOption = None,
    device: DeviceOption = None,
    fused: Annotated[bool, typer.Option("--fused", help="One kernel for q|k|v and one for gate|up.")] = False,
    launch_floor_us: Annotated[
        float | None, typer.Option(help="Least time of a kernel; that of --device, else 0, by default.")
    ] = None,
    per_matrix: Annotated[bool, typer.Option("--per-matrix", help="Add the floor of every matrix.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bytes per decoded token by term, ceilings in tokens a second, and floors per matrix in microseconds."""
    from roofgap.shapes.device import choose_bandwidth
    from roofgap.shapes.manifest import list_manifests, load_manifest

    roof, profile = choose_bandwidth(bandwidth, device)
    manifests = [load_manifest(name) for name in models or list_manifests()]
    document: dict[str, Any] = {
        "accounting": accounting,
        "context": context,
        "device": profile.name if profile else None,
        "bandwidth_gbps": roof.gbps,
        "bandwidth_source": roof.source,
    }
    if accounting == "published":
        given = {
            "--weights": weights,
            "--group-size": group_size,
            "--zero-mode": zero_mode,
            "--head": head,
            "--kv-dtype": kv_dtype,
            "--launch-floor-us": launch_floor_us,
            "--fused": fused or None,
            "--per-matrix": per_matrix or None,
        }
        extra = [flag for flag, value in given.items() if value is not None]
        if extra:
            raise RoofgapError(
                f"{', '.join(extra)} with --accounting published",
                "its formats are fixed",
                "drop one or the other",
            )
        document["models"] = [_published(manifest, context, roof) for manifest in manifests]
    elif accounting == "honest":
        from roofgap.shapes.accounting import choose_formats

        if launch_floor_us is None and profile:
            launch_floor_us = profile.launch_floor_us
        formats = choose_formats(weights or "w4", head or "bf16", group_size, zero_mode)
        document |= {
            "kv_dtype": kv_dtype or "bf16",
            "launch_floor_us": launch_floor_us,
            "fused": fused,
        }
        document["models"] = [
            _honest(manifest, formats, document, roof, per_matrix=per_matrix) for manifest in manifests
        ]
    else:
        raise RoofgapError(f"accounting={accounting!r}", "unknown convention", "use honest or published")
    if as_json:
        print_json(document)
    else:
        _print_rooflines(document)


def _published(manifest: Manifest, context: int, roof: Bandwidth) -> dict[str, Any]:
    from roofgap.shapes.accounting import published

    arms = published(manifest, context)
    # The write-up gives the swapped model's ceiling without decimals.
    rows = {name: _arm(read, roof, digits=0 if name == "swapped" else 1) for name, read in arms.items()}
    return {"model": manifest.model, "parameters": manifest.parameters, "arms": rows}


def _honest(
    manifest: Manifest,
    formats: tuple[WeightFormat, WeightFormat],
    options: dict[str, Any],
    roof: Bandwidth,
    *,
    per_matrix: bool,
) -> dict[str, Any]:
    from roofgap.shapes.accounting import WeightFormat, honest
    from roofgap.shapes.roofline import token_floor

    view = manifest.fused() if options["fused"] else manifest
    weights, head = formats
    arms = {"bf16": (WeightFormat(), WeightFormat())}
    arms[weights.kind if head.kind == "bf16" else f"{weights.kind}-head-{head.kind}"] = formats
    rows: dict[str, Any] = {}
    for name, (linear, last) in arms.items():
        read = honest(manifest, linear, last, options["kv_dtype"], options["context"])
        floor = token_floor(
            view, linear, last, read=read, bandwidth=roof, launch_floor_us=options["launch_floor_us"] or 0.0
        )
        rows[name] = _arm(read, roof, digits=1) | {"floor": _floor(floor, per_matrix)}
    for row in rows.values():
        row["speedup_over_bf16"] = row["ceiling_tok_s"] / rows["bf16"]["ceiling_tok_s"]
    return {"model": manifest.model, "parameters": manifest.parameters, "arms": rows}


def _arm(read: TokenBytes, roof: Bandwidth, digits: int) -> dict[str, Any]:
    from roofgap.shapes.roofline import ceiling_tok_s

    ceiling = ceiling_tok_s(read, roof)
    return {
        "label": read.label,
        "terms_bytes": read.terms,
        "weights_bytes": read.weights,
        "kv_bytes": read.kv,
        "total_bytes": read.total,
        "weights_gb": read.weights / 1e9,
        "ceiling_tok_s": ceiling,
        "rounded": {
            "weights_gb": round(read.weights / 1e9, 3),
            "ceiling_tok_s": round(ceiling, digits or None),
        },
    }


def _floor(floor: TokenFloor, per_matrix: bool) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "launches": floor.launches,
        "matrices_us": floor.matrices_us,
        "other_us": floor.other_us,
        "launch_bound_share": floor.launch_bound_share,
        "tok_s": floor.tok_s,
    }
    if per_matrix:
        summary["matrices"] = [
            {
                "role": one.matrix.role,
                "count": one.matrix.count,
                "n": one.matrix.n,
                "k": one.matrix.k,
                "read_bytes": one.read_bytes,
                "bandwidth_us": one.bandwidth_us,
                "floor_us": one.floor_us,
                "bound": "launch" if one.launch_bound else "bandwidth",
                "token_us": one.token_us,
                "share": one.token_us / floor.matrices_us,
            }
            for one in floor.matrices
        ]
    return summary


def _print_rooflines(document: dict[str, Any]) -> None:
    arms = [
        ({"model": model["model"], "format": arm["label"]}, arm)
        for model in document["models"]
        for arm in model["arms"].values()
    ]
    source = document["bandwidth_source"]
    if document["device"] and source != "given":
        source += f" of {document['device']}"
    kv = f", KV {document['kv_dtype']}" if "kv_dtype" in document else ""
    print(
        f"{document['accounting']} accounting at {document['bandwidth_gbps']:g} GB/s ({source}), "
        f"context {document['context']:,}{kv}"
    )
    used = [name for name in arms[0][1]["terms_bytes"] if any(arm["terms_bytes"][name] for _, arm in arms)]
    print_table([who | _bytes_row(arm, used) for who, arm in arms], title="Read by one token")
    if document["accounting"] == "published":
        return
    launch = document["launch_floor_us"]
    known = "not known, taken as 0 (--launch-floor-us)" if launch is None else f"{launch:g} us"
    print_table(
        [
            who
            | {
                "launches": arm["floor"]["launches"],
                "matrices us": arm["floor"]["matrices_us"],
                "launch-bound %": 100 * arm["floor"]["launch_bound_share"],
                "other us": arm["floor"]["other_us"],
                "tok/s at the floors": arm["floor"]["tok_s"],
            }
            for who, arm in arms
        ],
        title=f"Floors, one matrix after the other; launch floor {known}",
    )
    matrices = [who | _matrix_row(one) for who, arm in arms for one in arm["floor"].get("matrices", [])]
    if matrices:
        print_table(matrices, title="Per matrix: floor = max(bytes / read bandwidth, launch floor)")


def _bytes_row(arm: dict[str, Any], used: list[str]) -> dict[str, Any]:
    ceiling = arm["rounded"]["ceiling_tok_s"]
    row: dict[str, Any] = {f"{name} MB": arm["terms_bytes"][name] / 1e6 for name in used}
    row["weights GB"] = f"{arm['weights_gb']:.3f}"
    row["ceiling tok/s"] = f"{ceiling:,}"  # rounded to as many decimals as were published
    if "speedup_over_bf16" in arm:
        row["x bf16"] = arm["speedup_over_bf16"]
    return row


def _matrix_row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "role": one["role"],
        "N x K": f"{one['n']} x {one['k']}",
        "bytes": one["read_bytes"],
        "bytes us": one["bandwidth_us"],
        "floor us": one["floor_us"],
        "bound by": one["bound"],
        "count": one["count"],
        "token us": one["token_us"],
        "share %": 100 * one["share"],
    }
