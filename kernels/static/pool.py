"""Compiles many variants in processes of their own, out of reach of interpreter mode, crashes and hangs.

Triton decides when a kernel is *defined* whether it will be interpreted, and LLVM aborts its process where it
cannot go on. Both are reasons to compile in spawned workers: they never see ``TRITON_INTERPRET``, they keep
their own temporary Triton cache, and one that dies or hangs costs one request.

A script that opens a pool needs the usual ``if __name__ == "__main__":``, as with any spawned process.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.static import worker
from roofgap.kernels.static.processes import Call, DiedError, OverdueError, Processes
from roofgap.kernels.static.targets import Target, device_for
from roofgap.kernels.static.worker import InspectRequest
from roofgap.kernels.variant import Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

if TYPE_CHECKING:
    from roofgap.kernels.static.metrics import CompileFailure, StaticMetrics
    from roofgap.shapes.device import DeviceProfile


def request_for(
    variant: Variant,
    problem: Problem,
    target: Target,
    config: KernelConfig | None = None,
    device: DeviceProfile | None = None,
) -> InspectRequest:
    """A request; left out are the target's own device and the variant's default config on it."""
    chosen = device or device_for(target)
    return InspectRequest(
        variant=variant,
        problem=problem,
        config=config or variant.default_config(problem, target.limits(chosen)),
        target=target,
        device=chosen,
    )


class CompilePool:
    """Compile workers; a context manager to be used for as many requests as possible: a worker takes seconds
    to start and well under one per request.

    Args:
        workers: processes at most; there are never more than requests.
        timeout_s: seconds that one request may take.
    """

    def __init__(self, workers: int = 2, timeout_s: float = 120.0) -> None:
        self._workers, self._timeout_s = workers, timeout_s

    def __enter__(self) -> CompilePool:
        self._folder = Path(tempfile.mkdtemp(prefix="roofgap-compile-"))
        self._processes = Processes(self._workers, worker.start, [str(self._folder)], worker.CompileContext())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def inspect(self, requests: Iterable[InspectRequest]) -> list[StaticMetrics | CompileFailure]:
        """Metrics or a named failure for each request, in order.

        Raises:
            ToolError: a CUDA binary tool is missing or broken.
        """
        calls = [(request, self._call(worker.inspect, request)) for request in requests]
        try:
            return [self._result(request, call) for request, call in calls]
        finally:
            for _, call in calls:
                call.drop()

    def source(self, request: InspectRequest, stage: str) -> str:
        """Code of a request's launches at one stage of compilation, each under a line with its role.

        Raises:
            RoofgapError: the compilation failed, or the target has no such stage.
        """
        result: str | CompileFailure = self._result(request, self._call(worker.source, request, stage))
        if isinstance(result, str):
            return result
        raise failure_error(result)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Call:
        return self._processes.call(function, *arguments, timeout_s=self._timeout_s)

    def _result(self, request: InspectRequest, call: Call) -> Any:
        """What the call returned, or a ``CompileFailure``."""
        from roofgap.kernels.static.sass import ToolError

        try:
            return call.result()
        except ToolError:
            raise
        except RoofgapError as error:
            return worker.failure(request, "refused", str(error))
        except OverdueError as error:
            return worker.failure(request, "timeout", str(error))
        except DiedError as error:
            log = worker.log_path(self._folder, error.pid)
            printed = log.read_text(errors="replace") if log.exists() else ""
            return worker.failure(
                request, "crash", f"the compiler ended its process with code {error.exit_code}", printed
            )


def inspect_many(
    requests: Sequence[InspectRequest], pool: CompilePool | None = None
) -> list[StaticMetrics | CompileFailure]:
    """Metrics or a named failure for each request, in order; opens a pool for the call if none is given."""
    if pool is not None:
        return pool.inspect(requests)
    with CompilePool(workers=min(2, max(1, len(requests)))) as own:
        return own.inspect(requests)


def inspect_variant(
    variant: Variant,
    problem: Problem,
    config: KernelConfig | None,
    target: Target,
    *,
    device: DeviceProfile | None = None,
    pool: CompilePool | None = None,
) -> StaticMetrics:
    """Static metrics of one variant; config and device as in ``request_for``.

    Raises:
        RoofgapError: it was refused or does not compile.
    """
    from roofgap.kernels.static.metrics import CompileFailure

    (result,) = inspect_many([request_for(variant, problem, target, config, device)], pool)
    if isinstance(result, CompileFailure):
        raise failure_error(result)
    return result


def failure_error(failure: CompileFailure) -> RoofgapError:
    """The error that a ``CompileFailure`` stands for."""
    evidence = f"\n{failure.evidence}\n" if failure.evidence else ""
    return RoofgapError(
        f"{failure.variant} at {failure.problem} for {failure.target} ({failure.config})",
        f"{failure.kind}: {failure.message}{evidence}",
        "choose another config, problem or target",
    )
