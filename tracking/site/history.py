"""Content of the regression history page: every step of every series, and how to see it again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from roofgap.tracking.gate.records import LANES
from roofgap.tracking.site.git import Commit
from roofgap.tracking.site.series import Series, Step, steps_of
from roofgap.tracking.site.sparkline import sparkline

DAY_S = 86400


def history_data(
    series: Sequence[Series],
    hashes: dict[int, str],
    suspects: Callable[[str, str], list[str]],
    describe: Callable[[Iterable[str]], dict[str, Commit]],
) -> dict[str, Any]:
    """What the page shows, newest step first.

    Args:
        series: all of them; those without a step are counted only.
        hashes: commit of each revision.
        suspects: commits in (a, b], as ``git rev-list a..b``.
        describe: date and subject of commits.
    """
    stepped = [(one, steps) for one in series if (steps := steps_of(one))]
    ranges = {
        (hashes[step.before_revision], hashes[step.after_revision]) for _, steps in stepped for step in steps
    }
    between = {pair: suspects(*pair) for pair in sorted(ranges)}
    measured = {hashes[revision] for one in series for revision, _ in one.points}
    commits = describe(measured.union(*between.values()))
    by_machine: dict[str, list[Series]] = {}
    for one in series:
        by_machine.setdefault(one.machine.get("machine", ""), []).append(one)
    everywhere = _varying(series) | {"machine"}  # its name always tells
    within = {name: _varying(found) for name, found in by_machine.items()}
    rows, listed = [], []
    for index, (one, steps) in enumerate(stepped):
        line = sparkline(one.points)
        listed.append({**_cell(one, everywhere, within), "path": line.path})
        for step in steps:
            place = {"series": index, "at": line.places[step.after_revision]}
            rows.append({**_row(step, hashes, commits, between), **place})
    order = {commit_hash: revision for revision, commit_hash in hashes.items()}
    # The cells of one metric stand together, whatever the machine.
    rows.sort(key=lambda row: (-order[row["to"]], listed[row["series"]]["benchmark"], row["series"]))
    return {
        "series": listed,
        "steps": rows,
        "series_total": len(series),
        "commits": [
            {
                "hash": commit.hash,
                "date": commit.date,
                "subject": commit.subject,
                "measured": commit.hash in measured,
            }
            for commit in sorted(
                commits.values(), key=lambda one: (one.time_s, order.get(one.hash, -1)), reverse=True
            )
        ],
    }


def _cell(series: Series, everywhere: set[str], within: dict[str, set[str]]) -> dict[str, Any]:
    machine = series.machine.get("machine", "")
    return {
        "benchmark": series.benchmark,
        "unit": series.unit,
        "params": series.params,
        "gpu": series.gpu,
        "machine": machine,
        # Versions and settings are worth a word only where one machine had several.
        "toolchain": [series.machine[name] for name in sorted(within[machine]) if name in series.machine],
        "graph": graph_link(series, everywhere),
        "pattern": shlex.quote(pattern_of(series.name)),
        "gate": gate_options(series),
    }


def _row(
    step: Step,
    hashes: dict[int, str],
    commits: dict[str, Commit],
    between: dict[tuple[str, str], list[str]],
) -> dict[str, Any]:
    before, after = hashes[step.before_revision], hashes[step.after_revision]
    row: dict[str, Any] = {
        "from": before,
        "to": after,
        "suspects": len(between[before, after]),
        "before": step.before,
        "after": step.after,
        "ratio": step.ratio,
        "direction": "worse" if step.after > step.before else "better",
        "outcome": step.outcome,
        "minor": step.minor,
    }
    if step.end is not None:
        end = hashes[step.end[1]]
        row["end"] = end
        row["end_commits"] = step.end[1] - step.after_revision
        row["end_days"] = round((commits[end].time_s - commits[after].time_s) / DAY_S, 2)
    return row


def pattern_of(name: str) -> str:
    """A regular expression for exactly this cell. Quotes become dots, so that the shell needs no escapes."""
    return "^" + re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", name).replace("'", ".") + "$"


def gate_options(series: Series) -> str:
    """What makes ``roofgap gate`` measure this cell alone; empty for a benchmark of no lane that it knows."""
    lane = series.benchmark.partition(".")[0]
    if lane not in LANES:
        return ""
    return f"--lanes {lane} --only {shlex.quote('/'.join((lane, *series.params.values())))}"


def graph_link(series: Series, varying: set[str]) -> str:
    """Address of the series on asv's graph page."""
    query = {name: value for name, value in sorted(series.machine.items()) if name in varying}
    query |= {f"p-{name}": value for name, value in series.raw_params.items()}
    return f"index.html#{series.benchmark}?{urlencode(query)}"


def _varying(series: Sequence[Series]) -> set[str]:
    """What differs between machines and toolchains."""
    values: dict[str, set[str]] = {}
    for one in series:
        for name, value in one.machine.items():
            values.setdefault(name, set()).add(value)
    return {name for name, seen in values.items() if len(seen) > 1}
