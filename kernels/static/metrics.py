"""Static metrics: what a compiled variant costs, read from its code without running it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.static import amd, sass
from roofgap.kernels.static.budget import Bound, Budget, weigh
from roofgap.kernels.static.compile import CompiledLaunch, compile_launch, plan_on_meta, with_file
from roofgap.kernels.static.elf import code_hash
from roofgap.kernels.static.instructions import Instruction, Resources
from roofgap.kernels.static.occupancy import estimate
from roofgap.kernels.static.per_weight import per_weight
from roofgap.kernels.static.targets import Target
from roofgap.kernels.static.ttir import find_streams
from roofgap.kernels.variant import Variant
from roofgap.shapes.device import DeviceProfile
from roofgap.shapes.problem import Problem

_SYSTEM_SHARED_SINCE = 90
"""Since this compute capability the shared memory of a cubin includes what the system keeps per block."""


class LaunchMetrics(BaseModel):
    """One compiled launch.

    Attributes:
        role: ``main`` for the launch that reads the packed codes.
        kernel: name of the kernel function.
        grid: programs per axis.
        num_warps: warps per program.
        num_stages: software pipelining depth asked for.
        registers: per thread (AMD: vector plus accumulator registers per lane).
        spill_bytes: local (AMD: scratch) memory per thread.
        shared_bytes: shared memory per program.
        fits: whether one program fits on an SM at all.
        occupancy: resident warps over the SM's maximum, 0..1.
        occupancy_limit: ``registers``, ``shared``, ``warps`` or ``blocks``: what stops the next program.
        blocks_per_sm: resident programs per SM.
        instructions_per_weight: thread-instructions of the main loop per weight, by class and in ``total``;
            of the whole kernel where no loop loads codes; None where the launch loads none. A main loop that only
            copies codes into shared memory has those of the loop that reads them there beside its own.
        instructions_in_loop: machine instructions of that loop.
        weights_per_iteration: distinct weights that one program takes from one trip through it.
        loads_per_word: how often each packed word is asked for within a trip; 1 is best.
        weight_passes: weights that all programs process, over the N x K there are: padding of the tiles, and
            programs that read the same weights for other rows of x. None where a trip count is not known.
        weight_load_bits: width of the widest load of codes, per thread.
        code_hash: equal for equal machine code.
        notes: what could not be established, in sentences.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: str
    kernel: str
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    fits: bool
    occupancy: float
    occupancy_limit: str
    blocks_per_sm: int
    instructions_per_weight: dict[str, float] | None
    instructions_in_loop: int | None
    weights_per_iteration: int | None
    loads_per_word: float | None
    weight_passes: float | None
    weight_load_bits: int | None
    code_hash: str
    notes: tuple[str, ...] = ()


class StaticMetrics(LaunchMetrics):
    """A variant at a problem, config and target. The fields of the main launch are its own.

    Attributes:
        variant: name of the variant.
        problem: the problem's key.
        config: the config's key.
        target: name of the target.
        bound: ``bandwidth-bound`` or ``issue-bound``, None without a device profile or a count per weight.
        budget: the comparison behind ``bound``.
        reasoning: the same in sentences.
        launches: every launch, in order, the main one included.
        torch_steps: names of the steps left to torch, which are not inspected.
        machine_code_hash: equal where all launches have equal code, grids and integer arguments: such configs
            need to be timed once.
    """

    variant: str
    problem: str
    config: str
    target: str
    bound: Bound | None
    budget: Budget | None
    reasoning: tuple[str, ...]
    launches: tuple[LaunchMetrics, ...]
    torch_steps: tuple[str, ...]
    machine_code_hash: str


