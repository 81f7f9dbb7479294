"""The allow-list: cells that may be worse, each with a reason and a last day."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from roofgap.shapes.files import read_record
from roofgap.tracking.gate.records import Finding, Record

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Entry(Record):
    """``cell`` is a finding's name or a shell pattern over it; ``until`` is the last day it holds."""

    cell: Text
    reason: Text
    until: datetime.date


class AllowList(Record):
    """The file: ``{"allow": [{"cell", "reason", "until"}, ...]}``."""

    allow: tuple[Entry, ...] = Field(default=())


def load(path: Path) -> AllowList:
    """Reads an allow-list.

    Raises:
        RoofgapError: not JSON, or not an allow-list.
    """
    return read_record(
        path, AllowList, 'write it like {"allow": [{"cell": "...", "reason": "...", "until": "2027-01-31"}]}'
    )


def apply(
    allowed: AllowList, findings: Iterable[Finding], today: datetime.date
) -> tuple[list[Finding], list[str]]:
    """Findings with what is worse and listed marked ``allowed``, and warnings about entries that did nothing.

    An entry past its day excuses nothing.
    """
    listed = list(findings)
    names = [finding.cell for finding in listed]
    warnings, valid = [], []
    for entry in allowed.allow:
        if entry.until < today:
            warnings.append(f"allow-list: {entry.cell} expired on {entry.until} ({entry.reason})")
            continue
        valid.append(entry)
        matched = [finding for finding in listed if fnmatchcase(finding.cell, entry.cell)]
        if not matched:
            warnings.append(f"allow-list: {entry.cell} matches none of {len(names)} cells")
        elif not any(finding.verdict == "worse" for finding in matched):
            warnings.append(f"allow-list: {entry.cell} is not worse any more; remove it")
    result = []
    for finding in listed:
        entries = [entry for entry in valid if fnmatchcase(finding.cell, entry.cell)]
        if finding.verdict == "worse" and entries:
            reason = f"{entries[0].reason} (until {entries[0].until})"
            finding = finding.model_copy(update={"verdict": "allowed", "reason": reason})  # noqa: PLW2901
        result.append(finding)
    return result, warnings
