"""Static metrics of cells (variant, shape, target): compiled for the target in parallel workers, never run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from ._cells import Cell
from ._config import own_config, source_hash, variant_named
from ._need import need
from ._reading import Reading, guarded

WIDEST_LOAD_BITS = 128
LANE_BITS = 32
METRICS = {
    "registers": "registers",
    "spill_bytes": "bytes",
    "shared_bytes": "bytes",
    "instructions_per_weight": "thread-instructions",
    "narrow_lanes": "lanes",
}


def readings(cells: Sequence[Cell]) -> dict[Cell, Reading]:
    """A reading per cell; a cell whose compilation fails or crashes costs only itself."""
    found: dict[Cell, Reading] = {}
    requests: dict[Cell, Any] = {}
    sources: dict[Cell, str] = {}
    for cell in cells:
        found[cell] = guarded(lambda cell=cell: _ask(cell, requests, sources))  # type: ignore[misc]
    for cell, result in _compile(requests):
        found[cell] = guarded(
            lambda cell=cell, result=result: _read(requests[cell], sources[cell], result)  # type: ignore[misc]
        )
    return found


def _compile(requests: dict[Cell, Any]) -> list[tuple[Cell, Any]]:
    """Metrics, a failure, or None where the compiler ended its process in an instant, for each request.

    A pool per worker, with one request at a time, for the sake of past commits: a pool of theirs that several workers
    share can blame a crash on the request that its worker had just finished, and then waits in vain for the one that
    crashed; one of a single worker can break instead.
    """
    if not requests:
        return []
    pool = need("roofgap.kernels.static.pool", "CompilePool")
    waiting = iter(requests)
    workers = min(8, max(2, os.cpu_count() or 2), len(requests))
    with ThreadPoolExecutor(workers) as threads:
        started = [threads.submit(_compile_each, pool, waiting, requests) for _ in range(workers)]
        return [outcome for one in started for outcome in one.result()]


def _compile_each(pool: Any, waiting: Iterator[Cell], requests: dict[Cell, Any]) -> list[tuple[Cell, Any]]:
    """What one worker compiles, until nothing is waiting; a pool that broke is opened anew."""
    done: list[tuple[Cell, Any]] = []
    while True:
        with pool(workers=1) as worker:
            for cell in waiting:
                try:
                    done.append((cell, worker.inspect([requests[cell]])[0]))
                except BrokenProcessPool:
                    done.append((cell, None))
                    break
            else:
                return done


def _ask(cell: Cell, requests: dict[Cell, Any], sources: dict[Cell, str]) -> Reading:
    """Files the request of a cell."""
    name, shape, target_name, *m = cell  # M is 1 in the grid
    request_for = need("roofgap.kernels.static.pool", "request_for")
    device_for = need("roofgap.kernels.static.targets", "device_for")
    targets = need("roofgap.kernels.static.targets", "TARGETS")
    variant = variant_named(name)
    problem = need("roofgap.shapes.problem", "Problem").parse(shape, m=int(m[0]) if m else 1)
    if target_name not in targets:
        raise NotImplementedError(f"this commit has no target {target_name}")
    target = targets[target_name]
    device = device_for(target)
    config, sources[cell] = own_config(variant, problem, target.device, target.limits(device))
    requests[cell] = request_for(variant, problem, target, config, device)
    return {}


def _read(request: Any, source: str, result: Any) -> Reading:
    """Metrics and what explains them, of a compiled request."""
    if result is None:
        return {"failed": "crash: the compiler ended its process"}
    kind = getattr(result, "kind", None)  # a failure has a kind, metrics have none
    if kind == "refused":
        raise NotImplementedError(result.message)
    if kind is not None:
        return {"failed": f"{kind}: {result.message}"}
    counts = result.instructions_per_weight
    bits = result.weight_load_bits
    return {
        "metrics": {
            "registers": result.registers,
            "spill_bytes": result.spill_bytes,
            "shared_bytes": result.shared_bytes,
            "instructions_per_weight": counts["total"] if counts else None,
            "narrow_lanes": max(0, WIDEST_LOAD_BITS - bits) // LANE_BITS if bits else None,
        },
        "facts": {
            "config": request.config.key,
            "config_source": source,
            "source_hash": source_hash(request.variant),
            "code_hash": result.machine_code_hash,
            "instructions": {kind: count for kind, count in counts.items() if count} if counts else {},
        },
    }
