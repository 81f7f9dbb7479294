"""The part that needs a GPU: profiles a few steps, and an eager one with ranges around the modules."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roofgap.e2e.breakdown.account import Breakdown, break_down
from roofgap.e2e.breakdown.roles import module_roles
from roofgap.e2e.breakdown.timeline import ROLE_RANGE, STEP_RANGE, Kernel, read_steps

PROFILED_STEPS = 6
WARM_STEPS = 2


def collect(
    step: Callable[[], object],
    reset: Callable[[], object],
    *,
    model: Any,
    linears: Mapping[str, str],
    eager_step: Callable[[], object] | None = None,
    read_bytes: Mapping[str, float] | None = None,
    isolated_us: Mapping[str, float] | None = None,
    steps: int = PROFILED_STEPS,
) -> Breakdown:
    """Breaks an arm's step down. The arm must be warm: nothing may be compiled or captured in here.

    Args:
        step: one token as it is timed, e.g. a graph's replay.
        reset: puts the arm back to the depth it was timed at; called before each profile and at the end.
        model: the causal LM behind it.
        linears: role of each linear by path.
        eager_step: the same token without a graph, which tells what each kernel belongs to; ranges around its
            modules cost host time, so an eager arm passes its step here too and is profiled twice. None:
            kernels go by their names.
        read_bytes: per role, bytes of a step.
        isolated_us: per role, microseconds of a step's kernels measured alone.
        steps: replays to profile; one more is run to end the last.

    Raises:
        RoofgapError: the profile holds no kernels, as where a container withholds CUPTI.
    """
    template = None
    if eager_step is not None:
        reset()
        with ranges(model, linears):
            template = profile(eager_step, 1)[0]
    reset()
    measured = profile(step, steps + 1)
    reset()
    return break_down(measured, template, read_bytes=read_bytes, isolated_us=isolated_us)


@contextmanager
def ranges(model: Any, linears: Mapping[str, str]) -> Iterator[None]:
    """While open, every module with a role runs inside a profiler range that names it; the innermost counts."""
    import torch

    modules = dict(model.named_modules())
    open_ranges: list[Any] = []

    def enter(role: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            entered = torch.profiler.record_function(ROLE_RANGE + role)
            entered.__enter__()  # type: ignore[no-untyped-call]
            open_ranges.append(entered)

        return hook

    def leave(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    handles = []
    for path, role in module_roles(list(modules), linears).items():
        handles.append(modules[path].register_forward_pre_hook(enter(role)))
        handles.append(modules[path].register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def profile(step: Callable[[], object], steps: int) -> list[list[Kernel]]:
    """Kernels of each of ``steps`` calls, launched one after the other without waiting in between.

    Raises:
        RoofgapError: the profile holds no kernels.
    """
    import torch
    from torch.profiler import ProfilerActivity, record_function

    for _ in range(WARM_STEPS):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as records:
        for _ in range(steps):
            with record_function(STEP_RANGE):
                step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="roofgap-profile-") as folder:
        path = Path(folder) / "trace.json"
        records.export_chrome_trace(str(path))
        return read_steps(json.loads(path.read_text()))
