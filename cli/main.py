"""The ``roofgap`` command. Each command lives in its own module here and stays thin.

Nothing in this room imports torch or triton at module level: a command that needs them imports them when it runs.
"""

from __future__ import annotations

import sys

import typer

from roofgap.cli import (
    batch_curve,
    bench,
    compare,
    device,
    device_measure,
    doctor,
    e2e,
    gate,
    inspect,
    quality,
    roofline,
    shapes,
    traffic,
    tune,
    verify,
    winners,
)
from roofgap.shapes.errors import RoofgapError

app = typer.Typer(
    name="roofgap",
    help="Measure, explain and close the gap between W4A16 kernels and the hardware roof.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("bench")(bench.bench)
app.command("compare")(compare.compare)
app.command("doctor")(doctor.doctor)
app.command("gate")(gate.gate)
app.command("roofline")(roofline.roofline)
app.command("e2e")(e2e.e2e)
app.command("quality")(quality.quality)
app.command("inspect")(inspect.inspect)
app.command("traffic")(traffic.traffic)
app.command("tune")(tune.tune)
app.command("verify")(verify.verify)
app.command("batch-curve")(batch_curve.batch_curve)
device.app.command("measure")(device_measure.measure)
app.add_typer(device.app, name="device")
app.add_typer(shapes.app, name="shapes")
app.add_typer(winners.app, name="winners")


def main() -> None:
    """Console entry: turns a ``RoofgapError`` into one line on stderr and its exit code."""
    try:
        app()
    except RoofgapError as error:
        print(f"roofgap: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
