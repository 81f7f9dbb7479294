"""Samples v4's configs on a GPU: correctness first, then cold times beside the stream probe.

    python scripts/v4_experiments.py --out v4.json                     # ten shapes, ten seconds each
    python scripts/v4_experiments.py 8960x1536 --budget 60 --also      # one shape, in depth, and what else it does

Per shape: the default, then configs in an order that is random but the same for every shape, each compiled, checked and
timed once until the budget is spent; the best are timed in turns. Where ``TRITON_CACHE_DIR`` holds the kernels already
(they can be compiled without a GPU), a config takes 0.1 s.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofgap.kernels.config import KernelConfig
    from roofgap.shapes.problem import Problem
    from roofgap.tuning.measure.cuda import CudaDevice
    from roofgap.tuning.measure.gap import Ceilings

PROTOTYPE_US = {
    "256x1536": 1.50,
    "1536x1536": 2.27,
    "2048x1536": 2.42,
    "8960x1536": 4.10,
    "17920x1536": 6.44,
    "1536x8960": 4.85,
    "151936x1536": 33.9,
    "18944x3584": 16.3,
    "3584x18944": 16.5,
    "16384x16384": 41.8,
}
"""An untuned packed-fp16 kernel on an H200, 2026-11, M = 1, group size 128: what v4 set out to beat."""
FINALISTS = 5
CHECKS = ("identity", "random", "row_counts", "outliers", "not_finite", "captured")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shapes", nargs="*", default=list(PROTOTYPE_US), help="NxK")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of sampling per shape")
    parser.add_argument("--m", type=int, default=1)
    parser.add_argument("--dtype", default="fp16", choices=("fp16", "bf16"))
    parser.add_argument("--zero-mode", default="sym", choices=("sym", "asym", "offset"))
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument(
        "--also", action="store_true", help="time the best config in bf16, with zeros, with more tokens"
    )
    parser.add_argument("--out", type=Path, help="write every trial as JSON")
    return parser.parse_args()


def candidates(problem: Problem, device: CudaDevice) -> list[KernelConfig]:
    """The default, then the valid configs."""
    from roofgap.kernels.ops import limits_of
    from roofgap.kernels.registry import get_variant

    v4, limits = get_variant("v4"), limits_of(device.torch_device)
    valid = [config for config in v4.configs(problem, limits) if "decode=portable" not in config.key]
    valid.sort(key=lambda config: hashlib.sha256(config.key.encode()).digest())
    return list(dict.fromkeys([v4.default_config(problem, limits), *valid]))


def check(device: CudaDevice) -> int:
    """Runs the correctness checks that a GPU can fail and a CPU cannot; the number of failures."""
    from roofgap.kernels.registry import get_variant
    from roofgap.kernels.verify import verify
    from roofgap.shapes.problem import Problem

    problems = [
        Problem(n=37, k=333, group_size=32, zero_mode="asym"),
        Problem(n=528, k=1536, x_dtype="bf16", zero_mode="offset"),
        Problem(n=256, k=8960),
    ]
    results = verify(get_variant("v4"), problems, device.torch_device, checks=CHECKS)
    failed = [result for result in results if result.status == "failed"]
    for result in failed:
        print(f"FAILED {result.problem} {result.check}: {result.detail}", flush=True)
    print(f"{len(results) - len(failed)} of {len(results)} checks passed or skipped", flush=True)
    return len(failed)


def trials(
    problem: Problem, device: CudaDevice, ceilings: Ceilings, budget_s: float
) -> Iterator[dict[str, Any]]:
    """One row per config that was tried; then one per finalist, timed in turns."""
    from roofgap.kernels.registry import get_variant
    from roofgap.tuning.measure.bench import Contender, bench
    from roofgap.tuning.measure.failure import Failure
    from roofgap.tuning.measure.policy import COLD
    from roofgap.tuning.measure.workload import Workload, measure_variant

    v4, workload = get_variant("v4"), Workload(problem, device)
    quick = replace(COLD, replays=6, warmup_limit=6)
    timed: list[tuple[float, KernelConfig]] = []
    configs, began = candidates(problem, device), time.perf_counter()
    for config in configs:
        if timed and time.perf_counter() - began > budget_s:
            break
        outcome = measure_variant(workload, v4, config, quick)
        if not isinstance(outcome, Failure):
            timed.append((outcome.latency_us, config))
        yield ceilings.row(problem, v4.name, config.key, outcome) | {"stage": "sample"}
    timed.sort(key=lambda one: one[0])
    best = list(dict.fromkeys([config for _, config in timed[:FINALISTS]] + [configs[0]]))
    for row in bench(workload, [Contender(v4, config) for config in best], COLD, ceilings):
        yield row | {"stage": "default" if row["config"] == configs[0].key else "final"}


def also(
    problem: Problem, config: KernelConfig, device: CudaDevice, ceilings: Ceilings
) -> Iterator[dict[str, Any]]:
    """The config on other problems with the same weight shape."""
    from roofgap.kernels.registry import get_variant
    from roofgap.tuning.measure.workload import Workload, measure_variant

    changes: list[dict[str, Any]] = [
        {"x_dtype": "bf16"},
        {"zero_mode": "asym"},
        {"m": 2},
        {"m": 4},
        {"m": 8},
        {"group_size": 64},
    ]
    for change in changes:
        other = replace(problem, **change)
        outcome = measure_variant(Workload(other, device), get_variant("v4"), config)
        yield ceilings.row(other, "v4", config.key, outcome) | {"stage": f"also {change}"}


def show(problem: Problem, rows: list[dict[str, Any]], seconds: float) -> dict[str, Any] | None:
    """Prints a shape's outcome and returns the best row."""
    ok = [row for row in rows if row["status"] == "ok"]
    failed = [row for row in rows if row["status"] != "ok"]
    final = [row for row in ok if row["stage"] in ("final", "default")]
    for row in failed[:3]:
        print(f"    {row['status']}: {row['config']}: {str(row.get('evidence'))[-300:]}")
    if not final:
        print(f"{problem.shape:>14}  nothing was timed; {len(failed)} failures", flush=True)
        return None
    best = min(final, key=lambda row: row["latency_us"])
    probe_us = best["probe_us"] or float("nan")
    default = next((row["latency_us"] for row in ok if row["stage"] == "default"), None)
    prototype = PROTOTYPE_US.get(problem.shape)
    print(
        f"{problem.shape:>14}  {best['latency_us']:7.2f} us  probe {probe_us:6.2f}  "
        f"{probe_us / best['latency_us']:4.0%} of attainable  default {default or float('nan'):7.2f}  "
        f"prototype {prototype or float('nan'):6.2f}  error {best['rel_error']:.1e}  {best['config']}  "
        f"({len(ok)} ok, {len(failed)} failed, {seconds:.0f} s)",
        flush=True,
    )
    for row in sorted(final, key=lambda row: row["latency_us"])[1:4]:
        print(f"{'':>16}{row['latency_us']:7.2f} us  {row['config']}", flush=True)
    return best


