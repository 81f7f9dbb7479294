"""Content of the roofline page: how far each variant is from what the hardware allows, per GPU and shape.

Read from ``results/compare/*.json`` and ``results/e2e/*/*.json`` and from the suite's device lane. Roof gap is
time / ``floor_us``, attainable gap is time / ``probe_us``; 1.0 is the roof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roofgap.shapes.errors import RoofgapError
from roofgap.tracking.site.series import Series
from roofgap.tuning.results import ResultFile, read_results

# Last part of a benchmark's name -> what the cell holds.
DEVICE_METRICS = {"latency": "latency_us", "attainable_gap": "attainable_gap", "roof_gap": "roof_gap"}
TO_US = {"seconds": 1e6, "s": 1e6, "ms": 1e3, "us": 1.0}


class CompareRow(BaseModel):
    """A row of a compare file. Times in microseconds; fields that the page does not show are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    variant: str
    n: int
    k: int
    m: int
    dtype: str | None = None
    group_size: int | None = None
    latency_us: float | None = Field(default=None, gt=0)
    probe_us: float | None = Field(default=None, gt=0)
    floor_us: float | None = Field(default=None, gt=0)
    rel_error: float | None = None
    status: str = "ok"


class DecodeRow(BaseModel):
    """A row of an end-to-end file: one way of decoding a model at one context depth."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    arm: str
    model: str
    depth: int | None = None
    tok_s: float | None = None
    ms_per_token: float | None = None
    read_gbps: float | None = None
    pct_of_read_bandwidth: float | None = None
    status: str = "ok"


def roofline_data(results: Path, series: Sequence[Series], hashes: dict[int, str]) -> dict[str, Any]:
    """What the page shows, by GPU; ``problems`` names every file or row that could not be read."""
    problems: list[str] = []
    gpus: dict[str, dict[str, Any]] = {}

    def of(gpu: str) -> dict[str, Any]:
        return gpus.setdefault(gpu, {"gpu": gpu, "kernels": [], "decode": [], "files": []})

    for path in sorted((results / "compare").glob("*.json")):
        if file := _read(path, results, problems):
            rows = _valid(file, CompareRow, path.relative_to(results.parent), problems)
            of(file.gpu)["kernels"] += [_kernel(row) for row in rows]
            of(file.gpu)["files"].append(_provenance(path.relative_to(results.parent), file))
    for path in sorted((results / "e2e").glob("*/*.json")):
        if file := _read(path, results, problems):
            rows = _valid(file, DecodeRow, path.relative_to(results.parent), problems)
            of(file.gpu)["decode"] += [row.model_dump() for row in rows]
            of(file.gpu)["files"].append(_provenance(path.relative_to(results.parent), file))
    for gpu, row in device_rows(series, hashes):
        of(gpu)["kernels"].append(row)
    for one in gpus.values():
        one["kernels"].sort(key=lambda row: (row["weights"], row["shape"], row["m"], row["variant"]))
    return {"gpus": [gpus[name] for name in sorted(gpus)], "problems": problems}


def _kernel(row: CompareRow) -> dict[str, Any]:
    timed = row.latency_us if row.status == "ok" else None
    return {
        **row.model_dump(include={"variant", "m", "dtype", "group_size", "rel_error", "status"}),
        "shape": f"{row.n}x{row.k}",
        "weights": row.n * row.k,
        "latency_us": timed,
        "attainable_gap": timed / row.probe_us if timed and row.probe_us else None,
        "roof_gap": timed / row.floor_us if timed and row.floor_us else None,
        "source": "compare",
    }


def device_rows(series: Iterable[Series], hashes: dict[int, str]) -> list[tuple[str, dict[str, Any]]]:
    """The device lane's newest value of each cell, as rows of the same form, with the GPU of each."""
    cells: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for one in series:
        metric = next((name for name in DEVICE_METRICS if name in one.benchmark.rpartition(".")[2]), None)
        if not one.benchmark.startswith("device.") or metric is None or not one.gpu:
            continue
        variant, shape, m = (one.params.get(name, "") for name in ("variant", "shape", "m"))
        weights = [int(size) for size in shape.split("x")[:2] if size.isdigit()]
        revision, value = one.points[-1]
        row = cells.setdefault(
            (one.gpu, variant, shape, m),
            {
                "variant": variant,
                "shape": shape,
                "m": int(m) if m.isdigit() else 1,
                "weights": weights[0] * weights[1] if len(weights) == 2 else 0,
                **dict.fromkeys(("dtype", "group_size", "rel_error", *DEVICE_METRICS.values())),
                "status": "ok",
            },
        )
        row[DEVICE_METRICS[metric]] = value * TO_US.get(one.unit, 1.0) if metric == "latency" else value
        row["source"] = f"asv {hashes[revision][:10]}"
    return [(key[0], cells[key]) for key in sorted(cells)]


def _read(path: Path, results: Path, problems: list[str]) -> ResultFile | None:
    try:
        return read_results(path)
    except RoofgapError as error:
        problems.append(str(error).replace(f"{results.parent}/", ""))
        return None


def _valid(file: ResultFile, model: type[Any], name: Path, problems: list[str]) -> list[Any]:
    rows = []
    for number, fields in enumerate(file.rows, start=1):
        try:
            rows.append(model.model_validate(fields))
        except ValidationError as error:
            first = error.errors()[0]
            problems.append(f"{name} row {number}: {'.'.join(map(str, first['loc']))}: {first['msg']}")
    return rows


def _provenance(path: Path, file: ResultFile) -> dict[str, Any]:
    return {
        "path": path.as_posix(),
        "date": file.date,
        "commit": file.commit,
        "command": file.command,
        "versions": dict(sorted(file.versions.items())),
    }
