"""``roofgap device``: profiles of GPUs, where their numbers come from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from roofgap.cli.output import print_json, print_table

app = typer.Typer(
    help="Device profiles: bandwidth, throughput and limits of a GPU, with sources.", no_args_is_help=True
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """The shipped profiles."""
    from roofgap.shapes.device import list_devices

    rows: list[dict[str, Any]] = []
    for profile in list_devices():
        roof = profile.bandwidth()
        rows.append(
            {
                "name": profile.name,
                "title": profile.title,
                "target": profile.target,
                "sm_count": profile.sm_count,
                "l2_bytes": profile.l2_bytes,
                "memory_bytes": profile.memory_bytes,
                "bandwidth_gbps": roof.gbps,
                "bandwidth_source": roof.source,
                "fp16_tflops": profile.fp16_tflops,
                "int8_tops": profile.int8_tops,
                "launch_floor_us": profile.launch_floor_us,
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table([{key.replace("_", " "): value for key, value in row.items()} for row in rows])


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name, alias (what torch reports, for example) or .json file.")],
    as_json: JsonOption = False,
) -> None:
    """One profile: every number with its source, and the bandwidth that rooflines take from it."""
    from roofgap.shapes.device import NUMBERS, load_device

    profile = load_device(name)
    roof = profile.bandwidth()
    if as_json:
        print_json(
            profile.model_dump(mode="json") | {"bandwidth": {"gbps": roof.gbps, "source": roof.source}},
        )
        return
    rows: list[dict[str, Any]] = [
        {
            "what": field,
            "value": getattr(profile, field),
            "source": profile.source_of(field) or "none, or not known",
        }
        for field in NUMBERS
    ]
    if profile.measured:
        measured = profile.measured.model_dump()
        method = f"{measured.pop('provenance')}: {measured.pop('method')}"
        when = ", ".join(
            filter(None, [measured.pop("date"), *map(" ".join, measured.pop("versions").items())])
        )
        source = f"{method} ({when})" if when else method
        rows += [
            {"what": f"measured {field}", "value": value, "source": source}
            for field, value in measured.items()
            if value is not None
        ]
    print_table(rows, title=f"{profile.title} ({profile.name}, {profile.target})")
    print(f"rooflines use {roof.gbps:g} GB/s: {roof.source} (measured read, else measured copy, else spec)")
