"""Content of the tuning page: the winner of each problem from commit to commit, from git."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tracking.site.git import Commit, FileChange
from roofgap.tuning.winner import Winner
from roofgap.tuning.winners_store import stale_fields

FOLDER = "tuning/winners"
KEY = re.compile(
    r"n(?P<n>\d+)-k(?P<k>\d+)-m(?P<m>\d+)-g(?P<group>row|\d+)-(?P<x_dtype>\w+)-(?P<zero_mode>\w+)(?P<bias>-bias)?"
)


def tuning_data(changes: Sequence[FileChange]) -> dict[str, Any]:
    """What the page shows: problems in order of GPU, variant and name, each with its versions, oldest first.

    Args:
        changes: every version of every file under ``tuning/winners``, oldest first.
    """
    problems: list[str] = []
    files: dict[str, list[FileChange]] = {}
    for change in changes:
        if PurePosixPath(change.path).suffix == ".json":
            files.setdefault(change.path, []).append(change)
    found = [_file(path, versions, problems) for path, versions in sorted(files.items())]
    return {"winners": [one for one in found if one is not None], "problems": problems}


def _file(path: str, versions: Sequence[FileChange], problems: list[str]) -> dict[str, Any] | None:
    history: list[dict[str, Any]] = []
    previous: Winner | None = None
    current: Winner | None = None
    for change in versions:
        entry = _commit(change.commit)
        if change.content is None:
            current = None
            history.append({**entry, "event": "removed"})
            continue
        try:
            current = Winner.model_validate_json(change.content)
        except ValidationError as error:
            current = None
            history.append({**entry, "event": "unreadable"})
            if change is versions[-1]:
                first = error.errors()[0]
                place = ".".join(map(str, first["loc"]))
                problems.append(f"{path}{f' at {place}' if place else ''}: {first['msg']}")
            continue
        history.append({**entry, **_version(current, previous)})
        previous = current
    if previous is None:
        return None
    identity = previous.identity
    expected = (identity.gpu, identity.variant, identity.file_name)
    if PurePosixPath(path).parts[-3:] != expected:
        problems.append(f"{path}: says it belongs at {'/'.join(expected)}")
    return {
        "path": path,
        "gpu": identity.gpu,
        "variant": identity.variant,
        "problem": identity.problem,
        "policy": identity.policy,
        "history": history,
        "current": None if current is None else _current(current),
    }


def _commit(commit: Commit) -> dict[str, Any]:
    return {"commit": commit.hash, "date": commit.date, "subject": commit.subject}


def _version(winner: Winner, previous: Winner | None) -> dict[str, Any]:
    changed = []
    if previous is not None:
        names = sorted({*previous.config, *winner.config})
        changed = [
            {"field": name, "from": previous.config.get(name), "to": winner.config.get(name)}
            for name in names
            if previous.config.get(name) != winner.config.get(name)
        ]
        before, after = (one.provenance.toolchain.model_dump() for one in (previous, winner))
        changed += [
            {"field": name, "from": before[name], "to": after[name]}
            for name in before
            if before[name] != after[name]
        ]
    event = "first" if previous is None else "retuned" if previous.config != winner.config else "confirmed"
    return {
        "event": event,
        "config": winner.config,
        "latency_us": winner.latency_us,
        "p20_us": winner.p20_us,
        "p80_us": winner.p80_us,
        "changed": changed,
        # Latencies of two sessions are not compared: the run measured its predecessor beside the winner.
        "over_previous": winner.previous.ratio if winner.previous else None,
        "over_default": winner.default.ratio if winner.default else None,
    }


def _current(winner: Winner) -> dict[str, Any]:
    return {
        "provenance": winner.provenance.model_dump(),
        "ties": len(winner.tie_set),
        "tie_band": winner.tie_band,
        "rel_error": winner.rel_error,
        "rejected": {name: one.count for name, one in sorted(winner.rejected.items())},
        "unvalidated": unvalidated(winner),
    }


def problem_of(key: str) -> Problem:
    """The problem whose ``key`` this is.

    Raises:
        RoofgapError: it is no problem's key.
    """
    fields = KEY.fullmatch(key)
    if fields is None:
        raise RoofgapError(f"problem {key!r}", "is not the key of a problem", "tune it again")
    group = fields["group"]
    return Problem(
        n=int(fields["n"]),
        k=int(fields["k"]),
        m=int(fields["m"]),
        group_size=-1 if group == "row" else int(group),
        x_dtype=fields["x_dtype"],  # type: ignore[arg-type] # Problem checks both names
        zero_mode=fields["zero_mode"],  # type: ignore[arg-type]
        bias=fields["bias"] is not None,
    )


def unvalidated(winner: Winner) -> list[str]:
    """Why the working tree would not vouch for a winner.

    Kernel source and search space are compared wherever the page is made; driver, CUDA, torch and Triton only
    on the GPU that the winner belongs to, for elsewhere they say nothing about it.
    """
    from roofgap.kernels.registry import get_variant
    from roofgap.tuning import environment
    from roofgap.tuning.lookup import current_provenance

    try:
        variant = get_variant(winner.identity.variant)
        problem = problem_of(winner.identity.problem)
        differing = stale_fields(winner.provenance, current_provenance(variant, problem))
    except RoofgapError as error:
        return [str(error)]
    if winner.identity.config_version != variant.config_type.version:
        differing.append(f"config version: {winner.identity.config_version} -> {variant.config_type.version}")
    if environment.current_gpu() == winner.identity.gpu:
        return differing
    here = ("source_hash", "space_hash", "config version")
    return [text for text in differing if text.startswith(here)]
