"""The process that touches the GPU. It may crash, hang or lose its CUDA context; ``gpu_runner`` replaces it.

It reads ``(operation, arguments)`` from a pipe and answers each with one plain value. It holds one problem at
a time, and of that problem the candidates that were prepared for interleaved rounds. An operation whose CUDA
context is lost answers with a status and is the last one this process serves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.static.processes import die_with_parent
from roofgap.kernels.variant import Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.status import Status

if TYPE_CHECKING:
    from roofgap.tuning.measure.cuda import CudaDevice
    from roofgap.tuning.measure.gap import Ceilings
    from roofgap.tuning.measure.op import Prepared
    from roofgap.tuning.measure.workload import Workload

FIRST_REPLAYS = 7  # samples of a first reading: it only has to rank, the interleaved rounds decide
DUEL_SAMPLES = 4
BASELINES = ("torch",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a worker needs to know.

    Attributes:
        gpu: CUDA index.
        cache: Triton cache folder, shared with the compiling processes.
        policy: how to time.
        seed: of the operands.
        parent: process id of the tuner.
    """

    gpu: int
    cache: str
    policy: MeasurePolicy
    seed: int
    parent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A worker that came up and passed the sentinel: the GPU it holds."""

    name: str
    uuid: str
    versions: dict[str, str]
    target: tuple[str, int | str, int]
    sm_count: int
    shared_bytes: int
    warp_size: int
    max_cluster: int
    read_gbps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A config, checked and timed, or how it failed."""

    status: Status
    evidence: str | None = None
    latency_us: float | None = None
    p20_us: float | None = None
    p80_us: float | None = None
    rel_error: float | None = None
    reproducible: bool | None = None
    check_s: float = 0.0
    measure_s: float = 0.0


def serve(pipe: Connection, settings: Settings) -> None:
    """Main of the worker process."""
    os.setpgid(0, 0)
    die_with_parent(settings.parent)
    os.environ["TRITON_CACHE_DIR"] = settings.cache
    bench = _Bench(settings)
    operations: dict[str, Callable[..., Any]] = {
        "hello": bench.hello,
        "problem": bench.problem,
        "trial": bench.trial,
        "duel": bench.duel,
        "attainable": bench.attainable,
    }
    while True:
        try:
            operation, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = operations[operation](*arguments)
        except RoofgapError as error:
            answer = error
        except Exception as error:
            from roofgap.tuning.measure.failure import classify

            failure = classify(error)
            answer = Reading(status=failure.status, evidence=failure.evidence)
        pipe.send(answer)


