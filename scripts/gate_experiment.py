"""How often the gate's device lane cries wolf, and whether it sees 5 %: measured on this machine's GPU.

    python scripts/gate_experiment.py --out results/gate/h200.json

Twenty A/A runs compare one commit with itself in another process; twenty planted runs compare it with a copy whose v2
kernel ends in a chain of dependent multiply-adds (by 1.0 and 0.0, given at run time, so that no compiler drops them),
as long as it takes to slow each cell by 5 %. A run is what ``roofgap gate`` does with a grid: rounds, statistics,
false-discovery control. To save GPU time the workers stay alive, and ``--runs`` runs share one placement of the
operands; ``--placements`` times everything is allocated anew. Two placements of ten runs take an H200 195 s, four of
five 235 s.

After each placement the runs so far go into ``OUT.partial.json`` beside the result; it is removed once the result is
written. So a partial file is what an experiment left that was cut off, and holds whole placements.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from random import Random
from statistics import mean

from roofgap.shapes.errors import RoofgapError
from roofgap.tracking.gate.checkout import check_out, git, repository, resolve
from roofgap.tracking.gate.device import (
    Cell,
    NotMeasuredError,
    Side,
    WorkerSide,
    prepare,
    take_rounds,
    time_cell,
)
from roofgap.tracking.gate.live import LiveWorker
from roofgap.tracking.gate.stats import Decision, Samples, decide
from roofgap.tuning.results import Cell as Value
from roofgap.tuning.results import make_results

Decisions = dict[str, list[dict[str, Decision]]]  # kind -> run -> cell
KERNEL = "kernels/variants/v2.py"
PLANTS = (
    (
        "    NUM_STAGES: tl.constexpr,\n):",
        "    busy,\n    busy_scale,\n    busy_shift,\n    NUM_STAGES: tl.constexpr,\n):",
    ),
    (
        "    if bias_ptr is not None:\n",
        "    for _ in range(busy):\n        y = y * busy_scale + busy_shift\n    if bias_ptr is not None:\n",
    ),
    (
        '            "NUM_STAGES": config.num_stages,\n',
        '            "busy": int(__import__("os").environ.get("ROOFGAP_PLANTED_BUSY", "0")),\n'
        '            "busy_scale": 1.0,\n            "busy_shift": 0.0,\n'
        '            "NUM_STAGES": config.num_stages,\n',
    ),
)
CELLS: tuple[Cell, ...] = tuple(
    ("v2", shape, m)
    for shape, m in (
        *product(
            ("1536x1536", "8960x1536", "1536x8960", "1024x1024", "2816x1024", "1024x2816", "2103x1024"),
            ("1",),
        ),
        *product(("8960x1536", "1536x8960", "2816x1024"), ("4",)),
    )
)
TARGET = 0.05
TOLERANCE = 0.004
TRIALS = 8
ROUNDS, CALIBRATION_ROUNDS = 16, 8


def main() -> int:
    """Runs the experiment and writes its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--placements", type=positive, default=5)
    parser.add_argument("--runs", type=positive, default=4, help="runs per placement, of each kind")
    parser.add_argument("--cells", type=positive, default=len(CELLS), help="only the first so many")
    options = parser.parse_args()
    try:
        root = repository()
        return experiment(root, CELLS[: options.cells], options.placements, options.runs, options.out)
    except (RoofgapError, NotMeasuredError) as error:
        print(f"roofgap: {error}", file=sys.stderr)
        return 2


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return value


def experiment(root: Path, cells: Sequence[Cell], placements: int, runs: int, out: Path) -> int:
    """All runs; 0 where the gate held what it promises."""
    with tempfile.TemporaryDirectory(prefix="roofgap-experiment-") as name, ExitStack() as stack:
        folder = Path(name)
        clone = plant(root, folder / "clone")
        commits = {"a": "HEAD~1", "again": "HEAD~1", "planted": "HEAD"}
        workers = {
            role: stack.enter_context(
                LiveWorker(
                    check_out(clone, resolve(clone, commit), folder / role),
                    root / "asv_bench",
                    interpret=False,
                )
            )
            for role, commit in commits.items()
        }
        sides = {role: WorkerSide(worker) for role, worker in workers.items()}
        about = workers["a"].ask("about", 120.0)
        if "gpu" not in about:
            raise NotMeasuredError(about.get("na") or about["failed"])
        busy = {cell: calibrate(sides["a"], workers["planted"], cell) for cell in cells}
        for cell, (count, effect) in busy.items():
            print(f"{'/'.join(cell)}: {count} busy steps are {effect:+.2%}", flush=True)
        sides["planted"] = WorkerSide(workers["planted"], {cell: count for cell, (count, _) in busy.items()})
        partial = out.with_suffix(".partial.json")
        for decisions in judge(sides, cells, placements, runs):
            results = make_results(about["gpu"], about["versions"], rows_of(decisions, busy))
            results.save(partial)
    results.save(out)
    partial.unlink()
    return summarise(decisions)


