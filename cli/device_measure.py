"""``roofgap device measure``: bandwidth and launch floor of the GPU in this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roofgap.cli.output import print_json


def measure(
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; default: shapes/devices/<gpu>.json here, else the user's data folder."
        ),
    ] = None,
    index: Annotated[int, typer.Option(help="CUDA index of the GPU.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure read and copy bandwidth over 8 x L2 and the launch floor; write the GPU's profile."""
    from roofgap.tuning.measure.cuda import CudaDevice
    from roofgap.tuning.measure.failure import reported
    from roofgap.tuning.measure.profile import default_path, measure_profile

    with reported():
        profile = measure_profile(CudaDevice(index))
    path = out or default_path(profile)
    profile.save(path)
    if as_json:
        print_json(profile.model_dump(mode="json"))
        return
    measured = profile.measured
    assert measured is not None
    print(f"{profile.title}: read {measured.read_gbps:g} GB/s, copy {measured.copy_gbps:g} GB/s, ", end="")
    print(f"launch floor {measured.launch_floor_us:g} us")
    print(measured.method)
    print(f"written to {path}")
