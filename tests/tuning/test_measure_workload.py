"""Variants of real problems through the whole measuring, kernels in the interpreter, time from a script."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.kernels.step import Launch, Step, TorchStep
from roofgap.kernels.variant import Operands, Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.failure import Failure
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.measurement import Measurement
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.workload import Workload, measure_torch, measure_variant, scratch_of
from roofgap.tuning.status import Status

PROBLEM = Problem(n=48, k=128, group_size=32)
POLICY = MeasurePolicy(min_launches=2, max_launches=2, replays=2, warmup_window=1)


def workload(problem: Problem = PROBLEM, **options: Any) -> Workload:
    return Workload(problem, ScriptedDevice(l2_bytes=256, work_us=3.0, **options))


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_variant_is_measured(name: str) -> None:
    variant = get_variant(name)
    load = workload()
    if variant.supports(load.problem):
        pytest.skip(str(variant.supports(load.problem)))
    try:
        outcome = measure_variant(load, variant, variant.default_config(load.problem), POLICY)
    except NotImplementedError as error:
        pytest.skip(f"not in the interpreter: {error}")
    assert isinstance(outcome, Measurement), outcome
    assert outcome.latency_us == 3.0
    assert outcome.read_bytes == load.problem.weight_bytes
    assert 0 < outcome.rel_error < 2e-3


@pytest.mark.parametrize("bias", [False, True])
def test_the_dense_baseline(bias: bool) -> None:
    outcome = measure_torch(workload(replace(PROBLEM, bias=bias, m=3)), POLICY)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.read_bytes == PROBLEM.dense_bytes


class Faulty(type(get_variant("v2"))):  # type: ignore[misc]
    """v2 with one thing wrong."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def plan(self, problem: Problem, config: Any, operands: Operands) -> list[Step]:
        steps: list[Step] = super().plan(problem, config, operands)
        launch = steps[0]
        assert isinstance(launch, Launch)
        if self.fault == "raises":
            raise RuntimeError("CUDA error: misaligned address")
        if self.fault == "wrong group":
            return [replace(launch, args={**launch.args, "QUANT_GROUP": 64})]
        if self.fault == "short":
            return [replace(launch, args={**launch.args, "n": problem.n - 8})]
        if self.fault == "one past the end":
            end = operands.y.storage_offset() + problem.n
            overrun = TorchStep(
                name="overrun",
                run=lambda: operands.y.as_strided((1,), (1,), end).zero_(),
                read_bytes=0,
                written_bytes=2,
            )
            return [*steps, overrun]
        space = torch.zeros_like(operands.y)
        stale = TorchStep(
            name="add", run=lambda: operands.y.add_(space), read_bytes=0, written_bytes=0, writes=(space,)
        )
        return [*steps, stale]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("raises", Status.ILLEGAL_ACCESS),
        ("wrong group", Status.WRONG),
        ("short", Status.WRONG),
        ("one past the end", Status.WRONG),
        ("workspace never zeroed", Status.WRONG),
    ],
)
def test_a_faulty_variant_is_a_failure_with_evidence(fault: str, status: Status) -> None:
    variant: Variant = Faulty(fault)
    outcome = measure_variant(workload(), variant, variant.default_config(PROBLEM), POLICY)
    assert isinstance(outcome, Failure)
    assert outcome.status is status
    assert outcome.evidence


def test_copies_are_distinct_memory_with_equal_values_and_are_shared_by_configs() -> None:
    load = workload(Problem(n=48, k=128, group_size=32, zero_mode="asym"))
    copies = load.packed(get_variant("v2").layout, 5)
    for field in ("codes", "scales", "zeros"):
        tensors = [getattr(copy, field) for copy in copies]
        assert len({tensor.data_ptr() for tensor in tensors}) == 5
        assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
    assert load.packed(get_variant("v2").layout, 3) is copies
    dense = load.dense(3)
    assert len({tensor.data_ptr() for tensor in dense}) == 3


@pytest.mark.parametrize(("mode", "distinct"), [("cold-graph", 2), ("warm-graph", 1)])
def test_cold_launches_read_their_own_copies(
    monkeypatch: pytest.MonkeyPatch, mode: Any, distinct: int
) -> None:
    seen: set[int] = set()
    variant = get_variant("v2")
    load = workload()
    original = type(variant).plan

    def spy(self: Variant, problem: Problem, config: Any, operands: Operands) -> list[Step]:
        seen.add(operands.codes.data_ptr())
        return original(self, problem, config, operands)

    monkeypatch.setattr(type(variant), "plan", spy)
    load.prepare(variant, variant.default_config(PROBLEM), replace(POLICY, mode=mode))
    assert len(seen) == distinct


def test_workspaces_are_found_once_and_operands_are_not() -> None:
    variant = get_variant("v3")
    load = workload()
    packed = load.packed(variant.layout, 1)[0]
    given = load._operands(packed, torch.empty((1, 48), dtype=torch.float16))
    config = variant.config_type.from_dict({**variant.default_config(PROBLEM).to_dict()})
    steps = variant.plan(PROBLEM, config, given)
    found = list(scratch_of(steps, given))
    assert len({tensor.data_ptr() for tensor in found}) == len(found)
    assert not {given.y.data_ptr(), given.codes.data_ptr()} & {tensor.data_ptr() for tensor in found}


def test_an_unsupported_problem_says_why() -> None:
    limited = Faulty("none")
    limited.max_m = 2
    problem = PROBLEM.with_m(3)
    outcome = measure_variant(workload(problem), limited, limited.default_config(problem), POLICY)
    assert isinstance(outcome, Failure)
    assert outcome.status is Status.UNSUPPORTED


def test_too_little_memory_says_so() -> None:
    variant = get_variant("v2")
    outcome = measure_variant(workload(memory_bytes=64), variant, variant.default_config(PROBLEM), POLICY)
    assert isinstance(outcome, Failure)
    assert "must fit" in outcome.evidence


def test_no_tokens_is_refused() -> None:
    with pytest.raises(RoofgapError, match="nothing to time"):
        workload(PROBLEM.with_m(0))