def plant(root: Path, clone: Path) -> Path:
    """A clone whose HEAD~1 is this HEAD and whose HEAD has the busy kernel."""
    git(root, "clone", "--quiet", "--shared", str(root), str(clone))
    path = clone / KERNEL
    text = path.read_text(encoding="utf-8")
    for old, new in PLANTS:
        if text.count(old) != 1:
            raise RoofgapError(
                f"{KERNEL}", f"has not exactly one {old.strip()!r}", "adapt PLANTS to the kernel"
            )
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    identity = ("-c", "user.name=experiment", "-c", "user.email=experiment@localhost")
    git(clone, *identity, "commit", "--quiet", "--all", "--message", "busy v2")
    return clone


def calibrate(before: Side, worker: LiveWorker, cell: Cell) -> tuple[int, float]:
    """Busy steps that slow a cell by ``TARGET``, and the slowdown that they gave when last tried.

    Grows until the target lies between two counts, then interpolates. Odd numbers only: Triton compiles another kernel
    for multiples of 16 and for 1.
    """
    low, high = (0, 0.0), (0, 0.0)
    step, effect = 65, 0.0
    for trial in range(TRIALS):
        sides = (before, WorkerSide(worker, {cell: step}))
        effect = decide({"cell": time_cell(sides, cell, CALIBRATION_ROUNDS, Random(trial))[0]})["cell"].effect
        if abs(effect - TARGET) <= TOLERANCE:
            break
        low, high = ((step, effect), high) if effect < TARGET else (low, (step, effect))
        if high[0] == 0:
            step = 3 * step | 1
        else:
            share = (TARGET - low[1]) / max(high[1] - low[1], 1e-3)
            step = round(low[0] + min(max(share, 0.1), 0.9) * (high[0] - low[0])) | 1
    return step, effect


def judge(
    sides: Mapping[str, Side], cells: Sequence[Cell], placements: int, runs: int
) -> Iterator[Decisions]:
    """After each placement, the decisions of all runs so far: kind -> run -> cell."""
    found: Decisions = {"again": [], "planted": []}
    random = Random(0)
    for placement in range(placements):
        print(f"placement {placement + 1} of {placements}", file=sys.stderr, flush=True)
        for kind, listed in take(sides, cells, runs, random).items():
            found[kind] += map(decide, listed)
        yield found


def take(
    sides: Mapping[str, Side], cells: Sequence[Cell], runs: int, random: Random
) -> dict[str, list[dict[str, Samples]]]:
    """Samples of the runs of one placement: kind -> run -> cell."""
    found: dict[str, list[dict[str, Samples]]] = {
        kind: [{} for _ in range(runs)] for kind in ("again", "planted")
    }
    for cell in cells:
        try:
            prepare((sides["a"], sides["again"]), cell)
            sides["planted"].prepare(cell)
            for run, kind in product(range(runs), found):
                found[kind][run]["/".join(cell)] = take_rounds((sides["a"], sides[kind]), ROUNDS, random)
        finally:
            for side in sides.values():
                side.release()
    return found


def rows_of(decisions: Decisions, busy: Mapping[Cell, tuple[int, float]]) -> list[dict[str, Value]]:
    """A row per kind, run and cell."""
    return [
        row(kind, number, name, decision, busy)
        for kind, listed in decisions.items()
        for number, run in enumerate(listed)
        for name, decision in run.items()
    ]


def row(
    kind: str, number: int, name: str, decision: Decision, busy: Mapping[Cell, tuple[int, float]]
) -> dict[str, Value]:
    """One cell of one run."""
    variant, shape, m = name.split("/")
    n, k = shape.split("x")
    return {
        "kind": "a/a" if kind == "again" else "planted",
        "run": number,
        "variant": variant,
        "n": int(n),
        "k": int(k),
        "m": int(m),
        "busy_steps": busy[variant, shape, m][0] if kind == "planted" else 0,
        "effect": decision.effect,
        "p_value": decision.p_value,
        "noise_floor": decision.noise_floor,
        "smallest_effect": decision.smallest_effect,
        "differs": decision.differs,
        "status": "ok",
    }


def summarise(decisions: Decisions) -> int:
    """Prints alarms and catches; 0 if there was one alarm at most and nineteen of twenty promised cells were caught."""
    again, planted = decisions["again"], decisions["planted"]
    alarms = sum(decision.differs for run in again for decision in run.values())
    print(f"A/A: {alarms} alarms in {len(again)} runs of {len(again[0])} cells")
    kept = alarms <= 1
    for name in planted[0]:
        runs = [run[name] for run in planted]
        promised = [decision for decision in runs if decision.smallest_effect <= TARGET]
        caught = sum(decision.differs and decision.effect > 0 for decision in promised)
        print(
            f"{name}: {mean(decision.effect for decision in runs):+.2%}, seen from "
            f"{mean(decision.smallest_effect for decision in runs):+.2%}, caught {caught} of {len(promised)} promised "
            f"({len(runs)} runs)"
        )
        kept &= caught >= 0.95 * len(promised)
    print("the gate held its promise" if kept else "the gate did not hold its promise")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
