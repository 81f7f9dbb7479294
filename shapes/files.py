"""Small records on disk: read with one clear error, written whole or not at all, found by name."""

from __future__ import annotations

import contextlib
import difflib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from roofgap.shapes.errors import RoofgapError

Record = TypeVar("Record", bound=BaseModel)


def read_record(path: Path, model: type[Record], remedy: str) -> Record:
    """Parses and validates one JSON file.

    Raises:
        RoofgapError: the file cannot be read, is not JSON or breaks a rule of ``model`` (the first is named).
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RoofgapError(str(path), f"cannot be read ({error.strerror})", remedy) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RoofgapError(f"{path}{f' at {place}' if place else ''}", first["msg"], remedy) from error


def write_text(path: Path, text: str) -> None:
    """Replaces ``path`` in one step: temporary file beside it, fsync, rename. A failure leaves the old file.

    Raises:
        RoofgapError: the folder cannot be written to or the disk is full.
    """
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with scratch.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
    except OSError as error:
        raise RoofgapError(
            str(path), f"cannot be written ({error.strerror})", "choose a folder that you can write to"
        ) from error


def unknown_name(kind: str, given: str, known: Iterable[str]) -> RoofgapError:
    """The error for a name that is not there: lists what is, closest match first."""
    listed = sorted(known)
    close = difflib.get_close_matches(given.lower(), listed, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    return RoofgapError(
        f"{kind} {given!r}",
        f"is not known; there are {', '.join(listed)}",
        f"{guess}Give one of them or a file",
    )
