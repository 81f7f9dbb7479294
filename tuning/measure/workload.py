"""A problem's operands on a device, in as many copies as the policy wants, for variants to be timed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.formats.layout import Layout, PackedWeight
from roofgap.kernels.inputs import operands, random_bias, random_weight, random_x
from roofgap.kernels.reference import Reference, reference
from roofgap.kernels.step import Launch, Step
from roofgap.kernels.tolerance import judge
from roofgap.kernels.variant import Operands, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.device import Device
from roofgap.tuning.measure.failure import Failure, classify
from roofgap.tuning.measure.measurement import Measurement, measure
from roofgap.tuning.measure.op import Check, Instance, Prepared, Verdict, prepare
from roofgap.tuning.measure.policy import COLD, MeasurePolicy


class Workload:
    """Seeded random operands of one problem and its fp64 reference, shared by all configs tried on it.

    Args:
        problem: of at least one token.
        device: where operands live; the reference is computed there too.
        seed: of activations, codes, scales, zeros and bias.

    Raises:
        RoofgapError: M = 0.
    """

    def __init__(self, problem: Problem, device: Device, seed: int = 0) -> None:
        if problem.m == 0:
            raise RoofgapError("m=0", "has nothing to time", "give at least one token")
        place = device.torch_device
        self.problem, self.device = problem, device
        self.weight = random_weight(problem, seed, place)
        self.x = random_x(problem, seed, place)
        self.bias = random_bias(problem, seed, place)
        self.reference = reference(self.x, self.weight, self.bias)
        self._packed: dict[str, list[PackedWeight]] = {}
        self._dense: list[torch.Tensor] = []

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and output."""
        return self.x.dtype

    def packed(self, layout: type[Layout], count: int) -> Sequence[PackedWeight]:
        """At least ``count`` copies of the weight in a layout, each in memory of its own."""
        copies = self._packed.setdefault(layout.name, [])
        if not copies:
            copies.append(layout.pack(self.weight))
        while len(copies) < count:
            copies.append(_clone(copies[0]))
        return copies

    def dense(self, count: int) -> Sequence[torch.Tensor]:
        """At least ``count`` copies of the dequantised weight [N, K] in x's dtype."""
        if not self._dense:
            self._dense.append(self.weight.dequantise(self.dtype))
        while len(self._dense) < count:
            self._dense.append(self._dense[0].clone())
        return self._dense

    def launches(self, policy: MeasurePolicy, read_bytes: int, held_bytes: int, copies: int) -> int:
        """Launches per sample; ``copies`` that exist already count as free memory."""
        free_bytes = self.device.free_bytes() + copies * read_bytes
        return policy.launches(read_bytes, held_bytes, self.device.l2_bytes, free_bytes)

    def check(self, **arithmetic: Any) -> Check:
        """The kernels' tolerance policy over all instances at once.

        The first output is judged whole. The others hold the same product, so it is enough that the
        elementwise largest and smallest of them lie within each element's bound: then every value between
        does.

        Args:
            arithmetic: what ``tolerance.judge`` wants to know of the kernel.
        """
        return lambda outputs: _judge_all(outputs, self.reference, k=self.problem.k, **arithmetic)

    def prepare(self, variant: Variant, config: KernelConfig, policy: MeasurePolicy = COLD) -> Prepared:
        """Plans, compiles, runs and checks one launch, and captures the rest.

        Raises:
            RoofgapError: the variant does not support the problem.
            MeasureError: the output is wrong or the graph holds no work.
            Exception: what compiling, launching or allocating raised; ``failure.classify`` names it.
        """
        refusal = variant.supports(self.problem)
        if refusal is not None:
            raise RoofgapError(f"{variant.name} at {self.problem.key}", refusal, "choose another variant")
        problem, layout = self.problem, variant.layout
        shape = (problem.m, problem.n)
        first = self._operands(
            self.packed(layout, 1)[0], torch.empty(shape, dtype=self.dtype, device=self.x.device)
        )
        scratch_bytes = sum(
            tensor.nbytes for tensor in scratch_of(variant.plan(problem, config, first), first)
        )
        held_bytes = problem.weight_bytes + first.y.nbytes + scratch_bytes
        launches = self.launches(policy, problem.weight_bytes, held_bytes, len(self._packed[layout.name]))
        copies = self.packed(layout, launches if policy.is_cold else 1)

        def build(index: int, out: torch.Tensor) -> Instance:
            given = self._operands(copies[index if policy.is_cold else 0], out)
            steps = variant.plan(problem, config, given)
            return Instance(lambda: _run(steps), tuple(scratch_of(steps, given)))

        return prepare(
            build,
            label=f"{variant.name} {problem.key} {config.key}",
            device=self.device,
            policy=policy,
            launches=launches,
            read_bytes=problem.weight_bytes,
            shape=shape,
            dtype=self.dtype,
            check=self.check(
                split_count=variant.split_count(problem, config),
                rounds_weights=variant.rounds_weights,
                factors_zero=variant.factors_zero,
            ),
        )

    def prepare_torch(self, policy: MeasurePolicy = COLD) -> Prepared:
        """The dense baseline: torch's matmul on copies of the dequantised weight in x's dtype.

        Raises:
            MeasureError: the output is wrong or the graph holds no work.
        """
        problem = self.problem
        held_bytes = problem.dense_bytes + problem.m * problem.n * self.dtype.itemsize
        launches = self.launches(policy, problem.dense_bytes, held_bytes, len(self._dense))
        copies = self.dense(launches if policy.is_cold else 1)

        def build(index: int, out: torch.Tensor) -> Instance:
            transposed, bias = copies[index if policy.is_cold else 0].T, self.bias
            if bias is None:
                return Instance(lambda: torch.mm(self.x, transposed, out=out))
            return Instance(lambda: torch.addmm(bias, self.x, transposed, out=out))

        return prepare(
            build,
            label=f"torch {problem.key}",
            device=self.device,
            policy=policy,
            launches=launches,
            read_bytes=problem.dense_bytes,
            shape=(problem.m, problem.n),
            dtype=self.dtype,
            check=self.check(rounds_weights=True),
        )

    def _operands(self, packed: PackedWeight, out: torch.Tensor) -> Operands:
        return operands(self.x, packed, self.bias, out)