@dataclass
class _Bench:
    """The state of a worker: its device, its problem, and what is prepared of it."""

    settings: Settings
    prepared: dict[str, Prepared] = field(default_factory=dict)

    def hello(self) -> Hello:
        """Opens the device and runs a product whose result is known."""
        import torch
        import triton

        from roofgap.kernels.ops import limits_of
        from roofgap.kernels.step import require_dependent
        from roofgap.tuning.measure.bandwidth import open_device

        self.device: CudaDevice = open_device(self.settings.gpu)
        self.ceilings: Ceilings | None = None
        ones = torch.ones(256, 256, device=self.device.torch_device)
        if not bool((ones @ ones == 256).all()):
            raise RoofgapError(
                self.device.name, "computes 256 ones to something else", "take it out of service"
            )
        if self.settings.policy.is_chained:
            require_dependent(self.device.name)
        limits = limits_of(self.device.torch_device)
        target = triton.runtime.driver.active.get_current_target()
        return Hello(
            name=self.device.name,
            uuid=str(torch.cuda.get_device_properties(self.settings.gpu).uuid),
            versions=self.device.versions(),
            target=(target.backend, target.arch, target.warp_size),
            sm_count=limits.sm_count,
            shared_bytes=limits.shared_bytes,
            warp_size=limits.warp_size,
            max_cluster=limits.max_cluster,
            read_gbps=self.device.read_gbps or 0.0,
        )

    def problem(self, variant: Variant, problem: Problem) -> None:
        """Turns to a problem: operands and reference anew, everything of the last one dropped."""
        import torch

        from roofgap.tuning.measure.workload import Workload

        self.prepared.clear()
        self.workload: Workload | None = None
        torch.cuda.empty_cache()
        self.variant = variant
        self.workload = Workload(problem, self.device, self.settings.seed)

    def trial(self, config: KernelConfig) -> Reading:
        """Checks and times one config for the first time."""
        from roofgap.tuning.measure.failure import classify
        from roofgap.tuning.measure.measurement import measure

        began = checked = time.perf_counter()
        try:
            policy = replace(self.settings.policy, replays=FIRST_REPLAYS)
            prepared = self._prepare(config, policy)
            checked = time.perf_counter()
            measured = measure(prepared)
        except Exception as error:
            failure = self._surely(classify(error).status, classify(error).evidence)
            return replace(failure, check_s=time.perf_counter() - began)
        taints = "; ".join(label for label in measured.labels if label.startswith("tainted"))
        return Reading(
            status=Status.OK,
            evidence=taints or None,
            latency_us=measured.latency_us,
            p20_us=measured.p20_us,
            p80_us=measured.p80_us,
            rel_error=measured.rel_error,
            reproducible=measured.reproducible,
            check_s=checked - began,
            measure_s=time.perf_counter() - checked,
        )

    def duel(self, contenders: Sequence[tuple[str, KernelConfig | None]], number: int) -> list[Reading]:
        """One interleaved round of configs and (config None) baselines; what was prepared before is used
        again.
        """
        from statistics import median

        from roofgap.tuning.measure.failure import Failure, classify
        from roofgap.tuning.measure.interleaved import measure_interleaved

        wanted = {name for name, _ in contenders}
        for name in set(self.prepared) - wanted:
            del self.prepared[name]
        readings: dict[str, Reading] = {}
        for name, config in contenders:
            if name in self.prepared:
                continue
            try:
                self.prepared[name] = self._prepare(config, self.settings.policy)
            except Exception as error:
                readings[name] = self._surely(classify(error).status, classify(error).evidence)
        ready = [name for name, _ in contenders if name in self.prepared]
        try:
            outcomes = measure_interleaved([self.prepared[n] for n in ready], DUEL_SAMPLES, seed=number)
        except Exception as error:
            lost = self._surely(classify(error).status, classify(error).evidence)
            return [readings.get(name, lost) for name, _ in contenders]
        for name, outcome in zip(ready, outcomes, strict=True):
            if isinstance(outcome, Failure):
                readings[name] = Reading(status=outcome.status, evidence=outcome.evidence)
            else:
                readings[name] = Reading(status=Status.OK, latency_us=median(outcome))
        return [readings[name] for name, _ in contenders]

    def attainable(self) -> tuple[float, float | None]:
        """Roof and stream probe of the problem, in microseconds."""
        from roofgap.tuning.measure.gap import Ceilings

        assert self.workload is not None
        if self.ceilings is None:
            self.ceilings = Ceilings.of(self.device, self.settings.policy)
        problem, probe = self.workload.problem, self.ceilings.probe
        probe_us = probe.attainable(problem.weight_bytes).latency_us if probe else None
        return self.ceilings.roof_us(problem), probe_us

    def _prepare(self, config: KernelConfig | None, policy: MeasurePolicy) -> Prepared:
        assert self.workload is not None
        if config is None:
            return self.workload.prepare_torch(policy)
        return self.workload.prepare(self.variant, config, policy)

    def _surely(self, status: Status, evidence: str) -> Reading:
        """The failure, unless the context turns out to be lost: a fault may surface only at the next call."""
        import torch

        try:
            self.device.synchronise()
            if status is Status.OUT_OF_MEMORY:
                torch.cuda.empty_cache()
        except Exception as error:
            return Reading(status=Status.ILLEGAL_ACCESS, evidence=f"{evidence}; then {error}"[:2000])
        return Reading(status=status, evidence=evidence)
