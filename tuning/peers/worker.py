"""A process of its own for the measuring: a peer that faults costs it, not the rows of the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from roofgap.kernels.static.processes import die_with_parent
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.compile import exit_text
from roofgap.tuning.measure.failure import Failure
from roofgap.tuning.peers.compare import Bench, CompareSettings, Fault, Row, Task
from roofgap.tuning.status import Status

OPEN_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a fresh process says of its GPU.

    Attributes:
        gpu: the device profile's name.
        device: as the driver calls it.
        versions: driver, toolchain and peers.
        read_gbps: measured in that process.
    """

    gpu: str
    device: str
    versions: dict[str, str]
    read_gbps: float


class Worker:
    """Starts the process when it is first needed, and again after every fault.

    Args:
        settings: what is compared.
        timeout_s: seconds that one contender may take to be packed, tuned, captured and checked.
        target: what runs in the process.
    """

    def __init__(
        self, settings: CompareSettings, timeout_s: float, target: Callable[..., None] | None = None
    ) -> None:
        self._settings, self._timeout_s, self._target = settings, timeout_s, target or serve
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._hello: Hello | None = None

    def hello(self) -> Hello:
        """What the process said; starts it.

        Raises:
            RoofgapError: the GPU cannot be opened.
        """
        if self._hello is None:
            self._start()
        assert self._hello is not None
        return self._hello

    def runnable(self, problem: Problem) -> tuple[str, ...]:
        """As ``Bench.runnable``."""
        self.hello()
        answer = self._ask(("runnable", problem), {})
        return () if isinstance(answer, Fault) else answer  # type: ignore[return-value]

    def measure(self, task: Task, banned: Mapping[str, Failure]) -> list[Row] | Fault:
        """As ``Bench.measure``; a process that dies or hangs is a fault of whoever was at work."""
        self.hello()
        return self._ask(("measure", task, dict(banned)), banned)  # type: ignore[return-value]

    def close(self) -> None:
        """Ends the process."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.join(5)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._pipe = self._hello = self._process = None

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=self._target, args=(theirs, self._settings, os.getpid()))
        process.start()
        self._process = process
        theirs.close()
        try:
            answer = self._pipe.recv() if self._pipe.poll(OPEN_S) else None
        except EOFError:
            answer = None
        if isinstance(answer, Hello):
            self._hello = answer
            return
        self.close()
        if isinstance(answer, tuple):
            raise RoofgapError(*answer)
        raise RoofgapError("the measuring process", "did not open the GPU", "run it again on an idle GPU")

    def _ask(self, request: object, banned: Mapping[str, Failure]) -> object:
        assert self._pipe is not None
        at: str | None = None
        try:
            self._pipe.send(request)
            while self._pipe.poll(self._timeout_s):
                answer = self._pipe.recv()
                if not isinstance(answer, str):
                    if isinstance(answer, Fault):
                        self._lose()
                    return answer
                at = answer
            failure = Failure(
                status=Status.TIMEOUT, evidence=f"{at or 'it'} was not done after {self._timeout_s:g} s"
            )
        except (EOFError, OSError):
            failure = Failure(status=Status.CRASH, evidence=f"the measuring process ended ({self._exit()})")
        self._lose()
        return Fault(at if at in self._settings.names and at not in banned else None, failure)

    def _exit(self) -> str:
        assert self._process is not None
        self._process.join(5)
        return exit_text(self._process.exitcode)

    def _lose(self) -> None:
        """Kills a process that must not be used any more."""
        if self._process is not None and self._process.is_alive():
            self._process.kill()
        self.close()


def serve(pipe: Connection, settings: CompareSettings, parent: int) -> None:
    """Runs in the process: opens the GPU, then answers until the pipe is closed."""
    from roofgap.tuning.measure.bandwidth import open_device
    from roofgap.tuning.measure.failure import reported

    die_with_parent(parent)
    os.dup2(2, 1)  # peers print what they like; the command's output is its own
    try:
        with reported():
            bench = Bench(open_device(settings.gpu), settings)
    except RoofgapError as error:
        pipe.send((error.value, error.rule, error.remedy))
        return
    pipe.send(
        Hello(
            gpu=bench.gpu,
            device=bench.device.name,
            versions=bench.versions(),
            read_gbps=bench.device.read_gbps or 0.0,
        )
    )
    try:
        while True:
            try:
                kind, *arguments = pipe.recv()
            except EOFError:
                return
            if kind == "runnable":
                pipe.send(bench.runnable(*arguments))
            else:
                task, banned = arguments
                pipe.send(bench.measure(task, banned, pipe.send))
    finally:
        bench.close()
