"""Peers without a GPU: dense products that return their output or fill a given one, and ways to do it wrong."""

from __future__ import annotations

import torch

from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.reference import Reference, reference
from roofgap.shapes.problem import Problem
from roofgap.tuning.peers.peer import NOT_TUNED, Packed, Peer, Tuned


class ToyPeer(Peer):
    """y = x W^T in fp32, rounded once."""

    needs_gpu = False

    def __init__(
        self, name: str = "toy", *, takes_out: bool = False, fault: str = "", tuned: Tuned = NOT_TUNED
    ) -> None:
        self.name, self.takes_out, self.fault, self.tuned = name, takes_out, fault, tuned  # type: ignore[misc]
        self.kept: dict[int, torch.Tensor] = {}
        self.one: torch.Tensor | None = None

    def missing(self, dtype: torch.dtype) -> str | None:
        return "toys are not installed" if self.fault == "missing" else None

    def refuses(self, problem: Problem) -> str | None:
        return "toys take no such N" if self.fault == "refuses" else None

    def pack(self, weight: QuantizedWeight, dtype: torch.dtype) -> Packed:
        dense = weight.dequantise(dtype)
        if self.fault == "wrong group":
            dense = dense.roll(weight.group, dims=1)
        return Packed(
            n=weight.n,
            k=weight.k,
            group_size=weight.group_size,
            dtype=dtype,
            read={"dense": dense},
        )

    def tune(self, x: torch.Tensor, packed: Packed) -> Tuned:
        return self.tuned

    def run(self, x: torch.Tensor, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        if self.fault == "raises":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        dense = packed.read["dense"]
        y = (x.float() @ dense.float().T).to(x.dtype)
        if out is not None:
            return out if self.fault == "unwritten" else out.copy_(y)
        place = dense.data_ptr()
        if self.fault == "unwritten" and place in self.kept:
            return self.kept[place]
        if self.fault == "one buffer":
            self.one = y if self.one is None else self.one.copy_(y)
            return self.one
        if self.fault == "shape":
            return y[..., :-1].contiguous()
        self.kept[place] = y
        return y

    def reference(self, x: torch.Tensor, weight: QuantizedWeight, packed: Packed, tuned: Tuned) -> Reference:
        return reference(x, weight)


def acting(pipe, settings, parent: int) -> None:
    """A measuring process that does what the seed says when it is asked to measure without having banned ``marlin``."""
    import os
    import time

    from roofgap.tuning.measure.failure import Failure
    from roofgap.tuning.peers.compare import Fault
    from roofgap.tuning.peers.worker import Hello
    from roofgap.tuning.status import Status

    if settings.seed == 99:
        pipe.send(("GPU 7", "is not there", "choose another"))
        return
    pipe.send(Hello(gpu="toy", device="Toy", versions={}, read_gbps=1.0))
    while True:
        try:
            kind, *arguments = pipe.recv()
        except EOFError:
            return
        if kind == "runnable":
            pipe.send(settings.names)
            continue
        task, banned = arguments
        pipe.send("torch")
        if "marlin" not in banned:
            pipe.send("marlin")
            if settings.seed == 1:
                os._exit(3)
            if settings.seed == 2:
                time.sleep(60)
            if settings.seed == 3:
                failure = Failure(status=Status.ILLEGAL_ACCESS, evidence="an illegal memory access")
                pipe.send(Fault("marlin", failure))
                return
        rows = []
        for name in settings.names:
            failed = banned.get(name)
            row = {"problem": task.problem.key, "variant": name, "pid": os.getpid()}
            row |= {"status": failed.status.value if failed else "ok", "latency_us": None if failed else 2.0}
            row |= {"evidence": failed.evidence} if failed else {}
            rows.append(row)
        pipe.send(rows)
