"""Rows of a comparison: ratios that count, means, resuming, processes that are lost."""

from __future__ import annotations

import pytest
from peer_toys import acting

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning.measure.failure import Failure
from roofgap.tuning.peers.compare import CompareSettings, Fault, Row, Task, tasks_of
from roofgap.tuning.peers.registry import PEER_NAMES, REQUIRED
from roofgap.tuning.peers.rows import (
    BEST_OWN,
    is_measured,
    measure_task,
    merged,
    summary,
    with_ratios,
)
from roofgap.tuning.peers.worker import Worker
from roofgap.tuning.status import Status

PROBLEM = Problem(n=64, k=256)


def row(variant: str, latency_us: float | None, problem: Problem = PROBLEM, **cells) -> Row:
    status = "ok" if latency_us else "unsupported"
    fixed = {"n": problem.n, "k": problem.k, "m": problem.m, "dtype": problem.x_dtype, "group_size": 128}
    return {
        "problem": problem.key,
        "variant": variant,
        "status": status,
        "latency_us": latency_us,
        **fixed,
        **cells,
    }


def full(own: dict[str, float], best: float, problem: Problem = PROBLEM) -> list[Row]:
    peers = [row(name, best + place, problem) for place, name in enumerate(REQUIRED)]
    return [*(row(name, us, problem, attainable_gap=us / 2) for name, us in own.items()), *peers]


def test_a_ratio_counts_where_every_required_peer_was_timed() -> None:
    rows = with_ratios(full({"v4": 2.0}, 3.0))
    assert (rows[0]["best_peer"], rows[0]["best_peer_us"], rows[0]["best_peer_ratio"]) == ("torch", 3.0, 1.5)
    assert all(one["ratio_counts"] and one["ratio_reason"] is None for one in rows)


@pytest.mark.parametrize("name", REQUIRED)
def test_it_does_not_count_without_one_of_them(name: str) -> None:
    rows = [one for one in full({"v4": 2.0}, 3.0) if one["variant"] != name]
    for held, said in ((rows, "not run"), ([*rows, row(name, None)], "unsupported")):
        found = with_ratios(held)
        assert not any(one["ratio_counts"] for one in found)
        assert found[0]["ratio_reason"] == f"{name} {said}"
        assert found[0]["best_peer_ratio"] is not None, "it is shown all the same"


def test_means_are_geometric_and_take_the_counted_alone() -> None:
    other, third = Problem(n=128, k=256), Problem(n=256, k=256)
    rows = with_ratios(full({"v3": 4.0, "v4": 2.0}, 4.0))
    rows += with_ratios(full({"v3": 1.0, "v4": 2.0}, 2.0, other))
    rows += with_ratios(full({"v3": 1.0, "v4": 1.0}, 9.0, third)[:-1])
    means = {mean["variant"]: mean for mean in summary(rows)}
    assert list(means) == [BEST_OWN, "v3", "v4"]
    assert means["v4"]["best_peer_ratio"] == pytest.approx(2**0.5)
    assert means["v3"]["best_peer_ratio"] == pytest.approx(2**0.5)
    assert means[BEST_OWN]["best_peer_ratio"] == pytest.approx(2.0)
    assert means["v3"]["least_ratio"] == 1.0
    assert means["v4"]["attainable_gap"] == 1.0
    assert all(mean["shapes"] == 2 for mean in means.values())


def test_resuming_keeps_what_is_measured() -> None:
    held = [row("v4", 2.0), row("marlin", None)]
    names = ("v4", "marlin")
    assert is_measured(held, PROBLEM, names, runnable=("v4",))
    assert not is_measured(held, PROBLEM, names, runnable=("v4", "marlin")), "it can be run by now"
    assert not is_measured(held, PROBLEM, (*names, "v3"), runnable=("v4",))
    assert not is_measured(held, Problem(n=64, k=256, m=4), names, runnable=("v4",))


def test_merging_replaces_by_variant_and_problem() -> None:
    other = Problem(n=64, k=256, m=4)
    old = [row("v4", 2.0), row("v4", 9.0, other), row("v2", 7.0)]
    new = [row("v4", 1.0), row("v3", 3.0)]
    found = merged(old, new)
    assert [(one["variant"], one["latency_us"]) for one in found] == [
        ("v4", 1.0),
        ("v4", 9.0),
        ("v2", 7.0),
        ("v3", 3.0),
    ]


def test_problems_that_differ_in_bias_are_one() -> None:
    biased, plain = Problem(n=64, k=256, bias=True), Problem(n=64, k=256)
    assert tasks_of([biased]) == [Task(problem=plain, tuned_as=biased)]
    assert tasks_of([biased, plain]) == tasks_of([plain, biased]) == [Task(problem=plain, tuned_as=plain)]


@pytest.mark.parametrize(
    ("seed", "status", "words"),
    [
        (1, "crash", "exit code 3"),
        (2, "timeout", "not done after 4 s"),
        (3, "illegal_access", "illegal memory"),
    ],
)
def test_a_lost_process_costs_one_row(seed: int, status: str, words: str) -> None:
    settings = CompareSettings(variants=("v4",), peers=PEER_NAMES, seed=seed)
    worker, task = Worker(settings, 4.0, acting), Task(problem=PROBLEM, tuned_as=PROBLEM)
    try:
        assert worker.hello().gpu == "toy"
        rows = measure_task(worker, task, settings.names)
    finally:
        worker.close()
    assert {one["variant"]: one["status"] for one in rows} == {
        name: status if name == "marlin" else "ok" for name in settings.names
    }
    assert rows[0]["ratio_reason"] == f"marlin {status}"
    evidence = {one["variant"]: one.get("evidence") for one in rows}
    assert words in str(evidence["marlin"])


def test_a_fault_of_nobody_fails_the_problem_alone() -> None:
    class Lost:
        def runnable(self, problem: Problem) -> tuple[str, ...]:
            return ()

        def measure(self, task: Task, banned) -> Fault:
            return Fault(None, Failure(status=Status.OUT_OF_MEMORY, evidence="no memory"))

    rows = measure_task(Lost(), Task(problem=PROBLEM, tuned_as=PROBLEM), ("v4", "torch"))
    assert [(one["variant"], one["status"], one["n"]) for one in rows] == [
        ("v4", "out_of_memory", 64),
        ("torch", "out_of_memory", 64),
    ]
    assert not rows[0]["ratio_counts"]


def test_a_gpu_that_cannot_be_opened_is_the_one_error() -> None:
    worker = Worker(CompareSettings(variants=(), peers=("torch",), seed=99), 4.0, acting)
    with pytest.raises(RoofgapError, match="GPU 7: is not there"):
        worker.hello()
