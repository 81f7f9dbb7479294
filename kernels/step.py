"""What a variant does, as a list of steps that can be run, compiled for another GPU, or counted.

A variant's ``plan`` returns these steps and nothing else launches anything. The same plan therefore serves the op
(run the steps), ``inspect`` (plan on meta tensors, compile each launch for a named target) and ``traffic`` (run the
launches in the interpreter): what is inspected cannot differ from what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


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
        """Launches on the current device and stream."""
        self.kernel[self.grid](
            **self.args, num_warps=self.num_warps, num_stages=self.num_stages, **self.options
        )


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