def main() -> int:
    """Runs the experiment."""
    options = arguments()
    from roofgap.kernels.registry import get_variant
    from roofgap.shapes.problem import Problem
    from roofgap.tuning.environment import gpu_name
    from roofgap.tuning.measure.bandwidth import open_device
    from roofgap.tuning.measure.gap import Ceilings
    from roofgap.tuning.measure.policy import COLD
    from roofgap.tuning.results import make_results

    device = open_device()
    ceilings = Ceilings.of(device, COLD)
    print(
        f"{device.name}: {device.read_gbps:,.0f} GB/s read, launch floor {ceilings.launch_floor_us:.2f} us",
        flush=True,
    )
    failures = check(device)
    rows: list[dict[str, Any]] = []
    for shape in options.shapes:
        problem = Problem.parse(
            shape,
            m=options.m,
            x_dtype=options.dtype,
            zero_mode=options.zero_mode,
            group_size=options.group_size,
        )
        began = time.perf_counter()
        found = list(trials(problem, device, ceilings, options.budget))
        best = show(problem, found, time.perf_counter() - began)
        if options.also and best is not None:
            others = list(
                also(problem, get_variant("v4").config_type.parse(best["config"]), device, ceilings)
            )
            for row in others:
                print(f"{'':>16}{row.get('latency_us') or row['status']!s:>8.8}  {row['stage']}", flush=True)
            found += others
        rows += found
        failures += sum(row["status"] == "wrong" for row in found)
        if options.out is not None:
            make_results(gpu_name(device.name), device.versions(), rows).save(options.out)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
