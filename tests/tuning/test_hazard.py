"""Triton's autotuner and an accumulating kernel: the corruption, its size, and that this tuner is not fooled by it.

Without a GPU the same autotuner and the same kernel run in Triton's interpreter, with a benchmark that repeats as often
as it is told to.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hazard_kernels import CONFIGS, Accumulating, Autotuned, DirtyConfig

from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.failure import Failure
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.measurement import Measurement
from roofgap.tuning.measure.policy import MeasurePolicy
from roofgap.tuning.measure.workload import Workload, measure_variant
from roofgap.tuning.status import Status

N, K, REPETITIONS = 64, 128, 5


def product(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.rand(K, generator=generator), torch.rand(N, K, generator=generator)
    return x.to(device), w.to(device), (w.double() @ x.double()).float().to(device)


def repeats(call: Callable[[], object]) -> list[float]:
    for _ in range(REPETITIONS):
        call()
    return [1.0, 1.0, 1.0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="covered by the test on the GPU")
def test_the_first_tuned_call_returns_the_sum_of_every_repetition():
    x, w, right = product("cpu")
    tuned = Autotuned(repeats)
    first = tuned(x, w)
    assert tuned.repetitions == REPETITIONS * len(CONFIGS)
    assert torch.allclose(first, right * (tuned.repetitions + 1), rtol=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="covered by the test on the GPU")
def test_reset_to_zero_hides_it_in_the_caller():
    """The remedy works for this call, but it is no part of the op: a config taken from the tuner has lost it."""
    x, w, right = product("cpu")
    assert torch.allclose(Autotuned(repeats, reset=True)(x, w), right, rtol=1e-4)


@pytest.mark.gpu
def test_on_the_gpu_hundreds_of_stale_sums():
    x, w, right = product("cuda")
    tuned = Autotuned()
    first = tuned(x, w)
    torch.cuda.synchronize()
    factor = float((first / right).median())
    print(f"{tuned.repetitions} timed repetitions, the first result is {factor:.1f} times the product")
    assert tuned.repetitions > 50
    assert factor == pytest.approx(tuned.repetitions + 1, rel=1e-3)


PROBLEM = Problem(n=64, k=128)
POLICY = MeasurePolicy(min_launches=3, max_launches=3, replays=2, warmup_window=1, warmup_limit=2)


def device() -> object:
    if torch.cuda.is_available():
        from roofgap.tuning.measure.bandwidth import open_device

        return open_device()
    return ScriptedDevice()


@pytest.mark.parametrize("zeroed", [False, True])
def test_this_tuner_is_not_fooled(zeroed: bool, monkeypatch):
    """Every repetition has a fresh, poisoned output, and each one is compared: adding to it cannot look right."""
    on = device()
    if isinstance(on, ScriptedDevice):  # the interpreter takes no device time
        real = on.elapsed_us
        monkeypatch.setattr(on, "elapsed_us", lambda work, queued: (real(work, queued=queued) or 0.0) + 3.0)
    variant = Accumulating()
    config = DirtyConfig(block_n=32, block_k=64, num_warps=1, zeroed=zeroed)
    outcome = measure_variant(Workload(PROBLEM, on), variant, config, POLICY)  # type: ignore[arg-type]
    if zeroed:
        assert isinstance(outcome, Measurement), outcome
        assert outcome.rel_error < 1e-2
    else:
        assert isinstance(outcome, Failure)
        assert outcome.status is Status.WRONG
