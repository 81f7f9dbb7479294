"""Measures lanes of chosen commits and writes them where asv expects results. Needs no asv.

    python scripts/record_history.py --lanes device --machine my-h200 COMMIT [COMMIT ...]
    python scripts/record_history.py --lanes static,traffic $(git rev-list --reverse HEAD)

One live process per commit computes all cells, where asv starts one per cell. A commit's file is written once it is
measured: being cut off costs one commit. For a GPU machine without a network: take the history there as a
``git bundle``, clone it, run this, and bring ``results/asv/<machine>`` back.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from roofgap.shapes.errors import RoofgapError
from roofgap.tracking.asv_results import Series, write_results
from roofgap.tracking.describe import describe_extras, describe_host
from roofgap.tracking.gate.checkout import check_out, git, repository, resolve
from roofgap.tracking.gate.exact import read
from roofgap.tracking.gate.live import LiveWorker
from roofgap.tracking.gate.records import EXACT_LANES
from roofgap.tracking.venv import tracked_versions

NOT_APPLICABLE = float("nan")


def main() -> int:
    """Records commit after commit; a commit that cannot be measured is said and costs the others nothing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commits", nargs="+")
    parser.add_argument(
        "--lanes", default="device", help="static, traffic, quality, device, joined by commas"
    )
    parser.add_argument("--machine", help="name of the machine's folder; default: its host name")
    parser.add_argument("--results", type=Path, help="asv's results folder; default: results/asv")
    parser.add_argument("--shapes", help="only these, joined by commas")
    parser.add_argument("--variants", help="only these, joined by commas")
    parser.add_argument("--tokens", help="device lane: only these M, joined by commas")
    options = parser.parse_args()
    try:
        root = repository()
        commits = [resolve(root, name) for name in options.commits]
    except RoofgapError as error:
        print(f"roofgap: {error}", file=sys.stderr)
        return error.exit_code
    machine = {**describe_host(), **describe_extras()}
    if options.machine:
        machine["machine"] = options.machine
    failed = 0
    for commit in dict.fromkeys(commits):
        try:
            failed += record(root, commit, machine, options)
        except RoofgapError as error:
            failed += 1
            print(f"roofgap: {commit[:10]}: {error}", file=sys.stderr)
    return 1 if failed else 0


def record(root: Path, commit: str, machine: Mapping[str, str], options: argparse.Namespace) -> int:
    """Measures one commit and writes its file; returns how many cells failed, at least 1 if nothing was measured."""
    series: list[Series] = []
    failures = 0
    skipped: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="roofgap-history-") as folder:
        checkout = check_out(root, commit, Path(folder) / "commit")
        for lane in options.lanes.split(","):
            with LiveWorker(checkout, root / "asv_bench", interpret=lane in EXACT_LANES) as worker:
                grid = worker.ask("cells", 60.0, lane=lane)
                wanted = [tuple(cell) for cell in grid["cells"] if is_wanted(tuple(cell), lane, options)]
                readings = read(worker, lane, wanted)
            for cell, reading in readings.items():
                skipped.update([reading["na"]] if "na" in reading else [])
                if "failed" in reading:
                    failures += 1
                    print(
                        f"roofgap: {commit[:10]} {lane} {'/'.join(cell)}: {reading['failed']}",
                        file=sys.stderr,
                    )
            series += to_series(grid["series"], grid["axes"], readings)
    if series:
        folder_of_results = options.results or root / "results" / "asv"
        when = int(git(root, "show", "-s", "--format=%ct", commit)) * 1000
        versions = tracked_versions(["torch", "triton"])
        path = write_results(folder_of_results, machine, commit, when, versions, series)
        print(f"{commit[:10]} {len(series)} series in {time.monotonic() - began:.0f} s: {path}")
    else:
        reasons = "; ".join(f"{reason} ({count} cells)" for reason, count in skipped.most_common(3))
        print(f"roofgap: {commit[:10]}: nothing of {options.lanes} was measured: {reasons}", file=sys.stderr)
        return max(failures, 1)
    return failures


def is_wanted(cell: tuple[str, ...], lane: str, options: argparse.Namespace) -> bool:
    """Whether a cell passes the options' filters."""
    filters = (
        (options.variants, cell[0]),
        (options.shapes, cell[1]),
        (options.tokens if lane == "device" else None, cell[-1]),
    )
    return all(names is None or part in names.split(",") for names, part in filters)


def to_series(
    prefix: str, axes: Sequence[Sequence[object]], readings: Mapping[tuple[str, ...], Mapping[str, Any]]
) -> list[Series]:
    """A series per metric over the whole grid: NaN for cells not asked for or not applicable, None for failures."""
    started = int(time.time() * 1000)
    measured = [reading["metrics"] for reading in readings.values() if "metrics" in reading]
    names = list(dict.fromkeys(name for metrics in measured for name in metrics))
    found = []
    for name in names:
        values: list[Any] = []
        for combination in product(*axes):
            reading = readings.get(tuple(map(str, combination)), {"na": "not asked for"})
            value = reading["metrics"].get(name) if "metrics" in reading else NOT_APPLICABLE
            value = NOT_APPLICABLE if value is None else value
            values.append(None if "failed" in reading else value)
        found.append(Series(f"{prefix}{name}", axes, values, started))
    return found


if __name__ == "__main__":
    sys.exit(main())
