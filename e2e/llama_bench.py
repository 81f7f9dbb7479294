"""llama.cpp beside the other arms: rows from the JSON of the user's own ``llama-bench -o json`` run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roofgap.e2e.rows import Row, median_ci, variation
from roofgap.shapes.architecture import Architecture
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import Manifest

NEEDED = ("model_type", "model_size", "n_prompt", "n_gen", "avg_ts", "samples_ts")


def read_llama_bench(path: Path, manifest: Manifest, *, device_read_gbps: float | None = None) -> list[Row]:
    """Token generation tests (n_gen > 0, n_prompt = 0) as rows; prompt tests are left out.

    Bytes are llama-bench's model_size, which counts an embedding that is not the head as well, plus the cache at the
    mean context in its K and V types.

    Raises:
        RoofgapError: not such a file, or one without generation tests.
    """
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RoofgapError(
            str(path), f"is not readable JSON ({type(error).__name__})", "write it with `llama-bench -o json`"
        ) from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RoofgapError(str(path), "must be a list of tests", "write it with `llama-bench -o json`")
    rows = [
        _row(entry, path, manifest, device_read_gbps)
        for entry in entries
        if entry.get("n_gen") and not entry.get("n_prompt")
    ]
    if not rows:
        raise RoofgapError(str(path), "holds no generation test", "run llama-bench with -p 0 -n 128 -d 512")
    return rows


def _row(entry: dict[str, Any], path: Path, manifest: Manifest, device_read_gbps: float | None) -> Row:
    absent = [name for name in NEEDED if name not in entry]
    if absent:
        raise RoofgapError(
            f"{path}: {', '.join(absent)}", "is missing from a test", "write it with `llama-bench -o json`"
        )
    samples = [float(sample) for sample in entry["samples_ts"]] or [float(entry["avg_ts"])]
    steps, depth = int(entry["n_gen"]), int(entry.get("n_depth") or 0)
    tok_s = sorted(samples)[len(samples) // 2]
    low, high = median_ci(samples)
    kv = _kv_bytes(entry, manifest.architecture) * (depth + (steps + 1) // 2)
    read = float(entry["model_size"]) + kv
    gbps = read * tok_s / 1e9
    return Row(
        arm=f"llama.cpp {entry['model_type']}",
        model=manifest.model,
        depth=depth,
        note=(
            f"from {path.name}, build {entry.get('build_commit', '?')}, {entry.get('gpu_info', '?')}; "
            "sampling excluded"
        ),
        weights=str(entry["model_type"]),
        n_gen=steps,
        repeats=len(samples),
        tok_s=tok_s,
        tok_s_low=low,
        tok_s_high=high,
        ms_per_token=1e3 / tok_s,
        cv=variation(samples),
        kv_bytes=kv,
        bytes_per_token=read,
        read_gbps=gbps,
        device_read_gbps=device_read_gbps,
        pct_of_read_bandwidth=None if device_read_gbps is None else 100 * gbps / device_read_gbps,
        ceiling_tok_s=None if device_read_gbps is None else device_read_gbps * 1e9 / read,
    )


def _kv_bytes(entry: dict[str, Any], architecture: Architecture) -> float:
    sizes = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}
    return sum(
        architecture.kv_bytes_per_token(sizes.get(str(entry.get(name, "f16")), 2.0)) / 2
        for name in ("type_k", "type_v")
    )
