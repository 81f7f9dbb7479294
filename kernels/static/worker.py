"""What runs in a compile worker, and how one is started without interpreter mode."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import popen_spawn_posix, util
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.static.targets import Target
from roofgap.kernels.variant import Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

if TYPE_CHECKING:
    from roofgap.kernels.static.metrics import CompileFailure, StaticMetrics
    from roofgap.shapes.device import DeviceProfile

Result = TypeVar("Result")
_LAUNCHING = threading.Lock()
FailureKind = Literal["refused", "compile", "assembler", "crash", "timeout"]
_EVIDENCE_CHARACTERS = 4000
_REPRODUCER = "=" * 32  # what Triton prints from here on is the whole program


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest:
    """One thing to compile.

    Attributes:
        variant: an instance of an importable class.
        problem: the product.
        config: launch values.
        target: the GPU to compile for.
        device: the profile to weigh the kernel on; None leaves ``bound`` and ``budget`` empty.
    """

    variant: Variant
    problem: Problem
    config: KernelConfig
    target: Target
    device: DeviceProfile | None = None


def _spawn(path: str | bytes, arguments: Sequence[str | bytes], passed: Sequence[int]) -> int:
    """``multiprocessing.util.spawnv_passfds`` with an environment of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.Popen(arguments, executable=path, env=environment, pass_fds=passed)
    process.returncode = 0  # multiprocessing waits for the process itself
    return process.pid


class _Popen(popen_spawn_posix.Popen):
    def _launch(self, process_obj: Any) -> None:
        with _LAUNCHING:
            original, util.spawnv_passfds = util.spawnv_passfds, _spawn  # type: ignore[assignment]
            try:
                super()._launch(process_obj)  # type: ignore[misc]
            finally:
                util.spawnv_passfds = original


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (multiprocessing's name)
        return _Popen(process_obj)


class CompileContext(SpawnContext):
    """Spawned processes whose environment lacks ``TRITON_INTERPRET`` from their first instruction on.

    Triton reads it when a kernel is defined, which can be before any initializer runs (a child imports the
    parent's main module first), and the parent's own environment must not change while other threads define
    kernels.
    """

    Process = _Process


def start(folder: str) -> None:
    """Initializer: an own Triton cache, lines of the Triton IR as locations, stderr in a file that stays."""
    os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / f"cache-{os.getpid()}")
    os.environ["USE_IR_LOC"] = "ttir"
    log = os.open(log_path(folder, os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)


def log_path(folder: str | Path, pid: int | None) -> Path:
    """Where a worker's stderr goes."""
    return Path(folder) / f"stderr-{pid}"


def inspect(request: InspectRequest) -> StaticMetrics | CompileFailure:
    """Metrics of a request, or the compiler's error."""
    from roofgap.kernels.static.metrics import measure

    return _guarded(
        request,
        lambda: measure(request.variant, request.problem, request.config, request.target, request.device),
    )


def source(request: InspectRequest, stage: str) -> str | CompileFailure:
    """Code of a request, or the compiler's error."""
    from roofgap.kernels.static.source import read_source

    return _guarded(
        request,
        lambda: read_source(request.variant, request.problem, request.config, request.target, stage),
    )


def failure(request: InspectRequest, kind: FailureKind, message: str, evidence: str = "") -> CompileFailure:
    """The record of a request that has no metrics."""
    from roofgap.kernels.static.metrics import CompileFailure

    return CompileFailure(
        variant=request.variant.name,
        problem=request.problem.key,
        config=request.config.key,
        target=request.target.name,
        kind=kind,
        message=message,
        evidence=evidence.strip()[-_EVIDENCE_CHARACTERS:],
    )


def _guarded(request: InspectRequest, work: Callable[[], Result]) -> Result | CompileFailure:
    """Turns what a compiler raises, which need not survive the trip between processes, into a failure."""
    os.ftruncate(2, 0)
    try:
        return work()
    except RoofgapError:
        raise
    except Exception as error:
        kind: FailureKind = "assembler" if type(error).__name__ == "PTXASError" else "compile"
        said = str(error).partition(_REPRODUCER)[0].strip()
        printed = Path("/proc/self/fd/2").read_text(errors="replace").partition(_REPRODUCER)[0]
        first_line = said.partition("\n")[0]
        return failure(request, kind, f"{type(error).__name__}: {first_line}", f"{said}\n{printed}")
