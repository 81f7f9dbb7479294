"""A comparison on the GPU of this machine, from open device to result file."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from roofgap.e2e.arms import Arm, Build
from roofgap.e2e.compare import compare
from roofgap.e2e.explain import Inspector
from roofgap.e2e.models import ModelSource
from roofgap.e2e.prepare import Options
from roofgap.e2e.rows import Row
from roofgap.e2e.swap import Built
from roofgap.e2e.turns import describe
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.results import ResultFile, make_results

PACKAGES = ("transformers", "bitsandbytes", "gemlite", "gptqmodel")


def run_on_gpu(
    source: ModelSource,
    arms: Sequence[Arm],
    options: Sequence[Options],
    extra: Sequence[Row] = (),
    *,
    progress: Callable[[str], None] = lambda line: None,
    breakdown: Path | None = None,
    quality: bool = False,
    out: Path | None = None,
) -> tuple[ResultFile, list[Row], list[str]]:
    """Compares at every depth, with tuned configs where there are winners.

    The result file is written after every depth, so that what was measured survives a crash of the next.

    Args:
        source: the model.
        arms: what to compare.
        options: one per depth.
        extra: rows measured elsewhere, to stand beside.
        progress: told what happens, a line at a time.
        breakdown: folder for each arm's time by role and its waterfall; None to leave that out.
        quality: whether to score the committed text too; real weights only.
        out: result file.

    Returns:
        The result file, its rows, and warnings.

    Raises:
        RoofgapError: there is no GPU, too little memory to measure its bandwidth, or ``out`` cannot be written.
    """
    import torch

    from roofgap.tuning import lookup
    from roofgap.tuning.environment import gpu_name
    from roofgap.tuning.measure.bandwidth import read_bandwidth
    from roofgap.tuning.measure.cuda import CudaDevice

    device = CudaDevice()
    lookup.install()

    def read_gbps() -> float:
        gbps = read_bandwidth(device).gbps
        torch.cuda.empty_cache()
        return gbps

    built: dict[Build, Built] = {}
    rows: list[Row] = []
    warnings: list[str] = []
    gpu = gpu_name(device.name)
    results = make_results(gpu, _versions(device.versions()), [])
    builds = {arm.name: arm.build for arm in arms}
    inspector = Inspector(source, device, options[0], breakdown=breakdown is not None, quality=quality)
    for option in options:
        inspector.options = option
        progress(f"depth {option.depth}")
        try:
            found = compare(
                source,
                arms,
                device,
                option,
                read_gbps=read_gbps,
                progress=progress,
                inspect=inspector if quality or breakdown is not None else None,
                built=built,
            )
        except Exception as error:
            if not rows:
                raise
            warnings.append(f"depth {option.depth} and later were not run: {describe(error)}")
            break
        new = inspector.with_quality(found.rows, builds)
        rows += new
        warnings += found.warnings
        results = make_results(gpu, _versions(device.versions()), [row.cells() for row in (*rows, *extra)])
        if out is not None:
            results.save(out)
        if breakdown is not None:
            try:
                for line in inspector.write(new, breakdown):
                    progress(line)
            except RoofgapError as error:  # the rows are measured and saved, figures or not
                warnings.append(str(error))
    return results, [*rows, *extra], warnings


def _versions(known: dict[str, str]) -> dict[str, str]:
    """Adds what decides host time: the CPU, and the libraries whose Python runs between kernels."""
    found = {**known, "cpu": _cpu()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
