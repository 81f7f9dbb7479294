"""Candidates timed in turns inside one loop, for the comparisons that decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from roofgap.tuning.measure.failure import Failure, MeasureError
from roofgap.tuning.measure.measurement import plausible_gbps, warm_up
from roofgap.tuning.measure.op import Prepared
from roofgap.tuning.measure.stats import Spread


def measure_interleaved(
    candidates: Sequence[Prepared], rounds: int, *, seed: int = 0
) -> list[tuple[float, ...] | Failure]:
    """Samples candidates in turns, so that drift of clocks and temperature hits all alike.

    Rounds come in pairs, a random order and the same backwards, so that no candidate profits from its
    neighbour. A tainted round is repeated, up to the policy's limit in all; after that it counts.

    Args:
        candidates: prepared on one device under one policy.
        rounds: samples per candidate.
        seed: of the order.

    Returns:
        Per candidate its samples in microseconds, sample i of all from the same round (what ``stats.compare``
        wants), or the failure that took it out.
    """
    if not candidates:
        return []
    device, repeats = candidates[0].device, candidates[0].policy.taint_repeats
    failures: dict[int, Failure] = {}
    samples: list[list[float]] = [[] for _ in candidates]

    def attempt(index: int, work: Callable[..., float], *args: float) -> float | None:
        try:
            return work(candidates[index], *args)
        except MeasureError as error:
            failures[index] = error.failure
            return None

    for index in range(len(candidates)):
        attempt(index, warm_up)
    random, order = Random(seed), list(range(len(candidates)))
    before = device.state()
    for turn in range(rounds):
        if turn % 2:
            order.reverse()
        else:
            random.shuffle(order)
        while True:
            reading = {index: attempt(index, Prepared.sample) for index in order if index not in failures}
            after = device.state()
            taints, before = device.watch.taints(before, after), after
            if not taints or repeats == 0:
                break
            repeats -= 1
        for index, sample in reading.items():
            if sample is not None:
                samples[index].append(sample)
    for index, taken in enumerate(samples):
        if index not in failures:
            attempt(index, plausible_gbps, Spread.of(taken).p50)
    return [failures.get(index, tuple(taken)) for index, taken in enumerate(samples)]
