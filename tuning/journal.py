"""Append-only log of a tuning run, from which the run continues after a kill at any byte.

A line is ``{"seq": 7, "kind": "trial", "data": {...}, "sum": "<16 hex digits>"}``. ``sum`` covers the line
and the sum before it, so a line that was changed, dropped or moved is noticed. A line counts as acknowledged
once ``append`` has returned, i.e. after fsync; only the last line can be unacknowledged, and only that one is
ever cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.storage import cannot_write, digest, exclusive, sync_folder

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One acknowledged line: its kind (``header``, ``trial``, ``round``, ``outcome``) and its plain data."""

    kind: str
    data: dict[str, Any]


class Journal:
    """An open journal. ``entries`` are the lines found when it was opened; ``recovered`` the bytes cut off
    then.
    """

    def __init__(self, path: Path, handle: int, entries: list[Entry], last_sum: str, recovered: int) -> None:
        self.path, self.entries, self.recovered = path, entries, recovered
        self._handle, self._sum, self._seq = handle, last_sum, len(entries)
        self._broken = False
        self._lock = Lock()

    def append(self, kind: str, data: dict[str, Any]) -> None:
        """Writes one line and returns when it is on disk. Safe to call from several threads.

        Raises:
            RoofgapError: the line could not be written; every earlier line is intact, and no later line is
                accepted because after a failed fsync the state of the file is unknown.
        """
        with self._lock:
            if self._broken:
                raise RoofgapError(f"journal {self.path}", "failed an earlier write", "resume the run")
            line, total = encode(self._seq, kind, data, self._sum)
            try:
                write_all(self._handle, line.encode())
                os.fsync(self._handle)
            except OSError as error:
                self._broken = True
                raise cannot_write(self.path, error) from error
            self._seq, self._sum = self._seq + 1, total


@contextmanager
def open_journal(path: Path) -> Iterator[Journal]:
    """Opens or creates a journal for this process alone.

    Raises:
        RoofgapError: another process has it open, a line before the last is damaged (the message names file
            and line), it is of a later schema, or the folder cannot be written.
    """
    lock = path.with_name(path.name + ".lock")
    with exclusive(lock, f"journal {path}", "wait for that run, or start one under another name"):
        entries, last_sum, good, torn = _scan(path)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            if torn:
                _keep_torn(path, torn)
                os.ftruncate(handle, good)
            os.fsync(handle)
            sync_folder(path.parent)
            yield Journal(path, handle, entries, last_sum, len(torn))
        finally:
            os.close(handle)


def read_journal(path: Path) -> list[Entry]:
    """Every acknowledged line, without opening the journal for writing.

    Raises:
        RoofgapError: missing file, damaged line, later schema.
    """
    if not path.is_file():
        raise RoofgapError(f"journal {path}", "does not exist", "list the journals in .roofgap/journal")
    return _scan(path)[0]


def encode(seq: int, kind: str, data: dict[str, Any], previous: str) -> tuple[str, str]:
    """The line with its newline, and its sum."""
    body = json.dumps([seq, kind, data], allow_nan=False, separators=(",", ":"))
    total = digest(previous + body)
    line = {"seq": seq, "kind": kind, "data": data, "sum": total}
    return json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n", total


def write_all(handle: int, data: bytes) -> None:
    """``os.write`` until nothing is left; a full disk may take a part first."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _scan(path: Path) -> tuple[list[Entry], str, int, bytes]:
    """Entries, their last sum, the length of the good part and the bytes after it."""
    try:
        raw = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RoofgapError(f"journal {path}", f"cannot be read ({error.strerror})", "check it") from error
    entries: list[Entry] = []
    last_sum, good = "", 0
    lines = BytesIO(raw).readlines()
    for number, line in enumerate(lines, start=1):
        try:
            entry, last_sum = _decode(line, len(entries), last_sum)
        except (ValueError, KeyError, TypeError):
            if number == len(lines) and (number > 1 or _torn_header(line)):
                break
            raise RoofgapError(
                f"{path}, line {number}",
                "is damaged or is no line of a tuning journal",
                "restore the file, or move it away and start the run again",
            ) from None
        if number == 1:
            _check_header(path, entry)
        entries.append(entry)
        good += len(line)
    return entries, last_sum, good, raw[good:]


def _decode(line: bytes, seq: int, previous: str) -> tuple[Entry, str]:
    if not line.endswith(b"\n"):
        raise ValueError("no newline")
    fields = json.loads(line)
    if fields["seq"] != seq:
        raise ValueError("out of sequence")
    if encode(seq, fields["kind"], fields["data"], previous)[1] != fields["sum"]:
        raise ValueError("checksum")
    return Entry(fields["kind"], fields["data"]), fields["sum"]


def _torn_header(line: bytes) -> bool:
    """Whether a damaged first line is the beginning of our own, not somebody else's file."""
    start = b'{"seq":0,'
    return not line.endswith(b"\n") and line[: len(start)] == start[: len(line)]


def _check_header(path: Path, entry: Entry) -> None:
    schema = entry.data.get("schema")
    if entry.kind != "header" or not isinstance(schema, int):
        raise RoofgapError(f"{path}, line 1", "is no header of a tuning journal", "choose another file")
    if schema > SCHEMA:
        raise RoofgapError(
            f"{path}", f"has schema {schema}, this version reads up to {SCHEMA}", "update roofgap"
        )


def _keep_torn(path: Path, torn: bytes) -> None:
    """Sets the cut-off bytes beside the journal: nothing that was on disk is destroyed."""
    with suppress(OSError):
        path.with_name(path.name + ".torn").write_bytes(torn)