class CompileFailure(BaseModel):
    """A config that has no metrics, and why.

    Attributes:
        kind: ``refused`` by the variant or a rule, ``compile`` (Triton's front end or passes), ``assembler``
            (ptxas), ``crash`` (the compiler took its process with it), ``timeout``.
        message: one line.
        evidence: the end of what the compiler printed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    variant: str
    problem: str
    config: str
    target: str
    kind: Literal["refused", "compile", "assembler", "crash", "timeout"]
    message: str
    evidence: str = ""


def measure(
    variant: Variant, problem: Problem, config: KernelConfig, target: Target, device: DeviceProfile | None
) -> StaticMetrics:
    """Compiles every launch of the plan and reads its code. Runs in a compile worker.

    Raises:
        RoofgapError: the problem is not supported, a tool is missing, or the device does not match.
        Exception: what the compiler raises.
    """
    launches, torch_steps, codes = plan_on_meta(variant, problem, config)
    digest = hashlib.sha256()
    measured: list[tuple[LaunchMetrics, Budget | None]] = []
    for launch in launches:
        compiled = compile_launch(launch, target, codes)
        measured.append(_measure_launch(compiled, problem, target, device))
        digest.update(repr((measured[-1][0].code_hash, launch.grid, compiled.values)).encode())
    main, budget = next((pair for pair in measured if pair[0].role == "main"), measured[0])
    return StaticMetrics(
        **dict(main),
        variant=variant.name,
        problem=problem.key,
        config=config.key,
        target=target.name,
        bound=budget.bound if budget else None,
        budget=budget,
        reasoning=tuple(budget.reasoning()) if budget else (),
        launches=tuple(metrics for metrics, _ in measured),
        torch_steps=tuple(step.name for step in torch_steps),
        machine_code_hash=digest.hexdigest(),
    )


def _measure_launch(
    compiled: CompiledLaunch, problem: Problem, target: Target, device: DeviceProfile | None
) -> tuple[LaunchMetrics, Budget | None]:
    launch = compiled.launch
    needs = _read_resources(compiled, target)
    streams = find_streams(compiled.asm["ttir"], compiled.values, compiled.codes, launch.grid)
    # A disassembly costs as much as the compilation, and a launch that loads no codes does not need it.
    counts = per_weight(_read_code(compiled, target), streams[0], compiled, problem) if streams else None
    occupancy = estimate(
        target, launch.num_warps, needs.registers, needs.shared_bytes, needs.scalar_registers
    )
    metrics = LaunchMetrics(
        role=launch.role,
        kernel=launch.kernel.__name__,
        grid=launch.grid,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        registers=needs.registers,
        spill_bytes=needs.spill_bytes,
        shared_bytes=needs.shared_bytes,
        fits=occupancy.blocks > 0,
        occupancy=occupancy.fraction,
        occupancy_limit=occupancy.limit,
        blocks_per_sm=occupancy.blocks,
        instructions_per_weight=counts.by_class if counts else None,
        instructions_in_loop=counts.instructions_in_loop if counts else None,
        weights_per_iteration=counts.weights if counts else None,
        loads_per_word=counts.loads_per_word if counts else None,
        weight_passes=counts.passes if counts else None,
        weight_load_bits=counts.load_bits if counts else None,
        code_hash=code_hash(compiled.binary, compiled.threads, needs.shared_bytes),
        notes=counts.notes if counts else _uncounted(compiled),
    )
    if counts is None or device is None:
        return metrics, None
    return metrics, weigh(
        target,
        device,
        bytes_per_weight=problem.weight_bytes / (problem.n * problem.k) + counts.stored_bytes_per_weight,
        spent=counts.issued(target),
        spent_int=counts.integer if target.backend == "cuda" else None,
        weight_passes=counts.passes or 1.0,
    )


def _uncounted(compiled: CompiledLaunch) -> tuple[str, ...]:
    """Why a launch that is given packed codes has no counts per weight."""
    if not compiled.codes:
        return ()
    return ("Found no loads of the packed codes to count by: tensor descriptors are not followed.",)


def _read_resources(compiled: CompiledLaunch, target: Target) -> Resources:
    if target.backend == "hip":
        lds = amd.read_resources(compiled.asm["amdgcn"])
        return replace(lds, shared_bytes=max(lds.shared_bytes, compiled.shared_bytes))
    needs: Resources = with_file(compiled.binary, "cubin", sass.read_resources)
    # The cubin knows what the kernel declares (assembly can), the compiler what each launch asks for beside it.
    system = target.reserved_shared_bytes if int(target.arch) >= _SYSTEM_SHARED_SINCE else 0
    return replace(needs, shared_bytes=needs.shared_bytes - system + compiled.shared_bytes)


def _read_code(compiled: CompiledLaunch, target: Target) -> list[Instruction]:
    if target.backend == "hip":
        return amd.parse(compiled.asm["amdgcn"])
    return sass.parse(with_file(compiled.binary, "cubin", sass.disassemble))
