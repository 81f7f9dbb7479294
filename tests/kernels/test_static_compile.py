"""Kernels compiled for GPUs that are not here, in workers that outlive a crash."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roofgap.kernels.registry import VARIANTS
from roofgap.kernels.static.metrics import CompileFailure, StaticMetrics
from roofgap.kernels.static.pool import CompilePool, failure_error, inspect_variant, request_for
from roofgap.kernels.static.targets import TARGETS, load_target
from roofgap.kernels.static.worker import InspectRequest
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

sys.path.insert(0, str(Path(__file__).parent))  # workers inherit it and import the toys by name
import static_toys as toys

PROBLEM = Problem(n=4096, k=4096)
GEMV = Problem(n=8960, k=1536)


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilePool]:
    with CompilePool(workers=2) as opened:
        yield opened


def ask(toy: Any, target: str = "sm_86", **config: int) -> InspectRequest:
    return request_for(toy(), PROBLEM, load_target(target), toys.ToyConfig(**config))


@pytest.fixture(scope="module")
def measured(pool: CompilePool) -> dict[str, StaticMetrics]:
    requests = {
        "stream": ask(toys.Toy),
        "staged": ask(toys.Toy, num_stages=3),
        "wide": ask(toys.Toy, num_warps=8),
        "amd": ask(toys.Toy, "gfx942"),
        "reload": ask(toys.Reload),
        "hungry": ask(toys.Hungry, num_warps=1, block_w=128, maxnreg=32),
    }
    return dict(zip(requests, pool.inspect(requests.values()), strict=True))  # type: ignore[arg-type]


def test_counts_worked_out_by_hand(measured: dict[str, StaticMetrics]) -> None:
    """A tile of 16 x 64 words is 8,192 weights. 128 threads hold 8 words each: two 128-bit loads; 16 x 4
    scales: one 16-bit load, on the same source line. Eight integer adds of words, one conversion and one
        float add of a scale."""
    stream = measured["stream"]
    assert stream.instructions_per_weight is not None and stream.weights_per_iteration is not None
    unrolled, rest = divmod(stream.weights_per_iteration, 8192)
    assert rest == 0 and unrolled >= 1
    per_trip = {
        kind: count * stream.weights_per_iteration / 128 / unrolled
        for kind, count in stream.instructions_per_weight.items()
    }
    assert per_trip["load_global"] == 3
    assert per_trip["convert"] == 1
    assert per_trip["fma"] == 1
    assert per_trip["store_global"] == per_trip["atomics"] == per_trip["tensor"] == per_trip["spill"] == 0
    assert 8 / 2 <= per_trip["alu"] <= 30  # IADD3 adds two words at once; the rest are addresses
    assert stream.instructions_in_loop == pytest.approx(per_trip["total"] * unrolled)
    classes = {kind: count for kind, count in stream.instructions_per_weight.items() if kind != "total"}
    assert sum(classes.values()) == pytest.approx(stream.instructions_per_weight["total"])
    assert stream.weight_load_bits == 128
    assert stream.loads_per_word == 1
    assert stream.weight_passes == 1
    assert stream.grid == (256,)
    assert (stream.registers, stream.spill_bytes) == (pytest.approx(40, abs=24), 0)
    assert stream.notes == ()


def test_amd_counts_worked_out_by_hand(measured: dict[str, StaticMetrics]) -> None:
    """256 threads hold 4 words each: one 128-bit load, one scale load, four adds, one conversion, one float
    add."""
    amd = measured["amd"]
    assert amd.instructions_per_weight is not None and amd.weights_per_iteration is not None
    per_trip = {kind: count * 8192 / 256 for kind, count in amd.instructions_per_weight.items()}
    assert amd.weights_per_iteration % 8192 == 0
    assert (per_trip["load_global"], per_trip["convert"], per_trip["fma"]) == (2, 1, 1)
    assert 4 <= per_trip["alu"] <= 20
    assert amd.weight_load_bits == 128
    assert amd.occupancy == 1.0


def test_reloading_a_word_shows(measured: dict[str, StaticMetrics]) -> None:
    reload = measured["reload"]
    assert reload.loads_per_word == 8
    assert reload.weight_passes == 1
    assert reload.weights_per_iteration == 8192
    assert reload.instructions_per_weight is not None
    assert reload.instructions_per_weight["load_global"] == 1.0  # a 32-bit load for each weight


def test_spills_show(measured: dict[str, StaticMetrics]) -> None:
    hungry = measured["hungry"]
    assert hungry.registers <= 32
    assert hungry.spill_bytes > 100
    assert hungry.instructions_per_weight is not None and hungry.instructions_per_weight["spill"] > 0


def test_equal_code_has_an_equal_hash(measured: dict[str, StaticMetrics], pool: CompilePool) -> None:
    stream, staged, wide = (measured[name] for name in ("stream", "staged", "wide"))
    assert stream.config != staged.config
    assert (
        stream.machine_code_hash == staged.machine_code_hash
    )  # a loop without tl.dot or cp.async ignores stages
    assert stream.machine_code_hash != wide.machine_code_hash
    (other,) = pool.inspect(
        [request_for(toys.Toy(), Problem(n=2048, k=4096), load_target("sm_86"), toys.ToyConfig())]
    )
    assert isinstance(other, StaticMetrics)
    assert other.code_hash == stream.code_hash
    assert other.machine_code_hash != stream.machine_code_hash  # another grid


def test_line_tracking_does_not_change_the_code(
    measured: dict[str, StaticMetrics], pool: CompilePool
) -> None:
    plain = pool._call(toys.hash_without_locations, PROBLEM, "sm_86").result(timeout=60)
    assert plain == measured["stream"].code_hash


FAILING = {
    "compile": (toys.Misspelt, "undefined_name is not defined"),
    "assembler": (toys.BadPtx, "Not a name of any known instruction"),
    "refused": (toys.Picky, ""),
    "crash": (toys.Crash, "LLVM ERROR: toy abort"),
}


def test_failures_have_a_name_and_evidence(pool: CompilePool) -> None:
    *failed, fine = pool.inspect([*(ask(toy) for toy, _ in FAILING.values()), ask(toys.Toy)])
    for result, (kind, (_, evidence)) in zip(failed, FAILING.items(), strict=True):
        assert isinstance(result, CompileFailure)
        assert result.kind == kind
        assert evidence in result.evidence
        assert "\0" not in result.evidence
        with pytest.raises(RoofgapError, match=kind):
            raise failure_error(result)
    assert isinstance(fine, StaticMetrics)  # the pool goes on


@pytest.mark.usefixtures("busy_reader")
def test_a_crash_is_that_of_its_own_request() -> None:
    """Workers crash the moment after they answered another request, over and over."""
    toy_classes = [toys.Crash if number % 4 == 3 else toys.Picky for number in range(48)]
    requests = [ask(toy, num_stages=1 + number) for number, toy in enumerate(toy_classes)]
    with CompilePool(workers=4, timeout_s=20.0) as pool:
        results = pool.inspect(requests)
    for request, result in zip(requests, results, strict=True):
        assert isinstance(result, CompileFailure)
        kind = "crash" if request.variant.name == "crash" else "refused"
        assert (result.kind, result.config) == (kind, request.config.key), result.message


def test_one_failure_is_an_error(pool: CompilePool) -> None:
    with pytest.raises(RoofgapError, match="never"):
        inspect_variant(toys.Picky(), PROBLEM, toys.ToyConfig(), load_target("sm_86"), pool=pool)


def test_a_hang_ends(pool: CompilePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_timeout_s", 1.0)
    (failed,) = pool.inspect([ask(toys.Hang)])
    assert isinstance(failed, CompileFailure)
    assert failed.kind == "timeout"


def test_the_parent_keeps_its_environment(measured: dict[str, StaticMetrics]) -> None:
    assert os.environ.get("USE_IR_LOC") is None
    if "torch" in sys.modules and not sys.modules["torch"].cuda.is_available():
        assert os.environ["TRITON_INTERPRET"] == "1"


@pytest.fixture(scope="module")
def variants(pool: CompilePool) -> dict[tuple[str, str], StaticMetrics]:
    requests = [
        request_for(variant, GEMV, TARGETS[target])
        for variant in VARIANTS.values()
        for target in ("sm_90", "gfx942")
    ]
    results = pool.inspect(requests)
    assert [result for result in results if isinstance(result, CompileFailure)] == []
    return {(result.variant, result.target): result for result in results}  # type: ignore[misc]


def test_every_variant_has_every_metric(variants: dict[tuple[str, str], StaticMetrics]) -> None:
    for result in variants.values():
        assert result.role == "main"
        assert result.fits and 0 < result.occupancy <= 1
        assert result.registers > 0
        assert result.instructions_per_weight is not None
        assert result.weight_load_bits in (16, 32, 64, 128)
        assert result.weight_passes is not None and 1 <= result.weight_passes < 1.1
        assert result.bound in ("bandwidth-bound", "issue-bound")
        assert result.budget is not None
        busiest = max(pipe.load for pipe in result.budget.pipes)
        assert (result.bound == "issue-bound") == (busiest > 1)
        assert result.reasoning and result.notes == ()


def test_words_are_loaded_once_except_by_the_naive_dot(
    variants: dict[tuple[str, str], StaticMetrics],
) -> None:
    for (variant, _), result in variants.items():
        if variant in VARIANTS and variant != "tldot":
            assert result.loads_per_word == 1, variant
    assert variants["tldot", "sm_90"].loads_per_word == 8


def test_metrics_name_no_files(variants: dict[tuple[str, str], StaticMetrics]) -> None:
    text = json.dumps([result.model_dump(mode="json") for result in variants.values()])
    assert tempfile.gettempdir() not in text
    assert str(Path(__file__).parents[2]) not in text


def test_sources(pool: CompilePool) -> None:
    for stage, target, sign in (
        ("sass", "sm_86", "LDG.E.128"),
        ("ptx", "sm_86", "ld.global"),
        ("ttgir", "sm_86", "#ttg.blocked"),
        ("amdgcn", "gfx942", "buffer_load_dwordx4"),
    ):
        text = pool.source(ask(toys.Toy, target), stage)
        assert text.startswith("// main: stream, grid (256,)")
        assert sign in text
        assert "roofgap-compile" not in text and ".ttir" not in text
    with pytest.raises(RoofgapError, match="amdgcn"):
        pool.source(ask(toys.Toy, "gfx942"), "sass")


def test_amd_occupancy_agrees_with_llvm(pool: CompilePool) -> None:
    request = ask(toys.Reload, "gfx942", num_warps=1)
    (result,) = pool.inspect([request])
    assert isinstance(result, StaticMetrics)
    said = re.search(r"; Occupancy: (\d+)", pool.source(request, "amdgcn"))
    assert said is not None
    assert result.occupancy_limit == "registers"
    assert result.occupancy == int(said[1]) * 4 / 32  # waves per SIMD, of which there are four
