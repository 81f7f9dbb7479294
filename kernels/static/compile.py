"""Compiles one launch for a target, the way Triton's JIT would, in a process of its own (see ``pool``)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.static.targets import Target
from roofgap.kernels.step import Launch, TorchStep
from roofgap.kernels.variant import Operands, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

if TYPE_CHECKING:
    import torch


_LOCATION = re.compile(
    r" ?loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
)  # parentheses nest at most twice in one


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledLaunch:
    """A launch and what the compiler made of it.

    Attributes:
        launch: the launch.
        asm: text of each stage by name (``ttir``, ``ttgir``, ``llir``, ``ptx`` or ``amdgcn``); every location
            in them is a line of ``ttir``.
        binary: the cubin or the code object.
        shared_bytes: shared memory per program.
        threads: threads per program of the grid, which may be a cluster.
        values: what each argument of the IR's function is, in order: an int, or None for pointers and floats.
        codes: positions among these that point to packed codes.
    """

    launch: Launch
    asm: dict[str, str]
    binary: bytes
    shared_bytes: int
    threads: int
    values: tuple[int | None, ...]
    codes: frozenset[int]


def plan_on_meta(
    variant: Variant, problem: Problem, config: KernelConfig
) -> tuple[list[Launch], list[TorchStep], torch.Tensor]:
    """The steps of a variant, planned on tensors without memory, and the codes tensor they were planned with.

    Raises:
        RoofgapError: the variant does not support the problem, or launches no kernel for it.
    """
    import torch

    if reason := variant.supports(problem):
        raise RoofgapError(f"problem {problem.key}", reason, "choose another variant or shape")
    weight = variant.layout.meta(problem)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[problem.x_dtype]

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    operands = Operands(
        x=empty(problem.m, problem.k),
        codes=weight.codes,
        scales=weight.scales,
        zeros=weight.zeros,
        bias=empty(problem.n) if problem.bias else None,
        y=empty(problem.m, problem.n),
    )
    steps = variant.plan(problem, config, operands)
    launches = [step for step in steps if isinstance(step, Launch) and 0 not in step.grid]
    if not launches:
        raise RoofgapError(
            f"{variant.name} at {problem.key}",
            "launches no Triton kernel",
            "choose M of at least 1 and another variant",
        )
    return launches, [step for step in steps if isinstance(step, TorchStep)], weight.codes


def compile_launch(launch: Launch, target: Target, codes: torch.Tensor) -> CompiledLaunch:
    """Compiles with the signature, constants and attributes that ``kernel[grid](...)`` would derive.

    The locations in the result are lines of the Triton IR (``USE_IR_LOC``), which changes the debug
    information and nothing of the code.

    Raises:
        RoofgapError: the kernel was defined under TRITON_INTERPRET.
        Exception: whatever Triton's front end, LLVM or the assembler raise.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    kernel = launch.kernel
    if not isinstance(kernel, JITFunction):
        raise RoofgapError(
            f"kernel {kernel.__name__}",
            "was defined for the interpreter",
            "set TRITON_INTERPRET outside the script, or after `if __name__ == '__main__':`",
        )
    gpu = GPUTarget(target.backend, target.arch, target.warp_size)
    backend = make_backend(gpu)
    given = {
        **launch.args,
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "debug": False,
        **launch.options,
    }
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(**given)
    options, signature, constants, attributes = kernel._pack_args(
        backend, given, bound, specialization, options
    )
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, attributes), target=gpu, options=options.__dict__
    )
    runtime = [name for name, kind in signature.items() if kind != "constexpr"]
    binary = compiled.asm["cubin" if target.backend == "cuda" else "hsaco"]
    return CompiledLaunch(
        launch=launch,
        asm={stage: str(text) for stage, text in compiled.asm.items() if not isinstance(text, bytes)},
        binary=binary,
        shared_bytes=int(compiled.metadata.shared),
        threads=launch.num_warps * target.warp_size * launch.cluster,
        values=tuple(bound[name] if isinstance(bound[name], int) else None for name in runtime),
        codes=frozenset(at for at, name in enumerate(runtime) if _shares_memory(bound[name], codes)),
    )


def _shares_memory(value: Any, codes: torch.Tensor) -> bool:
    """Whether an argument is the codes tensor or a view of it; meta tensors have a storage but no address."""
    import torch

    return (
        isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == codes.untyped_storage()._cdata
    )


def with_file(binary: bytes, suffix: str, read: Callable[[Path], Any]) -> Any:
    """What ``read`` makes of the binary as a temporary file."""
    with tempfile.TemporaryDirectory(prefix="roofgap-") as folder:
        path = Path(folder) / f"kernel.{suffix}"
        path.write_bytes(binary)
        return read(path)


def readable(stage: str, text: str) -> str:
    """A stage's text without locations and debug sections, which name temporary files."""
    if stage in ("ttir", "ttgir"):
        lines = [line for line in text.splitlines() if not line.startswith("#loc")]
        return "\n".join(_LOCATION.sub("", line) for line in lines) + "\n"
    if stage == "llir":
        lines = [line for line in text.splitlines() if not re.match(r"!\d+ = ", line)]
        return "\n".join(re.sub(r",? !dbg !\d+", "", line) for line in lines) + "\n"
    text = re.split(r"^\s*\.section\s+\"?\.debug", text, maxsplit=1, flags=re.MULTILINE)[0]
    return (
        "\n".join(
            line for line in text.splitlines() if not re.match(r"\s*\.(loc|file|cfi)\b|\$L__|\.Ltmp", line)
        )
        + "\n"
    )
