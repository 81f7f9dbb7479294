"""A peer on a workload: packed, tuned, copied for a cold L2, captured, checked against its own weights."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

from roofgap.kernels.formats.weight import DTYPE_NAMES
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.measure.failure import MeasureError
from roofgap.tuning.measure.op import Instance, Prepared, prepare
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.workload import Workload
from roofgap.tuning.peers.peer import Packed, Peer
from roofgap.tuning.peers.returned import Call, prepare_returning
from roofgap.tuning.results import Cell
from roofgap.tuning.status import Status


@dataclass(frozen=True, slots=True)
class PeerContender:
    """Implements ``bench.Timed``."""

    peer: Peer
    facts: dict[str, Cell] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The peer's."""
        return self.peer.name

    def prepare(self, workload: Workload, policy: MeasurePolicy) -> Prepared:
        """As ``Workload.prepare`` for own kernels; the reference is the product with the peer's own weights.

        Raises:
            RoofgapError: the peer is missing here or does not compute the problem.
            MeasureError: a wrong output, or a graph that holds no work.
        """
        peer, problem = self.peer, workload.problem
        dtype = peer.dtype_for(workload.dtype)
        self.facts["dtype"] = DTYPE_NAMES[dtype]
        reason = peer.refuses(problem) or peer.missing(dtype)
        if reason is not None:
            raise MeasureError(Status.UNSUPPORTED, reason)
        if problem.bias:
            raise RoofgapError(problem.key, "has a bias, which peers are not given", "compare without a bias")
        x = workload.x.to(dtype)
        packed = peer.pack(workload.weight, dtype)
        tuned = peer.tune(x, packed)
        self.facts.update(config=tuned.config, tuning_s=round(tuned.seconds, 2) or None)
        shape = (problem.m, problem.n)
        held_bytes = packed.nbytes + problem.m * problem.n * dtype.itemsize
        launches = workload.launches(policy, packed.nbytes, held_bytes, 1)
        copies = [packed, *(packed.clone() for _ in range(launches - 1 if policy.is_cold else 0))]

        def copy_of(index: int) -> Packed:
            return copies[index if policy.is_cold else 0]

        judged = copy(workload)  # its tolerance policy, on the peer's own reference
        judged.reference = peer.reference(x, workload.weight, packed, tuned)
        check = judged.check(rounds_weights=True)
        label = f"{peer.name} {problem.key}"
        if peer.takes_out:
            return prepare(
                lambda index, out: Instance(lambda: peer.run(x, copy_of(index), out)),
                label=label,
                device=workload.device,
                policy=policy,
                launches=launches,
                read_bytes=packed.nbytes,
                shape=shape,
                dtype=dtype,
                check=check,
            )

        def call(index: int) -> Call:
            return lambda: peer.run(x, copy_of(index))

        return prepare_returning(
            [call(index) for index in range(launches)],
            label=label,
            device=workload.device,
            policy=policy,
            read_bytes=packed.nbytes,
            shape=shape,
            dtype=dtype,
            check=check,
        )
