"""Calls functions in processes that may crash or hang, and always knows which call did it.

Each process has a pipe of its own with at most one call in it, so whatever ends the process is the doing of that call.
Where processes share a pipe for their results, that of a call can still lie in it when the process has gone on to the
next call and died of it: one call is then blamed for the other, and nobody waits for the one that is to blame.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

PR_SET_PDEATHSIG = 1
START_TIMEOUT_S = 300.0
"""Until a process has started and imported what a call needs; several may do so at once on a busy machine."""
KILL_TIMEOUT_S = 30.0
TICK_S = 0.1


class DiedError(Exception):
    """The process ended in the call.

    Attributes:
        pid: of the process.
        exit_code: negative for a signal.
    """

    def __init__(self, pid: int | None, exit_code: int | None) -> None:
        super().__init__(f"process {pid} ended with {exit_code}")
        self.pid, self.exit_code = pid, exit_code


class OverdueError(Exception):
    """The call took more than ``limit_s`` seconds; its process was killed."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"not done after {limit_s:g} s")
        self.limit_s = limit_s


class Call(Future[Any]):
    """A call to come, in progress or done. Its result is the function's; its exception is the function's or that of a
    callable or a value that does not survive the pipe, ``DiedError``, ``OverdueError`` or ``CancelledError``.
    """

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any], timeout_s: float) -> None:
        super().__init__()
        self.function, self.arguments, self.timeout_s = function, arguments, timeout_s
        self.dropped = False

    def drop(self) -> None:
        """Takes the call back: it does not begin any more, or its process is killed. Nothing if it is done."""
        self.dropped = True
        self.cancel()


class Processes:
    """Up to ``most`` processes, each started when a call finds no idle one, and anew for the call after one that killed
    it. Calls begin in the order in which they were made; any thread may make them.

    Args:
        most: processes.
        initializer: what each runs first; importable by name, as is every function called.
        initargs: its arguments.
        context: how a process is started.
    """

    def __init__(
        self, most: int, initializer: Callable[..., None], initargs: Sequence[Any], context: SpawnContext
    ) -> None:
        self._most, self._initial, self._context = most, (initializer, tuple(initargs)), context
        self._changed = threading.Condition()
        self._waiting: deque[Call] = deque()
        self._running: set[Call] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Call:
        """Has ``function(*arguments)`` called; the time it may take begins when its process has all it needs."""
        call = Call(function, arguments, timeout_s)
        with self._changed:
            if self._closed:
                raise RuntimeError("the processes were ended")
            self._waiting.append(call)
            idle = len(self._threads) - len(self._running)
            if len(self._waiting) > idle and len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name="roofgap-process", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        return call

    def close(self) -> None:
        """Drops every call that is not done, and returns when no process and no thread is left."""
        with self._changed:
            self._closed = True
            for call in self._waiting:
                call.drop()
                call.set_running_or_notify_cancel()
            self._waiting.clear()
            for call in self._running:
                call.dropped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        """A thread per process. It starts the process and outlives it: Linux takes the death of the thread that started
        a process for the death of the parent.
        """
        child = _Child(self._start)
        while (call := self._next()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = child.run(call)
            except BaseException as raised:
                error = raised
            with self._changed:  # idle before the caller hears of it, who may have another call
                self._running.remove(call)
            if error is None:
                call.set_result(result)
            else:
                call.set_exception(error)
        child.kill()

    def _next(self) -> Call | None:
        """Waits for a call that nobody took back; None when there will be none."""
        with self._changed:
            while not self._closed:
                while self._waiting:
                    call = self._waiting.popleft()
                    if call.set_running_or_notify_cancel():
                        self._running.add(call)
                        return call
                self._changed.wait()
        return None

    def _start(self) -> tuple[BaseProcess, Connection]:
        ours, theirs = self._context.Pipe()
        try:
            process = self._context.Process(
                target=_serve, args=(theirs, os.getpid(), *self._initial), daemon=True
            )
            process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return process, ours


class _Child:
    """A process and the pipe to it, in the hands of one thread."""

    def __init__(self, start: Callable[[], tuple[BaseProcess, Connection]]) -> None:
        self._start = start
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def run(self, call: Call) -> Any:
        """The result of a call, or its exception."""
        used = self._process is not None
        if self._process is None or self._pipe is None:
            self._process, self._pipe = self._start()
        begun = False
        try:
            self._pipe.send((call.function, call.arguments))
            answer = self._receive(call, START_TIMEOUT_S)
            begun = answer is None
            good, value = answer or self._receive(call, call.timeout_s)
        except (EOFError, OSError) as error:
            died = self._died()
            if used and not begun:  # of what it had done before
                return self.run(call)
            raise died from error
        if good:
            return value
        raise value

    def kill(self) -> None:
        """Ends the process and what it started, such as an assembler."""
        process, self._process = self._process, None
        if process is None or process.pid is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # it may not have made its group yet
        process.join(KILL_TIMEOUT_S)
        if self._pipe is not None:
            self._pipe.close()

    def _receive(self, call: Call, limit_s: float) -> Any:
        """The next message; whatever ends the wait for it ends the process too.

        Raises:
            EOFError, OSError: the process is gone.
            OverdueError, CancelledError: see ``Call``.
        """
        assert self._process is not None and self._pipe is not None
        end = time.monotonic() + limit_s
        while not self._pipe.poll(min(TICK_S, max(0.0, end - time.monotonic()))):
            if call.dropped:
                self.kill()
                raise CancelledError
            if time.monotonic() >= end:
                self.kill()
                raise OverdueError(limit_s)
            # Another process, forked meanwhile, may hold the far end of the pipe open.
            if not self._process.is_alive() and not self._pipe.poll():
                raise EOFError
        return self._pipe.recv()

    def _died(self) -> DiedError:
        """How the process ended; there is none any more."""
        process = self._process
        assert process is not None
        process.join(KILL_TIMEOUT_S)
        self.kill()
        # Whichever thread starts a process may collect the exit code of this one, and knows it a moment later.
        end = time.monotonic() + 1.0
        while process.exitcode is None and time.monotonic() < end:
            time.sleep(0.001)
        return DiedError(process.pid, process.exitcode)


def _serve(
    pipe: Connection, parent: int, initializer: Callable[..., None], initargs: tuple[Any, ...]
) -> None:
    """Main of a process: answers each call with None when it begins, and with (whether it returned, value)."""
    os.setpgid(0, 0)
    die_with_parent(parent)
    initializer(*initargs)
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            return
        try:
            function, arguments = ForkingPickler.loads(message)
            pipe.send(None)
            answer = True, function(*arguments)
        except Exception as error:
            answer = False, error
        try:
            pipe.send(answer)
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:  # it cannot be pickled
            pipe.send((False, RuntimeError(f"{type(error).__name__}: {error}")))


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the thread that started it ends, even by SIGKILL (Linux; elsewhere
    nothing).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request was made
            os._exit(1)
