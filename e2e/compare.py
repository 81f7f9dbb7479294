"""The comparison: arms prepared, timed in turns, judged. A failure is a row with its evidence and hides no other."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from roofgap.e2e.arms import Arm, Build, builds_of
from roofgap.e2e.busy import Busy, profile_steps
from roofgap.e2e.models import ModelSource
from roofgap.e2e.peers import missing
from roofgap.e2e.prepare import Options, PreparedArm, Workshop
from roofgap.e2e.rows import (
    Row,
    Status,
    agreement_columns,
    byte_columns,
    ratio_ci,
    speed_columns,
    speed_fault,
)
from roofgap.e2e.swap import Built, expected_bytes, padding_bytes
from roofgap.e2e.turns import Timed, describe, interleave
from roofgap.shapes.accounting import published
from roofgap.shapes.device import Bandwidth
from roofgap.shapes.roofline import ceiling_tok_s
from roofgap.tuning.measure.device import Device

MEMORY_SHARE = 0.85
BANDWIDTH_DRIFT = 0.03
CACHE_FACTOR = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows, and the bandwidth they are set against.

    Attributes:
        rows: one per arm, in the order asked for.
        read_gbps: read bandwidth before and after.
        warnings: what a reader must know before comparing rows.
    """

    rows: tuple[Row, ...]
    read_gbps: tuple[float, float]
    warnings: tuple[str, ...]


def compare(
    source: ModelSource,
    arms: Sequence[Arm],
    device: Device,
    options: Options,
    *,
    read_gbps: Callable[[], float],
    profile: Callable[[Callable[[], object]], Busy | None] = profile_steps,
    clock: Callable[[], float] = perf_counter,
    progress: Callable[[str], None] = lambda line: None,
    inspect: Callable[[PreparedArm], object] | None = None,
    built: dict[Build, Built] | None = None,
) -> Comparison:
    """Runs every arm at one depth.

    Arms that fit into memory together are timed in turns; the others follow in batches of their own.

    Args:
        source: the model.
        arms: what to compare.
        device: where.
        options: how.
        read_gbps: measures the read bandwidth; called before and after.
        profile: how long the GPU works on a step, None where that cannot be told.
        clock: wall clock in seconds.
        progress: told what happens, a line at a time.
        built: models to use and to add to, for another call at another depth; emptied where not all fit at once.
        inspect: given every arm that was timed while its model, step and cache are still there (the breakdown per
            role hooks in here); what it raises becomes a warning.
    """
    before = read_gbps()
    warnings: list[str] = []
    done: dict[str, Row | Timed] = {}
    models: dict[Build, Built] = {} if built is None else built
    held = sum(model.stored_bytes for model in models.values())
    planned = batches(source, arms, options, int(MEMORY_SHARE * (device.free_bytes() + held)))
    for batch in planned:
        workshop = Workshop(source, device, options, models)
        found = _run_batch(workshop, batch, profile, clock, progress)
        for entry in found.values():
            if isinstance(entry, Timed):
                if inspect is not None and entry.fault is None:
                    warnings += _inspected(inspect, entry.ready)
                entry.ready.release()
        done |= found
        if len(planned) > 1:
            models.clear()
        gc.collect()
    try:
        after = read_gbps()
    except (
        Exception
    ) as error:  # a kernel may have taken the CUDA context with it; what was timed before stands
        after = before
        warnings.append(f"read bandwidth could not be measured again: {describe(error)}")
    if abs(after - before) > BANDWIDTH_DRIFT * before:
        warnings.append(
            f"read bandwidth was {before:,.0f} GB/s before and {after:,.0f} after: the GPU's state changed"
        )
    mean = (before + after) / 2
    rows = [
        entry if isinstance(entry, Row) else _row(source, entry, device, options, mean)
        for entry in (done[arm.name] for arm in arms)
    ]
    samples = {name: entry.tok_s for name, entry in done.items() if isinstance(entry, Timed)}
    return Comparison(tuple(with_speedups(rows, samples)), (before, after), tuple(warnings))


def _inspected(inspect: Callable[[PreparedArm], object], ready: PreparedArm) -> list[str]:
    try:
        ready.reset()
        inspect(ready)
    except Exception as error:  # the timing is done and stays valid
        return [f"{ready.arm.name} could not be inspected: {describe(error)}"]
    return []


def batches(source: ModelSource, arms: Sequence[Arm], options: Options, room_bytes: int) -> list[list[Arm]]:
    """Splits arms, in order, into runs whose models fit together; arms of one build stay together where they follow one
    another. The dense model that a 4-bit one is made from is counted on top."""
    a = source.manifest.architecture
    dense = 2 * a.parameters
    found: list[list[Arm]] = []
    held = 0
    for arm in arms:
        known = bool(found) and arm.loop != "stream" and arm.build in builds_of(found[-1])
        size = (
            0 if known else expected_bytes(source.manifest, arm.build, options.group_size, options.zero_mode)
        )
        if not found or held + size + dense > room_bytes:
            found.append([])
            held = 0
        found[-1].append(arm)
        held += size
    return found


