"""The compiling processes, without a GPU: what they return for good and for bad configs, and that they die
when told.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_kernels import EXPECTED, FAULTY, FaultyConfig

from roofgap.kernels.registry import get_variant
from roofgap.kernels.static.processes import die_with_parent
from roofgap.kernels.variant import Limits
from roofgap.shapes.problem import Problem
from roofgap.tuning import compile as compiling
from roofgap.tuning.compile import Compiled, CompileFarm, compile_config, exit_text
from roofgap.tuning.status import Status

PROBLEM = Problem(n=256, k=512)
COMPILE_TIME = {"ok", "compile_error", "compile_crash", "compile_timeout", "error"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled]:
    """Every faulty config and a few of v2, through one farm."""
    farm = CompileFarm(("cuda", 90, 32), tmp_path_factory.mktemp("cache"), workers=2, timeout_s=12.0)
    try:
        results = {c.key: r for c, r in farm.compile(FAULTY, PROBLEM, list(FAULTY.configs(PROBLEM)))}
        v2 = get_variant("v2")
        configs = list(v2.configs(PROBLEM, Limits()))[:4]
        results |= {f"v2 {c.key}": r for c, r in farm.compile(v2, PROBLEM, configs)}
    finally:
        farm.close()
    return results


@pytest.mark.parametrize("chained", [False, True])
def test_a_chained_config_is_compiled_as_it_will_be_launched(
    monkeypatch: pytest.MonkeyPatch, chained: bool
) -> None:
    class Fake:
        def __init__(self, can_depend: bool) -> None:
            self.can_depend, self.depends = can_depend, False

        def dependent(self) -> Fake:
            found = Fake(True)
            found.depends = True
            return found

    seen: list[bool] = []
    monkeypatch.setattr(os, "ftruncate", lambda handle, size: None)
    planned = [Fake(True), Fake(False)]
    monkeypatch.setattr("roofgap.kernels.static.compile.plan_on_meta", lambda *_: (planned, [], None))

    def compiled_now(launches: list[Fake]) -> Compiled:
        seen.extend(launch.depends for launch in launches)
        return Compiled()

    monkeypatch.setattr(compiling, "_compile", compiled_now)
    variant = get_variant("v2")
    assert compile_config(variant, PROBLEM, variant.default_config(PROBLEM), chained).status is Status.OK
    assert seen == [chained, False]


@pytest.mark.parametrize("key", list(EXPECTED))
def test_each_fault_has_its_name(compiled: dict[str, Compiled], key: str):
    expected = EXPECTED[key] if EXPECTED[key] in COMPILE_TIME else "ok"
    assert compiled[key].status.value == expected, compiled[key].evidence
    assert (compiled[key].evidence is None) == (expected == "ok")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("static_assert", "refused on purpose"),
        ("ptxas", "not_an_instruction"),
        ("llvm_abort", "SIGABRT"),
        ("compile_hang", "not done after 12 s"),
        ("plan_error", "no such field"),
    ],
)
def test_the_evidence_says_what_happened(compiled: dict[str, Compiled], fault: str, said: str):
    evidence = compiled[FaultyConfig(block_n=32, block_k=128, fault=fault).key].evidence
    assert evidence is not None and said in evidence


def test_good_configs_have_figures_and_hashes_of_their_own(compiled: dict[str, Compiled]):
    good = [result for key, result in compiled.items() if key.startswith("v2 ")]
    assert len(good) == 4
    for result in good:
        assert result.status is Status.OK and result.spill_bytes == 0
        assert result.registers and result.registers > 8


def test_equal_code_has_equal_hashes(tmp_path: Path):
    """With one slice there is nothing to reduce: two names, one machine code. Other integers are another
    launch.
    """
    v3 = get_variant("v3")
    configs = [
        v3.config_type.parse(f"num_warps=4,num_stages=1,block_n=64,block_k=64,split_k=1,reduce={name}")
        for name in ("atomic", "partials")
    ]
    farm = CompileFarm(("cuda", 90, 32), tmp_path, workers=1, timeout_s=60.0)
    try:
        hashes = [r.code_hash for _, r in farm.compile(v3, PROBLEM, configs)]
        (_, other), *_ = farm.compile(v3, Problem(n=256, k=1024), configs[:1])
    finally:
        farm.close()
    assert hashes[0] == hashes[1] is not None
    assert other.code_hash != hashes[0]


@pytest.mark.usefixtures("busy_reader")
def test_a_crash_is_that_of_its_own_config(tmp_path: Path):
    """Workers crash the moment after they answered another config, over and over."""
    base = FAULTY.default_config(PROBLEM)
    configs = [
        replace(base, num_stages=1 + number, fault="llvm_abort" if number % 4 == 3 else "plan_error")
        for number in range(48)
    ]
    farm = CompileFarm(("cuda", 90, 32), tmp_path, workers=4, timeout_s=20.0)
    try:
        found = {config.key: result for config, result in farm.compile(FAULTY, PROBLEM, configs)}
    finally:
        farm.close()
    said = {config.key: EXPECTED[replace(base, fault=config.fault).key] for config in configs}
    assert {key: result.status.value for key, result in found.items()} == said


def test_a_farm_left_or_closed_leaves_nothing(tmp_path: Path):
    threads = set(threading.enumerate())
    children = {child.pid for child in multiprocessing.active_children()}
    good = replace(FAULTY.default_config(PROBLEM), fault="plan_error")
    hung = [replace(good, num_stages=stages, fault="compile_hang") for stages in (1, 2, 3)]
    with ThreadPoolExecutor(1) as waiter:
        farm = CompileFarm(("cuda", 90, 32), tmp_path, workers=2, timeout_s=3600.0)
        try:
            begun = farm.compile(FAULTY, PROBLEM, [good, *hung])
            assert next(begun)[1].status is Status.ERROR
            begun.close()  # type: ignore[attr-defined]
            after = waiter.submit(lambda: dict(farm.compile(FAULTY, PROBLEM, [good])))
            assert after.result(timeout=120)[good].status is Status.ERROR
            closed = waiter.submit(lambda: dict(farm.compile(FAULTY, PROBLEM, hung)))
            assert not wait([closed], timeout=1.0).done
        finally:
            farm.close()
        with pytest.raises(CancelledError):
            closed.result(timeout=120)
    assert set(threading.enumerate()) <= threads
    assert {child.pid for child in multiprocessing.active_children()} <= children


def _orphan(pipe) -> None:
    child = multiprocessing.get_context("fork").Process(target=_wait, args=(os.getpid(),))
    child.start()
    pipe.send(child.pid)
    time.sleep(60)


def _wait(parent: int) -> None:
    die_with_parent(parent)
    time.sleep(60)


def test_children_die_with_a_killed_parent():
    ours, theirs = multiprocessing.Pipe()
    parent = multiprocessing.get_context("fork").Process(target=_orphan, args=(theirs,))
    parent.start()
    child = ours.recv()
    time.sleep(0.2)
    assert parent.pid is not None
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    for _ in range(100):
        try:
            if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
                break
        except FileNotFoundError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child outlived its parent")


@pytest.mark.parametrize(
    ("code", "text"),
    [(-9, "signal 9 (SIGKILL)"), (3, "exit code 3"), (None, "exit code None"), (-99, "signal 99")],
)
def test_exit_codes_are_readable(code: int | None, text: str):
    assert exit_text(code) == text
