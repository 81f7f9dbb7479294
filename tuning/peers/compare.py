"""Own kernels beside every peer on one problem, measured in turns in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from roofgap.kernels.ops import limits_of
from roofgap.kernels.registry import get_variant
from roofgap.kernels.step import require_dependent
from roofgap.kernels.variant import Variant
from roofgap.shapes.problem import Problem
from roofgap.tuning import lookup
from roofgap.tuning.environment import gpu_name
from roofgap.tuning.measure.bench import Contender, Timed, prepare, time_in_turns
from roofgap.tuning.measure.failure import Failure, MeasureError, classify
from roofgap.tuning.measure.gap import Ceilings
from roofgap.tuning.measure.op import Prepared
from roofgap.tuning.measure.policy import COLD, MeasurePolicy
from roofgap.tuning.measure.workload import Workload
from roofgap.tuning.peers.contender import PeerContender
from roofgap.tuning.peers.registry import TORCH, PeerSettings, make_peers
from roofgap.tuning.results import Cell
from roofgap.tuning.status import Status

if TYPE_CHECKING:
    from roofgap.tuning.measure.device import Device

Row = dict[str, Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """What is compared, and how; travels to the measuring process.

    Attributes:
        variants: own kernels by name.
        peers: peers by name, ``torch`` among them, in the order in which they are prepared.
        seed: of the random operands.
        gpu: CUDA index.
        policy: the measurement policy; a cold graph, chained or not.
    """

    variants: tuple[str, ...]
    peers: tuple[str, ...]
    settings: PeerSettings = field(default_factory=PeerSettings)
    seed: int = 0
    gpu: int = 0
    policy: MeasurePolicy = COLD

    @property
    def names(self) -> tuple[str, ...]:
        """All that get a row."""
        return (*self.variants, *self.peers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem, without bias, and the problem whose winner serves it if it has none of its own (its biased twin)."""

    problem: Problem
    tuned_as: Problem


@dataclass(frozen=True, slots=True)
class Fault:
    """The measuring process is lost, or must be given up.

    Attributes:
        name: who was at work, None where it cannot be told.
        failure: what happened.
    """

    name: str | None
    failure: Failure


class Absent:
    """A contender that is not run, with the reason for its row."""

    def __init__(self, name: str, failure: Failure) -> None:
        self.name, self.failure = name, failure
        self.facts: dict[str, Cell] = {}

    def prepare(self, workload: Workload, policy: MeasurePolicy) -> Prepared:
        """Raises the reason."""
        raise MeasureError(self.failure.status, self.failure.evidence)


@dataclass(frozen=True, slots=True)
class OwnContender:
    """An own variant with the config that decoding would run, and where that came from."""

    variant: Variant
    choice: lookup.Choice

    @property
    def name(self) -> str:
        """The variant's."""
        return self.variant.name

    @property
    def facts(self) -> Mapping[str, Cell]:
        """Config and its source: tuned, unvalidated or default."""
        return {"config": self.choice.config.key, "config_source": self.choice.source}

    def prepare(self, workload: Workload, policy: MeasurePolicy) -> Prepared:
        """Ready to be timed; raises what went wrong."""
        return workload.prepare(self.variant, self.choice.config, policy)


