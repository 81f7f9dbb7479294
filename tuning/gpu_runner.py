"""Runs trials on a GPU through a worker process that can be killed, while other processes compile ahead.

A worker that crashed, hung or lost its context is gone before anything else is launched: it is killed with
its process group and waited for. Its successor opens the device, computes a known product (the sentinel) and
only then takes the next trial.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.variant import Limits
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.budget import Budget
from roofgap.tuning.compile import Compiled, CompileFarm, exit_text
from roofgap.tuning.runner import Attainable, SetUpError
from roofgap.tuning.space import Space
from roofgap.tuning.status import Status
from roofgap.tuning.trial import Round, Trial
from roofgap.tuning.worker import BASELINES, Hello, Reading, Settings, serve

START_TIMEOUT_S = 180.0
SETUP_TIMEOUT_S = 180.0
KILL_TIMEOUT_S = 30.0


class Worker:
    """A worker process and the pipe to it. Starts lazily, dies at once.

    Args:
        settings: for the process.
        main: what the process runs.

    Attributes:
        hello: the GPU it holds, once it is up.
        replaced: how often a worker had to be killed.
    """

    def __init__(self, settings: Settings, main: Callable[[Any, Settings], None] = serve) -> None:
        self._settings, self._main = settings, main
        self._process: Any = None
        self._pipe: Any = None
        self.hello: Hello | None = None
        self.replaced = 0

    @property
    def pid(self) -> int | None:
        """Process id of the living worker."""
        return self._process.pid if self._process is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether there is a worker process now."""
        return self._process is not None and self._process.is_alive()

    def start(self) -> Hello:
        """Starts a worker if none is alive, and has it pass the sentinel.

        Raises:
            RoofgapError: the GPU cannot be opened, or fails the sentinel.
        """
        if self.hello is not None and self.is_alive:
            return self.hello
        self.kill()
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=self._main, args=(theirs, self._settings), name="roofgap-worker"
        )
        self._process.start()
        theirs.close()
        answer = self._exchange("hello", (), START_TIMEOUT_S)
        if not isinstance(answer, Hello):
            self.kill()
            if isinstance(answer, RoofgapError):
                raise answer
            raise RoofgapError(
                f"GPU {self._settings.gpu}",
                f"cannot be opened ({answer.evidence})",
                "run `roofgap doctor`, or choose another with --gpus",
            )
        self.hello = answer
        return answer

    def ask(self, operation: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        """An operation's answer. Death, silence and a lost context become a ``Reading``, and the worker is
        gone.
        """
        answer = self._exchange(operation, arguments, timeout_s)
        readings = answer if isinstance(answer, list) else [answer]
        if any(isinstance(one, Reading) and one.status.poisons_worker for one in readings):
            self.kill()
            self.replaced += 1
        return answer

    def kill(self) -> None:
        """Ends the worker and returns when its process is gone.

        Raises:
            RoofgapError: it cannot be killed; the GPU must not be used any more.
        """
        process, self._process, self.hello = self._process, None, None
        if process is None:
            return
        self._pipe.close()
        if process.is_alive():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()  # it has not made a group of its own yet, or is just ending
        process.join(KILL_TIMEOUT_S)
        if process.is_alive():
            raise RoofgapError(
                f"worker {process.pid} on GPU {self._settings.gpu}",
                f"is stuck in the driver {KILL_TIMEOUT_S:g} s after SIGKILL",
                "reset the GPU, then resume the run",
            )
        process.close()

    def _exchange(self, operation: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        try:
            self._pipe.send((operation, arguments))
            if not self._pipe.poll(timeout_s):
                return Reading(
                    status=Status.TIMEOUT, evidence=f"no answer to {operation} after {timeout_s:g} s"
                )
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(KILL_TIMEOUT_S)
            said = exit_text(self._process.exitcode)
            return Reading(status=Status.CRASH, evidence=f"the worker ended with {said} during {operation}")


class GpuRunner:
    """Implements ``runner.Runner`` on one GPU.

    Args:
        worker: of that GPU.
        farm: where configs are compiled; several runners may share it.
        budget: its timeouts and its limit of spilled bytes.
        probe: whether to sweep the stream probe for every problem.
    """

    def __init__(self, worker: Worker, farm: CompileFarm, budget: Budget, *, probe: bool = True) -> None:
        self.quarantine: dict[str, str] = {}
        self._worker, self._farm, self._budget, self._probe = worker, farm, budget, probe
        self._space: Space | None = None
        self._timed: dict[str, str] = {}
        self._loaded = False

    def begin(self, space: Space, timed: dict[str, str]) -> None:
        """Has the worker make the operands; ``timed`` is machine code that needs no second timing."""
        self._space, self._timed, self._loaded = space, dict(timed), False
        self._load()

    def explore(self, configs: Sequence[KernelConfig]) -> Iterator[Trial]:
        """Times each config as soon as it is compiled, while the others still compile."""
        assert self._space is not None
        waiting = time.perf_counter()
        for config, compiled in self._farm.compile(self._space.variant, self._space.problem, configs):
            waited = time.perf_counter() - waiting
            yield self._trial(config, compiled, waited)
            waiting = time.perf_counter()

    def duel(self, contenders: Sequence[str], number: int) -> Round:
        """One interleaved round. If the worker dies in it, each contender is tried alone to find the one to
        blame.
        """
        readings = self._duel(contenders, number)
        if len(contenders) > 1 and any(one.status.poisons_worker for one in readings):
            readings = [self._duel([name], number)[0] for name in contenders]
        return Round(
            contenders=tuple(contenders),
            latency_us=tuple(one.latency_us for one in readings),
            evidence={
                name: f"{one.status.value}: {one.evidence}"
                for name, one in zip(contenders, readings, strict=True)
                if one.latency_us is None
            },
        )

    def baselines(self) -> dict[str, str | None]:
        """Torch's dense matmul."""
        return dict.fromkeys(BASELINES)

    def attainable(self) -> Attainable:
        """Roof and, if wanted, stream probe; unknown if measuring them failed."""
        if not self._probe:
            return Attainable()
        self._load()
        answer = self._worker.ask("attainable", (), SETUP_TIMEOUT_S)
        return Attainable(*answer) if isinstance(answer, tuple) else Attainable()

    def clock(self) -> float:
        """Monotonic seconds."""
        return time.perf_counter()

    def close(self) -> None:
        """Ends the worker."""
        self._worker.kill()

    def _load(self) -> None:
        """A living worker that holds the problem.

        Raises:
            SetUpError: the operands cannot be made.
            RoofgapError: the GPU cannot be opened.
        """
        assert self._space is not None
        if self._loaded and self._worker.is_alive:
            return
        self._worker.start()
        answer = self._worker.ask("problem", (self._space.variant, self._space.problem), SETUP_TIMEOUT_S)
        if isinstance(answer, RoofgapError):
            raise SetUpError(answer.value, answer.rule, answer.remedy)
        if isinstance(answer, Reading):
            raise SetUpError(
                f"{self._space.problem.key}",
                f"cannot be set up on the GPU ({answer.status.value}: {answer.evidence})",
                "free device memory or choose a smaller problem",
            )
        self._loaded = True

    def _trial(self, config: KernelConfig, compiled: Compiled, waited_s: float) -> Trial:
        refused = self._refusal(config, compiled)
        if refused is not None:
            reading = Reading(status=refused[0], evidence=refused[1])
        else:
            self._load()
            answer = self._worker.ask("trial", (config,), self._budget.trial_timeout_s)
            if isinstance(answer, RoofgapError):
                answer = Reading(status=Status.UNSUPPORTED, evidence=str(answer))
            reading = answer
        if reading.status is Status.OK and compiled.code_hash:
            self._timed.setdefault(compiled.code_hash, config.key)
        fields = asdict(reading)
        if reading.status is not Status.OK:
            fields["latency_us"] = None
        return Trial(
            config=config.to_dict(),
            **fields,
            code_hash=compiled.code_hash,
            registers=compiled.registers,
            spill_bytes=compiled.spill_bytes,
            shared_bytes=compiled.shared_bytes,
            compile_s=waited_s,
        )

    def _refusal(self, config: KernelConfig, compiled: Compiled) -> tuple[Status, str] | None:
        """Why a compiled config is not launched, or None."""
        assert self._space is not None
        if compiled.status is not Status.OK:
            return compiled.status, compiled.evidence or "no evidence"
        if compiled.code_hash in self.quarantine:
            return Status.QUARANTINED, self.quarantine[compiled.code_hash]
        if compiled.code_hash in self._timed:
            return Status.DUPLICATE, f"same code, grid and arguments as {self._timed[compiled.code_hash]}"
        limit = self._space.limits.shared_bytes
        if compiled.shared_bytes is not None and compiled.shared_bytes > limit:
            return Status.PRUNED, f"{compiled.shared_bytes:,} bytes of shared memory, the GPU has {limit:,}"
        most, spills = self._budget.spill_bytes, compiled.spill_bytes
        if most is not None and spills is not None and spills > most and config != self._space.default:
            return Status.PRUNED, f"spills {spills} bytes per thread"
        return None

    def _duel(self, contenders: Sequence[str], number: int) -> list[Reading]:
        assert self._space is not None
        self._load()
        named = [(name, None if name.startswith("@") else self._space.by_key[name]) for name in contenders]
        timeout_s = self._budget.trial_timeout_s * max(1, len(named))
        answer = self._worker.ask("duel", (named, number), timeout_s)
        return answer if isinstance(answer, list) else [answer] * len(named)


def limits_of(hello: Hello) -> Limits:
    """What a config may use on a worker's GPU."""
    return Limits(
        sm_count=hello.sm_count,
        shared_bytes=hello.shared_bytes,
        warp_size=hello.warp_size,
        max_cluster=hello.max_cluster,
    )


def lock_path(hello: Hello) -> Path:
    """The lock that says a tuner uses this GPU; the same for every folder and user of the machine."""
    import tempfile

    return Path(tempfile.gettempdir()) / f"roofgap-gpu-{hello.uuid}.lock"
