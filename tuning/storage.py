"""What journal and winners share: durable folders, locks that die with their process, checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from roofgap.shapes.errors import RoofgapError


def sync_folder(folder: Path) -> None:
    """Makes a rename or a creation inside ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cannot_write(path: Path, error: OSError) -> RoofgapError:
    """The one message for a failed write."""
    return RoofgapError(
        f"{path}", f"cannot be written ({error.strerror or error})", "free space or choose a writable folder"
    )


def digest(text: str) -> str:
    """First 16 hex digits of SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def exclusive(path: Path, what: str, remedy: str, timeout_s: float = 0.0) -> Iterator[None]:
    """Holds a lock file for the duration; the operating system drops it when the process dies.

    Raises:
        RoofgapError: another process holds it after ``timeout_s`` seconds.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        lock.acquire(timeout=timeout_s)
    except Timeout:
        raise RoofgapError(what, "is in use by another process", remedy) from None
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield
    finally:
        lock.release()