def measure_variant(
    workload: Workload, variant: Variant, config: KernelConfig, policy: MeasurePolicy = COLD
) -> Measurement | Failure:
    """Checks and times one config. Every exception becomes a ``Failure`` with a status and its evidence.

    After ``Status.ILLEGAL_ACCESS`` the CUDA context of this process is lost; the caller must replace the
    process.
    """
    try:
        return measure(workload.prepare(variant, config, policy))
    except Exception as error:
        return classify(error)


def measure_torch(workload: Workload, policy: MeasurePolicy = COLD) -> Measurement | Failure:
    """Checks and times the dense baseline."""
    try:
        return measure(workload.prepare_torch(policy))
    except Exception as error:
        return classify(error)


def scratch_of(steps: Sequence[Step], given: Operands) -> Iterator[torch.Tensor]:
    """Tensors of a plan that are not its operands: workspaces, each once."""
    known = {
        tensor.data_ptr()
        for tensor in (given.x, given.codes, given.scales, given.zeros, given.bias, given.y)
        if tensor is not None
    }
    for step in steps:
        named = step.args.values() if isinstance(step, Launch) else step.writes
        for value in named:
            if isinstance(value, torch.Tensor) and value.data_ptr() not in known:
                known.add(value.data_ptr())
                yield value


def _run(steps: Sequence[Step]) -> None:
    for step in steps:
        step.run()


def _clone(packed: PackedWeight) -> PackedWeight:
    return replace(
        packed,
        codes=packed.codes.clone(),
        scales=packed.scales.clone(),
        zeros=None if packed.zeros is None else packed.zeros.clone(),
    )


def _judge_all(outputs: torch.Tensor, ref: Reference, *, k: int, **arithmetic: Any) -> Verdict:
    first = judge(outputs[0], ref, k=k, **arithmetic)
    if not first.passed:
        return Verdict(passed=False, rel_error=first.relative_error, evidence=first.detail)
    for extreme in (outputs.amax(0), outputs.amin(0)) if len(outputs) > 1 else ():
        other = judge(extreme, ref, k=k, **arithmetic)
        if other.misplaced or other.worst_of_bound > 1:
            return Verdict(passed=False, rel_error=other.relative_error, evidence=other.detail)
    return Verdict(passed=True, rel_error=first.relative_error)
