"""What the fused operators cost on a GPU that need not be here: registers, spills, shared memory, compiled
for a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roofgap.shapes.architecture import Architecture
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import XDtype

if TYPE_CHECKING:
    from roofgap.kernels.static.targets import Target
    from roofgap.kernels.step import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """One compiled launch.

    Attributes:
        kernel: name of its function.
        target: name of the target.
        registers: per thread.
        spill_bytes: local memory per thread.
        shared_bytes: per program.
        shared_limit: what a program may have on the target.
    """

    kernel: str
    target: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    shared_limit: int

    @property
    def fits(self) -> bool:
        """Whether it runs on the target without spilling."""
        return self.spill_bytes == 0 and self.shared_bytes <= self.shared_limit


def launches(architecture: Architecture, cache_length: int, x_dtype: XDtype = "bf16") -> list[Launch]:
    """Every different launch of a fused decode step, on tensors without memory."""
    import torch

    from roofgap.e2e.fused import argmax, attention, norm, swiglu

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[x_dtype]

    def empty(*shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=of, device="meta")

    a = architecture
    hidden, counter = empty(1, a.hidden), empty(1, of=torch.int64)
    qkv = empty(1, a.q_features + 2 * a.kv_features)
    q, k, v = torch.split(qkv, [a.q_features, a.kv_features, a.kv_features], dim=-1)
    table, cache = empty(cache_length, a.head_dim), empty(1, a.kv_heads, cache_length, a.head_dim)
    gate, up = empty(1, 2 * a.intermediate).chunk(2, dim=-1)
    blocks = -(-a.vocab // argmax.BLOCK)
    best, where = empty(1, blocks, of=torch.float32), empty(1, blocks, of=torch.int32)
    attention.refuse_shapes(q, k, v, table, table, cache, cache)
    return [
        *norm.plan(None, hidden, empty(a.hidden), hidden, hidden, 1e-6),
        *norm.plan(hidden, hidden, empty(a.hidden), hidden, hidden, 1e-6),
        *attention.plan(
            q, k, v, table, table, counter, cache, cache, counter, a.head_dim**-0.5, empty(*q.shape)
        ),
        *swiglu.plan(gate, up, empty(1, a.intermediate)),
        *argmax.plan(empty(1, a.vocab), counter, best, where),
    ]


def costs(
    architecture: Architecture, targets: Sequence[Target], cache_length: int = 1024, x_dtype: XDtype = "bf16"
) -> list[KernelCost]:
    """Compiles every launch for every target in a process of its own, out of reach of interpreter mode.

    Raises:
        RoofgapError: a kernel does not compile.
    """
    import tempfile

    from pebble import ProcessPool

    from roofgap.kernels.static import worker

    with tempfile.TemporaryDirectory(prefix="roofgap-compile-") as folder:
        pool = ProcessPool(
            max_workers=1, initializer=worker.start, initargs=[folder], context=worker.CompileContext()
        )
        with pool:
            futures = [
                pool.schedule(_compile, args=[architecture, target, cache_length, x_dtype])
                for target in targets
            ]
            return [cost for future in futures for cost in future.result()]


def _compile(
    architecture: Architecture, target: Target, cache_length: int, x_dtype: XDtype
) -> list[KernelCost]:
    """Runs in a compile worker."""
    import torch

    from roofgap.kernels.static import sass
    from roofgap.kernels.static.compile import compile_launch, with_file

    if target.backend != "cuda":
        raise RoofgapError(f"target {target.name}", "must be an NVIDIA GPU", "choose one of the sm_ targets")
    found = []
    for launch in launches(architecture, cache_length, x_dtype):
        compiled = compile_launch(launch, target, torch.empty(0, device="meta"))
        needs = with_file(compiled.binary, "cubin", sass.read_resources)
        found.append(
            KernelCost(
                kernel=launch.kernel.__name__,
                target=target.name,
                registers=needs.registers,
                spill_bytes=needs.spill_bytes,
                shared_bytes=max(needs.shared_bytes, compiled.shared_bytes),
                shared_limit=target.block_shared_bytes,
            )
        )
    return found
