"""``roofgap batch-curve``: what 4-bit weights can gain as the batch grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofgap.cli.output import print_json, print_table
from roofgap.cli.roofline import BandwidthOption, DeviceOption, JsonOption
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    from roofgap.shapes.roofline import BatchModel, BatchPoint


def batch_curve(
    *,
    device: DeviceOption = None,
    bandwidth: BandwidthOption = None,
    tflops: Annotated[
        float | None, typer.Option(help="Dense fp16 tensor throughput, 1e12/s; overrides that of --device.")
    ] = None,
    int8_tops: Annotated[
        float | None, typer.Option(help="Dense int8 tensor throughput, 1e12/s; overrides that of --device.")
    ] = None,
    group_size: Annotated[int, typer.Option(help="Weights that share a scale, -1 for a whole row.")] = 128,
    zero_mode: Annotated[str, typer.Option(help="sym, asym or offset.")] = "sym",
    shape: Annotated[
        str | None,
        typer.Option(metavar="NxK", help="Count this layer's activations too; a huge layer by default."),
    ] = None,
    m: Annotated[str, typer.Option(help="Batches, joined by commas.")] = "1,2,4,8,16,32,64,128,256,512",
    as_json: JsonOption = False,
) -> None:
    """Ideal speedup of W4A16 and W8A8 over fp16 as M grows, from bandwidth and tensor throughput alone."""
    from roofgap.shapes.accounting import choose_formats
    from roofgap.shapes.device import choose_bandwidth
    from roofgap.shapes.problem import Problem
    from roofgap.shapes.roofline import BatchModel

    roof, profile = choose_bandwidth(bandwidth, device)
    if profile:
        tflops = profile.fp16_tflops if tflops is None else tflops
        int8_tops = profile.int8_tops if int8_tops is None else int8_tops
    if tflops is None:
        raise RoofgapError(
            "no tensor throughput", "the curve needs one", "give --tflops, or a --device that has fp16_tflops"
        )
    layer = Problem.parse(shape) if shape else None
    model = BatchModel(
        bandwidth=roof,
        fp16_tflops=tflops,
        int8_tops=int8_tops,
        weight=choose_formats("w4", "bf16", group_size, zero_mode)[0],
        shape=(layer.n, layer.k) if layer else None,
    )
    points = model.curve(_batches(m))
    document = {
        "device": profile.name if profile else None,
        "bandwidth_gbps": roof.gbps,
        "bandwidth_source": roof.source,
        "fp16_tflops": model.fp16_tflops,
        "int8_tops": model.int8_tops,
        "weights": model.weight.label,
        "shape": layer.shape if layer else None,
        "w4_bytes_per_weight": model.w4_bytes,
        "expand_first_bytes_per_weight": model.expand_first_bytes,
        "ops_per_byte": model.ops_per_byte,
        "full_speedup_until_m": model.full_speedup_until,
        "break_even_m": model.break_even,
        "points": [_point(point) for point in points],
    }
    if as_json:
        print_json(document)
    else:
        _print_batch_curve(document, model)


def _point(point: BatchPoint) -> dict[str, Any]:
    return {
        "m": point.m,
        "w4a16_speedup": point.w4a16,
        "w8a8_speedup": point.w8a8,
        "expand_first_speedup": point.expand_first,
        "w4a16_bound": point.w4a16_bound,
        "fp16_bound": point.fp16_bound,
    }


def _print_batch_curve(document: dict[str, Any], model: BatchModel) -> None:
    def batch(value: float | None) -> str:
        return "at no M" if value is None else f"at M = {value:.1f}"

    print(
        f"{model.bandwidth.gbps:g} GB/s ({model.bandwidth.source}) and {model.fp16_tflops:g} fp16 TFLOP/s: "
        f"{model.ops_per_byte:.0f} operations per byte"
    )
    print(
        f"activations of {document['shape']} counted"
        if document["shape"]
        else "weights only, as in a huge layer"
    )
    print_table(
        [{key.replace("_", " "): value for key, value in point.items()} for point in document["points"]],
        title=f"Ideal speedup over fp16, {document['weights']}",
    )
    print(f"W4A16 turns compute-bound {batch(model.full_speedup_until)} and its speedup begins to fall")
    print(f"fp16 turns compute-bound {batch(model.break_even)}: break-even")
    print(
        f"bytes per weight: fp16 2, W4 {model.w4_bytes:.4g}, "
        f"expanded to fp16 first {model.expand_first_bytes:g} and scales"
    )


def _batches(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RoofgapError(
            f"m={text!r}", "must be whole numbers joined by commas", "write it like 1,16,128"
        ) from None