def _run_batch(
    workshop: Workshop,
    arms: Sequence[Arm],
    profile: Callable[[Callable[[], object]], Busy | None],
    clock: Callable[[], float],
    progress: Callable[[str], None],
) -> dict[str, Row | Timed]:
    source, device, options = workshop.source, workshop.device, workshop.options
    done: dict[str, Row | Timed] = {}
    timed: list[Timed] = []
    for arm in arms:
        reason = None if arm.loop == "stream" else missing(arm.build)
        if reason is not None:
            done[arm.name] = _failed(source, arm, options, "skipped", reason)
            continue
        start = clock()
        try:
            timed.append(Timed(workshop.prepare(arm)))
        except Exception as error:  # kernels and peers raise what they like; the evidence goes into the row
            done[arm.name] = _failed(source, arm, options, "error", describe(error))
        progress(f"{arm.name}: {'ready' if arm.name not in done else 'failed'} after {clock() - start:.1f} s")
    interleave(timed, device, options.seed, clock)
    for entry in timed:
        if entry.fault is None and entry.ready.step is not None:
            try:
                entry.ready.reset()
                entry.busy = profile(entry.ready.step)
            except Exception as error:  # the timing stands without it
                progress(f"{entry.ready.arm.name} could not be profiled: {describe(error)}")
        done[entry.ready.arm.name] = entry
    return done


def _row(source: ModelSource, timed: Timed, device: Device, options: Options, read_gbps: float) -> Row:
    ready, arm = timed.ready, timed.ready.arm
    if timed.fault is not None:
        return _failed(source, arm, options, "error", timed.fault)
    fault = speed_fault(
        timed.wall_ms,
        ready.steps,
        ready.read,
        read_gbps,
        exceeds_cache=ready.read.total >= CACHE_FACTOR * device.l2_bytes,
        compiled=timed.compiled,
    )
    if fault is not None:
        return _failed(source, arm, options, "error", fault)
    columns = speed_columns(
        arm,
        wall_ms=timed.wall_ms,
        event_ms=timed.event_ms,
        steps=ready.steps,
        read=ready.read,
        busy_ms=timed.busy.busy_ms if timed.busy else None,
        read_gbps=read_gbps,
    )
    weights, head = options.formats(arm.build)
    bandwidth = Bandwidth(read_gbps, "measured read")
    old = published(source.manifest)["bf16" if weights.kind == "bf16" else "int4"]
    launches = timed.busy.launches if timed.busy else ready.launches
    return Row(
        arm=arm.name,
        model=source.manifest.model,
        depth=options.depth,
        note=_note(source, arm, options),
        weights=weights.label,
        head=head.label,
        n_gen=ready.steps,
        repeats=len(timed.wall_ms),
        device_read_gbps=read_gbps,
        sm_clock_mhz=timed.sm_clock_mhz,
        ceiling_tok_s=ceiling_tok_s(ready.read, bandwidth),
        published_ceiling_tok_s=ceiling_tok_s(old, bandwidth),
        memory_bytes=ready.memory_bytes,
        launches_per_token=launches,
        prefill_ms=ready.prefill_ms,
        tuned=_tuned(source, arm, options, device),
        **columns,
        **byte_columns(ready.read),
        **agreement_columns(ready.agreement),
    )


def _note(source: ModelSource, arm: Arm, options: Options) -> str:
    if arm.loop == "generate":
        return "prefill included, as users run it"
    padding = padding_bytes(source.manifest, arm.build, options.group_size, options.zero_mode)
    return (
        f"the layout pads the weights by {padding / 1e6:.1f} MB, which are not counted" if padding > 0 else ""
    )


def with_speedups(rows: Sequence[Row], samples: dict[str, list[float]]) -> list[Row]:
    """Adds speedups over the fastest bf16 arm that decodes, and what its bytes over theirs would allow."""
    dense = [
        row for row in rows if row.tok_s is not None and row.arm.startswith("bf16-") and row.weights == "bf16"
    ]
    if not dense:
        return list(rows)
    best = max(dense, key=lambda row: row.tok_s or 0.0)
    base = samples[best.arm]

    def compared(row: Row) -> Row:
        if row.tok_s is None or not row.bytes_per_token or not best.bytes_per_token:
            return row
        low, high = ratio_ci(samples[row.arm], base)
        return row.model_copy(
            update={
                "speedup": row.tok_s / float(np.median(base)),
                "speedup_low": low,
                "speedup_high": high,
                "possible_speedup": best.bytes_per_token / row.bytes_per_token,
            }
        )

    return [compared(row) for row in rows]


def _tuned(source: ModelSource, arm: Arm, options: Options, device: Device) -> str | None:
    """How many of an own arm's problems have a tuned config on this GPU."""
    build = arm.build
    if build.weights != "w4" or arm.loop == "stream" or device.torch_device.type != "cuda":
        return None
    from roofgap.kernels.ops import limits_of
    from roofgap.kernels.registry import get_variant
    from roofgap.tuning.environment import gpu_name
    from roofgap.tuning.lookup import choose, choose_chained

    problems = {
        problem
        for matrix, problem in source.manifest.problems(
            group_size=options.group_size,
            x_dtype="bf16",
            zero_mode=options.zero_mode,
            fused=build.fused_linears,
        )
        if matrix.role != "head" or build.head_w4
    }
    variant, gpu = get_variant(str(build.variant)), gpu_name(device.name)
    found, limits = choose_chained if arm.pdl else choose, limits_of(device.torch_device)
    choices = [found(variant, problem, gpu, limits=limits, strict=False) for problem in problems]
    tuned = sum(choice.source != "default" for choice in choices)
    return f"{tuned}/{len(problems)}"


def _failed(source: ModelSource, arm: Arm, options: Options, status: Status, evidence: str) -> Row:
    weights, head = options.formats(arm.build)
    return Row(
        arm=arm.name,
        model=source.manifest.model,
        depth=options.depth,
        status=status,
        evidence=evidence,
        weights=weights.label,
        head=head.label,
    )


def to_stderr(line: str) -> None:
    """A progress line."""
    print(line, file=sys.stderr, flush=True)
