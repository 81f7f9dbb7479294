"""Functions to call in processes of their own: good ones, and one per way to come to grief. Imports nothing slow."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path


def nothing() -> None:
    pass


def fail_to_start() -> None:
    raise OSError("no start")


def same(value):
    return value


def pid() -> int:
    return os.getpid()


def refuse(value):
    raise ValueError(value)


def end(code: int) -> None:
    os._exit(code)


def leave(code: int) -> None:
    raise SystemExit(code)


def abort() -> None:
    os.abort()


def fault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def end_soon(value):
    """Returns, and then takes the process along."""
    threading.Timer(0.1, os._exit, (99,)).start()
    return value


def unpicklable():
    return threading.Lock()


class Picky(Exception):  # noqa: N818
    """Cannot be made from its text alone."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def raise_picky() -> None:
    raise Picky("a", "b")


def hang() -> None:
    time.sleep(1000)


def hang_assembling(folder: str) -> None:
    """Starts a process, as a compiler starts its assembler, leaves the ids of both in a new folder, and hangs."""
    assembler = subprocess.Popen(["sleep", "1000"])
    unfinished = Path(folder + "-unfinished")
    unfinished.mkdir()
    (unfinished / "pids").write_text(f"{os.getpid()} {assembler.pid}")
    unfinished.rename(folder)
    hang()


def open_and_hang(folder: str) -> None:
    """A parent whose process hangs."""
    from multiprocessing import get_context

    from roofgap.kernels.static.processes import Processes

    Processes(1, nothing, [], get_context("spawn")).call(hang_assembling, folder, timeout_s=1000).exception()
