"""What a variant does, as a list of steps that can be run, compiled for another GPU, or counted.

A variant's ``plan`` returns these steps and nothing else launches anything. The same plan therefore serves the op
(run the steps), ``inspect`` (plan on meta tensors, compile each launch for a named target) and ``traffic`` (run the
launches in the interpreter): what is inspected cannot differ from what runs.

Programmatic dependent launch (PDL, NVIDIA from sm_90 on; CUDA C++ Programming Guide, "Programmatic Dependent Launch and
Synchronization"): a kernel starts while the one before it still runs, reads what does not depend on it, and waits. How
a step is launched is no property of the step, so plans know nothing of it; ``dependent_launches`` switches it on for
every kernel with a parameter ``PDL: tl.constexpr = False``. Such a kernel keeps three rules:

- every program executes ``gdc_wait``, so that a kernel that has ended implies that all before it have;
- before ``gdc_wait`` it writes nothing and reads only what no launch since the last ordinary one has written: weights,
  tables, the cache's old rows. An ordinary launch waits for everything before it, and a decode step begins with one;
- ``gdc_launch_dependents`` stands at the top: it makes nothing visible, it only lets the next kernel start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from roofgap.shapes.errors import RoofgapError

LEAST_PDL_ARCH = 90

_dependent: ContextVar[bool] = ContextVar("dependent_launches", default=False)


@contextmanager
def dependent_launches(active: bool = True) -> Iterator[None]:
    """Makes launches inside programmatic dependent ones where kernel and GPU can; the interpreter and older GPUs
    launch as ever. The first launch inside must not read early what was launched just before: see the module's rules.
    """
    before = _dependent.set(active)
    try:
        yield
    finally:
        _dependent.reset(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One Triton kernel launch.

    Attributes:
        kernel: the ``@triton.jit`` function.
        grid: program counts, one to three of them.
        args: every kernel argument by name: tensors, numbers, and the values of ``tl.constexpr`` parameters.
        num_warps: warps per program.
        num_stages: software pipelining depth.
        role: ``main`` for the launch that reads the packed codes, else what it does (``reduce``, ``cast``, ...).
        options: further launch options, e.g. ``{"launch_pdl": True}``.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 2
    role: str = "main"
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Launches on the current device and stream, as a dependent launch inside ``dependent_launches``."""
        depends = self.can_depend and launches_depend()
        launch = self.dependent() if depends else self
        launch.kernel[launch.grid](
            **launch.args, num_warps=launch.num_warps, num_stages=launch.num_stages, **launch.options
        )

    @property
    def cluster(self) -> int:
        """Thread blocks that make a program of the grid: more than 1 on NVIDIA from sm_90 on."""
        return int(self.options.get("num_ctas", 1))

    @property
    def can_depend(self) -> bool:
        """Whether the kernel keeps the rules of a dependent launch; a kernel of the interpreter never does."""
        from triton.runtime.jit import JITFunction

        return isinstance(self.kernel, JITFunction) and "PDL" in self.kernel.arg_names

    def dependent(self) -> Launch:
        """The same launch as a programmatic dependent one, for sm_90 and later."""
        return replace(self, args={**self.args, "PDL": True}, options={**self.options, "launch_pdl": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStep:
    """One operation left to torch: a matmul, a fill, a cast.

    ``read_bytes`` and ``written_bytes`` are taken from tensor sizes; traffic reports label them ``modelled``.
    ``reads`` and ``writes`` name the tensors behind these sums, so that a report can list them one by one; a
    step that leaves them out is listed as a whole.
    """

    name: str
    run: Callable[[], object]
    read_bytes: int
    written_bytes: int
    reads: tuple[Any, ...] = ()
    writes: tuple[Any, ...] = ()


Step = Launch | TorchStep


def launches_depend() -> bool:
    """Whether a launch made now is a dependent one, if its kernel can be."""
    return _dependent.get() and _device_can_depend()


def require_dependent(device_name: str) -> None:
    """Refuses a device without programmatic dependent launch.

    Raises:
        RoofgapError: the current device, by this name, is older than sm_90 or not NVIDIA's.
    """
    if not _device_can_depend():
        raise RoofgapError(
            f"chained launches on {device_name}",
            f"need programmatic dependent launch, which NVIDIA GPUs have from sm_{LEAST_PDL_ARCH} on",
            "measure ordinary launches: leave --chained out",
        )


def _device_can_depend() -> bool:
    """Whether there is a current device that knows programmatic dependent launch."""
    import torch
    from triton.runtime import driver

    if not torch.cuda.is_available():
        return False

    target = driver.active.get_current_target()
    return target.backend == "cuda" and int(target.arch) >= LEAST_PDL_ARCH
