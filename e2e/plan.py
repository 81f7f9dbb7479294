"""What can be said of every arm without a GPU: memory, bytes of a token, and the speed that these allow."""

from __future__ import annotations

from collections.abc import Sequence

from roofgap.e2e.arms import Arm
from roofgap.shapes.accounting import DENSE_BYTES, honest, published
from roofgap.shapes.device import DeviceProfile, load_device
from roofgap.shapes.manifest import Manifest
from roofgap.shapes.problem import ZeroMode
from roofgap.shapes.roofline import ceiling_tok_s, token_floor
from roofgap.tuning.trial import Record

BORROWED_FLOOR = "h200"
"""Whose launch floor stands in where a profile has none: the one GPU on which it was measured."""
ACTIVATION_BYTES = 64 << 20
"""Logits, activations and workspaces of one token, generously."""
QUANTISING_BYTES = 16
"""Per weight of the matrix at hand: four fp32 copies of it live while it is quantised."""


class PlanRow(Record):
    """An arm on a device, predicted. Nothing here was timed.

    Attributes:
        arm: its name.
        weights: format of the linears.
        head: format of the head.
        loop: how it decodes.
        memory_gb: weights, embedding, cache and activations while decoding, GB (1e9).
        peak_gb: the same while it is built: the dense model beside it, and a matrix being quantised.
        fits: whether the peak fits in the device's memory, None where that is not known.
        code_mb: linears' codes or values read per token, MB (1e6).
        scale_mb: scales and zeros.
        head_mb: the head.
        kv_mb: keys and values.
        token_mb: everything read per token.
        ceiling_tok_s: bandwidth over bytes.
        published_tok_s: the same in the first write-up's accounting.
        matrix_launches: kernels for the matrices of a token.
        floor_tok_s: ceiling where no matrix kernel is faster than an empty one.
        bound: ``bandwidth`` or ``launches`` where the floors of small matrices cost more than a tenth; arms that the
            host paces say ``host``: their ceiling is far away whatever the kernels do.
    """

    arm: str
    weights: str
    head: str
    loop: str
    memory_gb: float
    peak_gb: float
    fits: bool | None
    code_mb: float
    scale_mb: float
    head_mb: float
    kv_mb: float
    token_mb: float
    ceiling_tok_s: float
    published_tok_s: float
    matrix_launches: int
    floor_tok_s: float
    bound: str


def plan(
    manifest: Manifest,
    arms: Sequence[Arm],
    profile: DeviceProfile,
    *,
    depth: int,
    steps: int,
    group_size: int,
    zero_mode: ZeroMode,
) -> list[PlanRow]:
    """A row per arm, at the mean context of the timed tokens.

    Raises:
        RoofgapError: the profile has no bandwidth, or the context is beyond the model's.
    """
    return [
        _plan_arm(manifest, arm, profile, depth + (steps + 1) // 2, group_size, zero_mode) for arm in arms
    ]


def _plan_arm(
    manifest: Manifest, arm: Arm, profile: DeviceProfile, context: int, group_size: int, zero_mode: ZeroMode
) -> PlanRow:
    a, build = manifest.architecture, arm.build
    shapes = manifest.fused() if build.fused_linears else manifest
    weights, head = build.formats(group_size, zero_mode)
    read = honest(shapes, weights, head, context=context)
    bandwidth = profile.bandwidth()
    floor_us = launch_floor_us(profile)
    floor = token_floor(shapes, weights, head, read=read, bandwidth=bandwidth, launch_floor_us=floor_us)
    table = DENSE_BYTES * a.vocab * a.hidden
    shares = a.tied and head.kind == "bf16"
    memory = read.total - read.embedding + (0 if shares else table) + ACTIVATION_BYTES
    dense = weights.kind == "bf16"
    quantised = [m.n * m.k for m in shapes.matrices if m.role != "head" or head.kind != "bf16"]
    building = 0 if dense else DENSE_BYTES * a.parameters + QUANTISING_BYTES * max(quantised)
    peak = memory if arm.loop == "stream" else memory + building
    ceiling = ceiling_tok_s(read, bandwidth)
    old = published(manifest)["bf16" if dense else "int4"]
    bound = "host" if arm.is_slow else "launches" if floor.tok_s < 0.9 * ceiling else "bandwidth"
    return PlanRow(
        arm=arm.name,
        weights=weights.label,
        head=head.label,
        loop=arm.loop,
        memory_gb=memory / 1e9,
        peak_gb=peak / 1e9,
        fits=peak <= profile.memory_bytes,
        code_mb=read.codes / 1e6,
        scale_mb=(read.scales + read.zeros) / 1e6,
        head_mb=read.head / 1e6,
        kv_mb=read.kv / 1e6,
        token_mb=read.total / 1e6,
        ceiling_tok_s=ceiling,
        published_tok_s=ceiling_tok_s(old, bandwidth),
        matrix_launches=floor.launches,
        floor_tok_s=floor.tok_s,
        bound=bound,
    )


def title(manifest: Manifest, profile: DeviceProfile, depth: int) -> str:
    """What the rows rest on."""
    bandwidth, floor = profile.bandwidth(), profile.launch_floor_us
    whose = profile.name if floor is not None else f"{BORROWED_FLOOR}, none was measured here"
    return (
        f"{manifest.model} on {profile.name}, depth {depth}: predicted, nothing was timed; {bandwidth.gbps:,.1f} GB/s "
        f"({bandwidth.source}), launch floor {launch_floor_us(profile):.2g} us ({whose}), "
        f"{profile.memory_bytes / 1e9:.1f} GB of memory"
    )


def launch_floor_us(profile: DeviceProfile) -> float:
    """The profile's launch floor, else the H200's."""
    floor = profile.launch_floor_us
    return floor if floor is not None else load_device(BORROWED_FLOOR).launch_floor_us or 0.0
