"""Opens GPUs for a tuning run and leaves nothing behind: workers, compilers, locks, the temporary Triton
cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from roofgap.kernels.variant import Variant
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.budget import Budget
from roofgap.tuning.compile import CompileFarm
from roofgap.tuning.environment import gpu_name, make_toolchain
from roofgap.tuning.gpu_runner import GpuRunner, Worker, limits_of, lock_path
from roofgap.tuning.measure.policy import COLD, MeasurePolicy
from roofgap.tuning.storage import exclusive
from roofgap.tuning.tune import TuneRequest
from roofgap.tuning.worker import Hello, Settings


@contextmanager
def open_gpus(
    indices: Sequence[int], budget: Budget, *, policy: MeasurePolicy, seed: int = 0, probe: bool = True
) -> Iterator[tuple[Hello, list[GpuRunner]]]:
    """Runners on GPUs of one model, each held by this process alone, and what the first of them is.

    Kernels are compiled into a Triton cache of this run, which is deleted at the end: a sweep leaves
    gigabytes.

    Raises:
        RoofgapError: no GPU, one of them is in use by another tuner, fails the sentinel, or is of another
            model.
    """
    require_gpu(indices)
    with ExitStack() as stack:
        cache = Path(tempfile.mkdtemp(prefix="roofgap-tune-"))
        stack.callback(shutil.rmtree, cache, ignore_errors=True)
        workers: list[Worker] = []
        hellos: list[Hello] = []
        for index in indices:
            settings = Settings(gpu=index, cache=str(cache), policy=policy, seed=seed, parent=os.getpid())
            worker = Worker(settings)
            stack.callback(worker.kill)
            hello = worker.start()
            if hellos and hello.name != hellos[0].name:
                raise RoofgapError(
                    f"GPU {index} ({hello.name})", f"is not a {hellos[0].name}", "tune each model by itself"
                )
            lock = lock_path(hello)
            stack.enter_context(
                exclusive(lock, f"GPU {index}", "wait for that tuner, or choose another --gpus")
            )
            workers.append(worker)
            hellos.append(hello)
        farm = CompileFarm(
            hellos[0].target, cache, timeout_s=budget.compile_timeout_s, chained=policy.is_chained
        )
        stack.callback(farm.close)
        yield hellos[0], [GpuRunner(worker, farm, budget, probe=probe) for worker in workers]


def make_request(
    variant: Variant,
    problems: Sequence[Problem],
    hello: Hello,
    strategy: str,
    budget: Budget,
    *,
    seed: int,
    policy: MeasurePolicy = COLD,
) -> TuneRequest:
    """The request to tune problems on the GPU that a worker holds."""
    return TuneRequest(
        variant=variant,
        problems=tuple(problems),
        gpu=gpu_name(hello.name),
        gpu_name=hello.name,
        toolchain=make_toolchain(hello.versions),
        limits=limits_of(hello),
        strategy=strategy,
        budget=budget,
        budget_text=budget.name,
        seed=seed,
        policy=policy.key,
    )


def require_gpu(indices: Sequence[int]) -> None:
    """Whether the wanted GPUs are there.

    Raises:
        RoofgapError: none is, or an index is too large.
    """
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not found:
        raise RoofgapError(
            "tuning",
            "needs a GPU that torch can use, and there is none",
            "search recorded sweeps with `roofgap tune --replay FILE`, or look at compiled code with "
            "`roofgap inspect`; neither needs a GPU",
        )
    missing = [index for index in indices if not 0 <= index < found]
    if missing or len(set(indices)) != len(indices):
        raise RoofgapError(
            f"--gpus {','.join(map(str, indices))}", f"must be different numbers below {found}", "correct it"
        )
