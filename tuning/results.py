"""Result files: what was measured and is worth keeping, with all that is needed to doubt it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from roofgap.shapes.files import read_record, write_text
from roofgap.tuning.trial import Record

Cell = str | int | float | bool | None


class ResultFile(Record):
    """One object per file: ``{"schema", "gpu", "versions", "date", "commit", "command", "rows"}``.

    Attributes:
        schema_version: written as ``schema``.
        gpu: the device profile's name, e.g. ``h200``.
        versions: driver, CUDA, torch, Triton, Python, roofgap.
        date: UTC, ISO 8601, to the second.
        commit: of the working tree, with ``-dirty`` where it differs; None outside a repository.
        command: as it was typed.
        rows: flat records with units in their names.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_version: Literal[1] = Field(default=1, alias="schema")
    gpu: str
    versions: dict[str, str]
    date: str
    commit: str | None
    command: str
    rows: tuple[dict[str, Cell], ...]

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all.

        Raises:
            RoofgapError: the folder cannot be written.
        """
        write_text(path, self.model_dump_json(indent=1, by_alias=True) + "\n")


def make_results(gpu: str, versions: dict[str, str], rows: Sequence[dict[str, Cell]]) -> ResultFile:
    """Wraps rows that were measured just now by this process."""
    return ResultFile(
        gpu=gpu,
        versions=versions,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=current_commit(),
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        rows=tuple(rows),
    )


def read_results(path: Path) -> ResultFile:
    """Reads a result file.

    Raises:
        RoofgapError: it is missing, damaged or of another schema.
    """
    return read_record(path, ResultFile, "measure again with --out")


def current_commit(folder: Path | None = None) -> str | None:
    """The commit of the repository around ``folder`` (the working folder), or None."""
    try:
        head = _git("rev-parse", "HEAD", folder=folder)
        return (
            f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no", folder=folder) else head
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*args: str, folder: Path | None) -> str:
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