class Bench:
    """Measures problems on a device that stays open.

    Args:
        device: with a measured read bandwidth.
        settings: what is compared.
        ceilings: of the device, None to measure them.

    Raises:
        RoofgapError: a chained policy on a device without dependent launches.
    """

    def __init__(self, device: Device, settings: CompareSettings, ceilings: Ceilings | None = None) -> None:
        self.device, self.settings = device, settings
        if settings.policy.is_chained:
            require_dependent(device.name)
        self.gpu = gpu_name(device.name)
        self.peers = make_peers(settings.settings)
        self.ceilings = ceilings or Ceilings.of(device, settings.policy)

    def versions(self) -> dict[str, str]:
        """Of the driver, the toolchain and every peer that is here."""
        peers = {name: peer.version() for name, peer in self.peers.items() if name in self.settings.peers}
        return self.device.versions() | {name: version for name, version in peers.items() if version}

    def runnable(self, problem: Problem) -> tuple[str, ...]:
        """Names that would not be refused."""
        from roofgap.kernels.formats.weight import DTYPES

        dtype = DTYPES[problem.x_dtype]
        names = [name for name in self.settings.variants if get_variant(name).supports(problem) is None]
        for name in self.settings.peers:
            peer = self.peers.get(name)
            if peer is None or not (peer.refuses(problem) or peer.missing(peer.dtype_for(dtype))):
                names.append(name)
        return tuple(names)

    def measure(
        self, task: Task, banned: Mapping[str, Failure], say: Callable[[str], None] = lambda name: None
    ) -> list[Row] | Fault:
        """One row per name, all measured in turns.

        Args:
            task: what is computed.
            banned: contenders that cost a process on this problem before.
            say: told who is at work next.

        Returns:
            The rows, or the fault after which this process measures nothing any more.
        """
        problem, policy = task.problem, self.settings.policy
        begun = datetime.now(timezone.utc).isoformat(timespec="seconds")
        contenders = [self._contender(name, task, banned) for name in self.settings.names]
        try:
            workload = Workload(problem, self.device, self.settings.seed)
            ready: list[Prepared | Failure] = []
            for contender in contenders:
                say(contender.name)
                outcome = _tried(prepare(contender, workload, policy))
                if (
                    isinstance(outcome, Failure)
                    and outcome.status.poisons_worker
                    and contender.name not in banned
                ):
                    return Fault(contender.name, outcome)
                ready.append(outcome)
            say("all in turns")
            rows = time_in_turns(workload, contenders, ready, policy, self.ceilings)
        except Exception as error:
            return Fault(None, classify(error))
        return [self._finished(row, problem, begun) for row in rows]

    def close(self) -> None:
        """Ends what peers started."""
        for peer in self.peers.values():
            peer.close()

    def _contender(self, name: str, task: Task, banned: Mapping[str, Failure]) -> Timed:
        if name in banned:
            return Absent(name, banned[name])
        if name == TORCH:
            return Contender(None, None)
        if name in self.peers:
            return PeerContender(self.peers[name])
        return self._own(get_variant(name), task)

    def _own(self, variant: Variant, task: Task) -> Timed:
        try:
            refusal = variant.supports(task.problem)
            if refusal is not None:
                raise MeasureError(Status.UNSUPPORTED, refusal)
            limits = limits_of(self.device.torch_device)
            choose = lookup.choose_chained if self.settings.policy.is_chained else lookup.choose
            choices = [
                choose(variant, problem, self.gpu, limits=limits)
                for problem in dict.fromkeys((task.problem, task.tuned_as))
            ]
        except Exception as error:
            return Absent(variant.name, classify(error))
        return OwnContender(variant, next((c for c in choices if c.source != "default"), choices[0]))

    def _finished(self, row: Row, problem: Problem, begun: str) -> Row:
        """A row as result files hold it: ``floor_us`` is the roof; the time of an empty kernel has its own name."""
        own = {"launch_floor_us": row["floor_us"], "floor_us": row.pop("roof_us")}
        return {"problem": problem.key, **row, **own, "measured": begun}


def _tried(outcome: Prepared | Failure) -> Prepared | Failure:
    """One whole replay while it is clear who is at work: a fault is then that contender's."""
    if isinstance(outcome, Prepared):
        try:
            outcome.sample()
        except Exception as error:
            return classify(error)
    return outcome


def tasks_of(problems: Sequence[Problem]) -> list[Task]:
    """Peers add no bias: problems that differ in it are one."""
    tasks: dict[Problem, Task] = {}
    for problem in problems:
        plain = replace(problem, bias=False)
        if plain not in tasks or not problem.bias:
            tasks[plain] = Task(problem=plain, tuned_as=problem)
    return list(tasks.values())
