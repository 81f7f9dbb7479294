"""Compiles configs ahead of the device, in processes that may crash or hang, into a Triton cache the worker
reads.

A child runs the very launch path of Triton's JIT (``run(..., warmup=True)``) on tensors without memory and
under a driver that only knows its target. The cache keys are therefore those of the real launch, which then
finds its binary on disk. No child creates a CUDA context.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.static.processes import DiedError, OverdueError, Processes, die_with_parent
from roofgap.kernels.static.worker import CompileContext
from roofgap.kernels.step import Launch
from roofgap.kernels.variant import Variant
from roofgap.shapes.problem import Problem
from roofgap.tuning.status import Status

EVIDENCE_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What compiling a config gave.

    Attributes:
        status: ``OK``, or how it failed, with ``evidence``.
        code_hash: equal for configs that launch equal code on equal grids with equal integer arguments.
        registers: per thread, of the launch that needs most.
        spill_bytes: per thread, of the launch that spills most.
        shared_bytes: per program, of the launch that needs most.
    """

    status: Status = Status.OK
    evidence: str | None = None
    code_hash: str | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None


class CompileFarm:
    """Compiling processes. Starting one takes seconds, so keep it for a whole run.

    Args:
        target: Triton's backend, architecture and warp size, e.g. ``("cuda", 90, 32)``.
        cache: Triton cache folder to fill.
        workers: processes at most; by default all cores but two, which drive the device. Each starts when a config
            finds no idle one.
        timeout_s: seconds one config may take.
        chained: compile kernels that can be programmatic dependent launches as such.
    """

    def __init__(
        self,
        target: tuple[str, int | str, int],
        cache: Path,
        *,
        workers: int | None = None,
        timeout_s: float,
        chained: bool = False,
    ) -> None:
        self._timeout_s, self._chained = timeout_s, chained
        self._logs = Path(tempfile.mkdtemp(prefix="roofgap-compile-"))
        self._processes = Processes(
            workers or max(1, len(os.sched_getaffinity(0)) - 2),
            start_child,
            [target, str(cache), str(self._logs), os.getpid()],
            CompileContext(),
        )

    def compile(
        self, variant: Variant, problem: Problem, configs: Sequence[KernelConfig]
    ) -> Iterator[tuple[KernelConfig, Compiled]]:
        """Yields each config as soon as it is compiled or has failed to; what is not done is dropped at the end."""
        calls = [
            self._processes.call(
                compile_config, variant, problem, config, self._chained, timeout_s=self._timeout_s
            )
            for config in configs
        ]
        whose: dict[Future[Any], KernelConfig] = dict(zip(calls, configs, strict=True))
        try:
            for call in as_completed(calls):
                yield whose[call], self._result(call)
        finally:
            for call in calls:
                call.drop()

    def close(self) -> None:
        """Ends the processes."""
        self._processes.close()
        shutil.rmtree(self._logs, ignore_errors=True)

    def _result(self, call: Future[Any]) -> Compiled:
        try:
            compiled: Compiled = call.result()
        except CancelledError:  # the farm was closed: says nothing of the config
            raise
        except OverdueError as error:
            return Compiled(status=Status.COMPILE_TIMEOUT, evidence=str(error))
        except DiedError as error:
            said = self._printed(error.pid)
            return Compiled(
                status=Status.COMPILE_CRASH,
                evidence=f"the compiler ended its process with {exit_text(error.exit_code)}{said}",
            )
        except Exception as error:  # the task itself returns its failures; this one did not survive the pipe
            return Compiled(status=Status.COMPILE_ERROR, evidence=f"{type(error).__name__}: {error}")
        return compiled

    def _printed(self, pid: int | None) -> str:
        log = self._logs / f"{pid}"
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        return f": {text[-EVIDENCE_CHARACTERS:]}" if text else ""


def compile_config(
    variant: Variant, problem: Problem, config: KernelConfig, chained: bool = False
) -> Compiled:
    """Compiles every launch of a plan. Runs in a child; every exception becomes a status."""
    from roofgap.kernels.static.compile import plan_on_meta

    os.ftruncate(2, 0)
    try:
        launches, _, _ = plan_on_meta(variant, problem, config)
        if chained:
            launches = [launch.dependent() if launch.can_depend else launch for launch in launches]
    except Exception as error:
        return Compiled(status=Status.ERROR, evidence=describe(error))
    try:
        return _compile(launches)
    except Exception as error:
        return Compiled(status=Status.COMPILE_ERROR, evidence=describe(error))


def _compile(launches: Sequence[Launch]) -> Compiled:
    from roofgap.kernels.static import sass
    from roofgap.kernels.static.compile import with_file
    from roofgap.kernels.static.elf import code_hash

    # Without Triton's copy of cuobjdump registers and spills stay unknown, and nothing is pruned for them.
    whole = hashlib.sha256()
    registers: list[int] = []
    spills: list[int] = []
    shared = [0]
    for launch in launches:
        kernel = launch.kernel.run(
            grid=launch.grid,
            warmup=True,
            **launch.args,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            **launch.options,
        )
        binary = kernel.asm.get("cubin") or kernel.asm["hsaco"]
        if "cubin" in kernel.asm:
            with suppress(sass.ToolError):
                needs = with_file(binary, "cubin", sass.read_resources)
                registers.append(needs.registers)
                spills.append(needs.spill_bytes)
        shared.append(int(kernel.metadata.shared))
        integers = {name: value for name, value in launch.args.items() if isinstance(value, int)}
        code = code_hash(binary, launch.num_warps, shared[-1])
        whole.update(repr((code, launch.grid, sorted(integers.items()))).encode())
    return Compiled(
        code_hash=whole.hexdigest()[:16],
        registers=max(registers, default=None),
        spill_bytes=max(spills, default=None),
        shared_bytes=max(shared),
    )


class _TargetDriver:
    """What Triton's JIT asks of a driver when it only compiles."""

    def __init__(self, target: tuple[str, int | str, int]) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget(*target)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def start_child(target: tuple[str, int | str, int], cache: str, logs: str, parent: int) -> None:
    """Runs first in a compiling process, before anything imports Triton."""
    die_with_parent(parent)
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_CACHE_DIR"] = cache
    os.environ["OMP_NUM_THREADS"] = "1"
    log = os.open(Path(logs) / f"{os.getpid()}", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import triton

    triton.runtime.driver.set_active(_TargetDriver(target))


def describe(error: BaseException) -> str:
    """An exception as evidence: type and end of its text, without Triton's whole-program reproducer."""
    text = str(error).split("=" * 32)[0].strip()
    return f"{type(error).__name__}: {text[-EVIDENCE_CHARACTERS:]}"


def exit_text(code: int | None) -> str:
    """``signal 9 (SIGKILL)`` or ``exit code 3``."""
    if code is not None and code < 0:
        try:
            return f"signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
