"""Compiles what GemLite's tuner will try, on many cores, before it tries them one after the other.

Children import GemLite under a driver that only knows its target, run its own forward on memory that is never
touched, take down what it would launch, and run Triton's launch path up to the binary (``warmup=True``). The cache
keys are those of the real launches, so that the tuner finds every binary on disk. What is tried, and how it is
timed, stays GemLite's.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import torch

from roofgap.tuning.compile import start_child
from roofgap.tuning.peers.peer import Packed

MODULES = ("gemv_revsplitK_kernels", "gemm_splitK_kernels", "gemm_kernels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of ``forward_functional``: shapes and dtypes of its tensors and its integers."""

    x: tuple[tuple[int, ...], torch.dtype]
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    meta: tuple[int, ...]

    @classmethod
    def of(cls, x: torch.Tensor, packed: Packed) -> Call:
        """The call on a packed weight."""
        tensors = (*packed.read.values(), packed.shared["meta_scale"])
        return cls(
            x=(tuple(x.shape), x.dtype),
            tensors=tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors),
            meta=tuple(packed.shared["meta"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What GemLite asks of a GPU when it is imported and when it prunes configs."""

    name: str
    capability: tuple[int, int]
    multi_processor_count: int
    max_shared_mem: int


class Ahead:
    """A pool of compiling processes; starting it takes seconds, so it is kept for a whole run.

    Args:
        device: the GPU that will tune.
        setting: of GemLite's tuner, None for the one it comes with.
        workers: processes.
    """

    def __init__(self, device: torch.device, setting: str | None, workers: int) -> None:
        from triton import knobs
        from triton.runtime import driver

        target = driver.active.get_current_target()
        properties = torch.cuda.get_device_properties(device)
        gpu = Gpu(
            name=properties.name,
            capability=(properties.major, properties.minor),
            multi_processor_count=properties.multi_processor_count,
            max_shared_mem=driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"],
        )
        self._logs = tempfile.TemporaryDirectory(prefix="roofgap-gemlite-")
        self._workers = workers
        known = (target.backend, target.arch, target.warp_size)
        self._pool = ProcessPoolExecutor(
            max_workers=workers,
            mp_context=get_context("spawn"),
            initializer=start,
            initargs=(known, knobs.cache.dir, self._logs.name, os.getpid(), gpu, setting),
        )

    def compile(self, call: Call) -> int:
        """Compiles all configs of a call, each in one of the children; returns how many were compiled."""
        shares = [self._pool.submit(compile_share, call, i, self._workers) for i in range(self._workers)]
        return sum(share.result() for share in shares)

    def close(self) -> None:
        """Ends the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with suppress(OSError):
            self._logs.cleanup()


def start(
    target: tuple[str, int | str, int], cache: str, logs: str, parent: int, gpu: Gpu, setting: str | None
) -> None:
    """Runs first in a child. GemLite asks torch for the GPU as soon as it is imported, hence the answers here."""
    start_child(target, cache, logs, parent)
    from triton.runtime import driver

    known = driver.active
    known.utils = SimpleNamespace(get_device_properties=lambda index: {"max_shared_mem": gpu.max_shared_mem})
    torch.cuda.get_device_properties = lambda *device: gpu  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *device: gpu.capability
    from importlib import import_module

    core = import_module("gemlite.core")
    if setting is not None:
        core.GemLiteLinearTriton.reset_config()
        import_module("gemlite.triton_kernels.config").set_autotune(setting)


def compile_share(call: Call, index: int, shares: int) -> int:
    """Compiles every ``shares``-th config from ``index`` on. One that does not compile is the tuner's to report."""
    done = 0
    for kernel, grid, args, kwargs in launches(call):
        kernel.nargs = dict(zip(kernel.arg_names, args, strict=False))
        for config in kernel.prune_configs(kwargs)[index::shares]:
            with suppress(Exception):
                kernel.fn.run(*args, grid=grid, warmup=True, **kwargs, **config.all_kwargs())
                done += 1
    return done


class _Recorder:
    """Stands in for an autotuned kernel: takes its launch down."""

    def __init__(self, kernel: Any, into: list[tuple[Any, ...]]) -> None:
        self.kernel, self._into = kernel, into

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self._into.append((self.kernel, grid, args, kwargs))


def launches(call: Call) -> list[tuple[Any, ...]]:
    """(autotuned kernel, grid, args, kwargs) of what GemLite launches for a call; nothing is launched."""
    from importlib import import_module

    from triton.runtime.autotuner import Autotuner

    core = import_module("gemlite.core")
    found: list[tuple[Any, ...]] = []
    replaced = []
    for name in MODULES:
        module = import_module(f"gemlite.triton_kernels.{name}")
        for key, value in list(vars(module).items()):
            if isinstance(value, Autotuner):
                replaced.append((module, key, value))
                setattr(module, key, _Recorder(value, found))
    try:
        # Never touched, so it takes no memory; on the CPU because GemLite's op would not run its body on meta tensors.
        x, *tensors = (torch.empty(shape, dtype=dtype) for shape, dtype in (call.x, *call.tensors))
        core.forward_functional(x, None, tensors, list(call.meta))
    finally:
        for module, key, value in replaced:
            setattr(module, key, value)
    return found
