"""Runs a variant's plan in Triton's interpreter and counts the bytes it moves, per tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.inputs import operands as make_operands
from roofgap.kernels.inputs import poisoned, random_bias, random_weight, random_x
from roofgap.kernels.step import Launch, Step, TorchStep
from roofgap.kernels.traffic.counters import Counters
from roofgap.kernels.traffic.hook import AccessKind, memory_accesses
from roofgap.kernels.traffic.record import Traffic, TrafficRow
from roofgap.kernels.variant import Operands, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

MAX_WEIGHTS = 256 * 1536
MAX_ROWS = 64
_KINDS: tuple[AccessKind, ...] = ("load", "store", "atomic")


def measure_traffic(
    variant: Variant, problem: Problem, config: KernelConfig, operands: Operands | None = None
) -> Traffic:
    """Bytes that one call of the variant asks for and touches.

    The kernels must have been imported with ``TRITON_INTERPRET=1`` (``count_traffic`` sees to that). The
    result depends on nothing but the arguments: two runs give equal records.

    Args:
        variant: the implementation.
        problem: N x K at most ``MAX_WEIGHTS`` and M at most ``MAX_ROWS``, for the interpreter is slow.
        config: launch values, valid for the variant.
        operands: CPU tensors to run on; made for the problem if None.

    Raises:
        RoofgapError: a problem that is too large or not supported, an invalid config, kernels that were not
            imported for the interpreter or cannot run there, or an access outside every tensor.
    """
    check_size(problem)
    for refusal in (variant.supports(problem), variant.is_valid(problem, config)):
        if refusal is not None:
            raise RoofgapError(
                f"{variant.name} at {problem.key}", refusal, "choose another config or variant"
            )
    if operands is None:
        operands = cpu_operands(variant, problem)
    counters = Counters()
    for field in fields(operands):
        tensor = getattr(operands, field.name)
        if isinstance(tensor, torch.Tensor):
            counters.add(field.name, tensor)
    steps = variant.plan(problem, config, operands)
    for step in steps:
        add_arguments(step, counters)
    unattributed = [row for step in steps for row in run_counted(step, counters, problem)]
    return Traffic(
        variant=variant.name,
        problem=problem,
        config=config.to_dict(),
        rows=(*_rows(counters, problem), *unattributed),
    )


def check_size(problem: Problem) -> None:
    """Refuses what would keep the interpreter busy for minutes.

    Raises:
        RoofgapError: more than ``MAX_WEIGHTS`` weights or ``MAX_ROWS`` rows of activations.
    """
    if problem.n * problem.k > MAX_WEIGHTS:
        raise RoofgapError(
            f"shape {problem.shape}",
            f"has more than {MAX_WEIGHTS:,} weights (256x1536), too many for Triton's interpreter",
            "cut it with --cut (cut_problem), which keeps groups and tails; bytes per weight carry over",
        )
    if problem.m > MAX_ROWS:
        raise RoofgapError(
            f"M={problem.m}", f"is above {MAX_ROWS} rows, too many for Triton's interpreter", "lower M"
        )


def cpu_operands(variant: Variant, problem: Problem) -> Operands:
    """Seeded operands in the variant's layout; y is full of NaN."""
    packed = variant.layout.pack(random_weight(problem, seed=0))
    return make_operands(random_x(problem, 0), packed, random_bias(problem, 0), poisoned(problem))


def add_arguments(step: Step, counters: Counters) -> None:
    """Makes a launch's tensors known by their argument names, before any torch step that zeroes one."""
    if isinstance(step, Launch):
        for name, value in step.args.items():
            if hasattr(value, "data_ptr"):
                counters.add(name.removesuffix("_ptr"), value)


def run_counted(step: Step, counters: Counters, problem: Problem) -> list[TrafficRow]:
    """Runs one step. Returns rows only for a torch step that does not say which tensors it moves."""
    if isinstance(step, Launch):
        _run_launch(step, counters)
        return []
    step.run()
    rows: list[TrafficRow] = []
    moved: tuple[tuple[AccessKind, int, tuple[Any, ...]], ...] = (
        ("load", step.read_bytes, step.reads),
        ("store", step.written_bytes, step.writes),
    )
    for kind, total, tensors in moved:
        if tensors:
            _add_modelled(step, kind, total, tensors, counters)
        elif total:
            rows.append(TrafficRow.of(problem, step.name, kind, total, modelled=True))
    return rows


def _run_launch(launch: Launch, counters: Counters) -> None:
    from triton.runtime.errors import InterpreterError
    from triton.runtime.interpreter import InterpretedFunction

    kernel = launch.kernel
    counters.kernel = kernel.__name__
    if not isinstance(kernel, InterpretedFunction):
        raise RoofgapError(
            f"kernel {counters.kernel}",
            "was imported for a GPU, not for Triton's interpreter",
            "set TRITON_INTERPRET=1 before it is imported, or use roofgap.kernels.traffic.run.count_traffic",
        )
    try:
        with memory_accesses(counters.record):
            launch.run()
    except InterpreterError as error:
        raise _reason(error, counters.kernel) from error


def _reason(error: BaseException, kernel: str) -> RoofgapError:
    """What stopped a kernel: a refusal of ours below the interpreter's errors, else the innermost of them."""
    while error.__cause__ is not None and not isinstance(error, RoofgapError):
        error = error.__cause__
    if isinstance(error, RoofgapError):
        return error
    return RoofgapError(
        f"kernel {kernel}",
        f"does not run in Triton's interpreter ({error})",
        "give the variant a path that does: no inline assembly, no external functions",
    )


def _add_modelled(
    step: TorchStep, kind: AccessKind, total: int, tensors: Iterable[Any], counters: Counters
) -> None:
    sizes = [(tensor, tensor.numel() * tensor.element_size()) for tensor in tensors]
    if sum(size for _, size in sizes) != total:
        raise RoofgapError(
            f"step {step.name}",
            f"says {total} bytes for its {kind}s, its tensors hold {sum(size for _, size in sizes)}",
            "make read_bytes and written_bytes the sizes of reads and writes",
        )
    for tensor, size in sizes:
        region = counters.add(step.name, tensor)
        if region is not None:
            region.modelled_bytes[kind] += size


def _rows(counters: Counters, problem: Problem) -> Iterable[TrafficRow]:
    for region in counters.regions:
        for kind in _KINDS:
            if region.asked_bytes[kind]:
                asked, unique = region.asked_bytes[kind], region.unique_bytes(kind)
                yield TrafficRow.of(
                    problem, region.name, kind, asked, unique_bytes=unique, size_bytes=region.size_bytes
                )
            if region.modelled_bytes[kind]:
                modelled = region.modelled_bytes[kind]
                yield TrafficRow.of(
                    problem, region.name, kind, modelled, size_bytes=region.size_bytes, modelled=True
                )
