"""Calls in processes that crash, hang or end: each outcome is that of its own call, and nothing stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from multiprocessing import get_context
from pathlib import Path

import process_toys as toys
import pytest

from roofgap.kernels.static.processes import Call, DiedError, OverdueError, Processes

SPAWN = get_context("spawn")
LONG_S = 120.0


@pytest.fixture
def processes() -> Iterator[Processes]:
    opened = Processes(4, toys.nothing, [], SPAWN)
    yield opened
    opened.close()


def outcome(call: Call) -> object:
    """A call's result or what its exception says."""
    error = call.exception(timeout=300)
    if error is None:
        return call.result()
    return (type(error).__name__, error.exit_code if isinstance(error, DiedError) else error.args[0])


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_each_outcome_is_that_of_its_own_call(processes: Processes) -> None:
    """Processes crash the moment after they answered another call, over and over."""
    expected: dict[Call, object] = {}
    for number in range(1, 401):
        if number % 80 == 0:
            expected[processes.call(toys.hang, timeout_s=0.5)] = ("OverdueError", "not done after 0.5 s")
        elif number % 5 == 0:
            expected[processes.call(toys.end, number % 256, timeout_s=LONG_S)] = ("DiedError", number % 256)
        elif number % 7 == 0:
            expected[processes.call(toys.refuse, number, timeout_s=LONG_S)] = ("ValueError", number)
        else:
            expected[processes.call(toys.same, number, timeout_s=LONG_S)] = number
    for call, right in expected.items():
        assert outcome(call) == right


@pytest.mark.parametrize(
    ("function", "arguments", "code"),
    [(toys.end, (0,), 0), (toys.leave, (3,), 3), (toys.abort, (), -6), (toys.fault, (), -11)],
)
def test_every_end_has_its_code(
    processes: Processes, function: Callable[..., None], arguments: tuple[int, ...], code: int
) -> None:
    assert outcome(processes.call(function, *arguments, timeout_s=LONG_S)) == ("DiedError", code)


def test_what_does_not_survive_the_pipe_costs_its_call_alone(processes: Processes) -> None:
    pid = outcome(processes.call(toys.pid, timeout_s=LONG_S))
    for function, arguments in ((toys.unpicklable, ()), (toys.raise_picky, ()), (toys.same, (lambda: 0,))):
        error = processes.call(function, *arguments, timeout_s=LONG_S).exception(300)
        assert error is not None and not isinstance(error, DiedError | OverdueError | CancelledError)
    assert outcome(processes.call(toys.pid, timeout_s=LONG_S)) == pid


def test_no_more_processes_than_calls_at_once(processes: Processes) -> None:
    before = threading.active_count()
    pids = {outcome(processes.call(toys.pid, timeout_s=LONG_S)) for _ in range(20)}
    assert len(pids) == 1 and threading.active_count() == before + 1


def test_a_process_that_ends_between_calls_costs_none(processes: Processes) -> None:
    first = outcome(processes.call(toys.pid, timeout_s=LONG_S))
    assert isinstance(first, int)
    assert outcome(processes.call(toys.end_soon, 1, timeout_s=LONG_S)) == 1
    wait_until(lambda: not is_running(first))
    second = outcome(processes.call(toys.pid, timeout_s=LONG_S))
    assert isinstance(second, int) and second != first


def test_a_process_that_cannot_start_is_a_death_of_each_call() -> None:
    processes = Processes(1, toys.fail_to_start, [], SPAWN)
    try:
        calls = [processes.call(toys.same, 1, timeout_s=LONG_S) for _ in range(2)]
        assert [outcome(call) for call in calls] == [("DiedError", 1)] * 2
    finally:
        processes.close()


def pids_in(folder: Path) -> list[int]:
    """Ids of the process that hangs and of the one that it has started."""
    wait_until(folder.exists)
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    assert len(pids) == 2
    return pids


def hanging(processes: Processes, folder: Path, timeout_s: float) -> tuple[Call, list[int]]:
    call = processes.call(toys.hang_assembling, str(folder), timeout_s=timeout_s)
    return call, pids_in(folder)


def test_what_hangs_is_killed_with_what_it_started(processes: Processes, tmp_path: Path) -> None:
    call, pids = hanging(processes, tmp_path / "hung", 3.0)
    assert outcome(call) == ("OverdueError", "not done after 3 s")
    wait_until(lambda: not any(map(is_running, pids)))
    assert outcome(processes.call(toys.same, 5, timeout_s=LONG_S)) == 5


def test_what_is_dropped_ends_or_never_begins(tmp_path: Path) -> None:
    processes = Processes(1, toys.nothing, [], SPAWN)
    try:
        running, pids = hanging(processes, tmp_path / "running", LONG_S)
        waiting = processes.call(toys.hang_assembling, str(tmp_path / "waiting"), timeout_s=LONG_S)
        next_one = processes.call(toys.same, 5, timeout_s=LONG_S)
        for call in (waiting, running):
            call.drop()
        assert outcome(next_one) == 5
        for call in (waiting, running):
            with pytest.raises(CancelledError):
                call.result()
        wait_until(lambda: not any(map(is_running, pids)))
        assert not (tmp_path / "waiting").exists()
        next_one.drop()
        assert next_one.result() == 5  # it was done
    finally:
        processes.close()


def test_closing_leaves_nothing(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    children = {child.pid for child in multiprocessing.active_children()}
    processes = Processes(2, toys.nothing, [], SPAWN)
    hung = [hanging(processes, tmp_path / name, LONG_S) for name in "ab"]
    waiting = processes.call(toys.same, 1, timeout_s=LONG_S)
    processes.close()
    processes.close()
    for call in (*(call for call, _ in hung), waiting):
        with pytest.raises(CancelledError):
            call.result(timeout=0)
    assert set(threading.enumerate()) <= threads
    assert {child.pid for child in multiprocessing.active_children()} <= children
    wait_until(lambda: not any(is_running(pid) for _, pids in hung for pid in pids))
    with pytest.raises(RuntimeError, match="ended"):
        processes.call(toys.same, 1, timeout_s=LONG_S)


def test_processes_die_with_a_killed_parent(tmp_path: Path) -> None:
    parent = SPAWN.Process(target=toys.open_and_hang, args=(str(tmp_path / "hung"),))
    parent.start()
    process, assembler = pids_in(tmp_path / "hung")
    try:
        assert is_running(process) and parent.pid is not None
        os.kill(parent.pid, signal.SIGKILL)
        parent.join()
        wait_until(lambda: not is_running(process))
    finally:
        os.kill(assembler, signal.SIGKILL)  # the kernel tells of a death only the children of whoever died
