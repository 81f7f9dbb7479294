"""Worker processes without a GPU: they answer, crash, hang and fault as the config says."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import Any

from tuning_toys import rugged

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.static.processes import die_with_parent
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.status import Status
from roofgap.tuning.worker import Hello, Reading, Settings

HELLO = Hello(
    name="NVIDIA H200",
    uuid="GPU-0",
    versions={},
    target=("cuda", 90, 32),
    sm_count=132,
    shared_bytes=1 << 17,
    warp_size=32,
    max_cluster=8,
    read_gbps=4000.0,
)


def acting_worker(pipe: Any, settings: Settings) -> None:
    """Answers like ``worker.serve``; ``num_stages`` of a config says how it fails. ``settings.cache`` is a log."""
    faulthandler.disable()  # a crash on purpose need not be explained on stderr
    os.setpgid(0, 0)
    die_with_parent(settings.parent)
    log = Path(settings.cache)

    def act(config: KernelConfig | None) -> Reading:
        with log.open("a") as file:
            file.write(f"{os.getpid()} {config.key if config else '@torch'}\n")
        if config is None:
            return Reading(status=Status.OK, latency_us=9.0)
        if config.num_stages == 2 and config.num_warps == 8:
            os.kill(os.getpid(), signal.SIGSEGV)
        if config.num_stages == 2 and config.num_warps == 2:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        if config.num_stages == 2 and config.num_warps == 1:
            return Reading(status=Status.ILLEGAL_ACCESS, evidence="an illegal memory access was encountered")
        time_us = rugged(config)
        return Reading(status=Status.OK, latency_us=time_us, p20_us=time_us, p80_us=time_us, rel_error=1e-4)

    while True:
        try:
            operation, arguments = pipe.recv()
        except EOFError:
            return
        if operation == "hello":
            pipe.send(HELLO)
        elif operation == "problem":
            pipe.send(None)
        elif operation == "attainable":
            pipe.send((1.0, 2.0))
        elif operation == "trial":
            pipe.send(act(arguments[0]))
        else:
            pipe.send([act(config) for _, config in arguments[0]])


def broken_worker(pipe: Any, settings: Settings) -> None:
    pipe.recv()
    pipe.send(RoofgapError("GPU", "computes 256 ones to something else", "take it out of service"))
    pipe.recv()
