from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from roofgap.kernels.config import KernelConfig
from roofgap.kernels.ops import find_config, set_config_lookup
from roofgap.kernels.registry import get_variant
from roofgap.kernels.variant import Limits
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning import environment, lookup, winners_store
from roofgap.tuning.check import check_folder
from roofgap.tuning.environment import gpu_name, limits_for, make_toolchain
from roofgap.tuning.explain import explain
from roofgap.tuning.lookup import bucket, choose, current_provenance, identity_of
from roofgap.tuning.measure.policy import CHAINED
from roofgap.tuning.winner import Baseline, Reading, Rejected, Winner

V2 = get_variant("v2")
PROBLEM = Problem(n=1536, k=1536)
CONFIG = replace(V2.default_config(PROBLEM), num_warps=8)
VERSIONS = {"driver": "580.1", "cuda": "13.0", "torch": "2.11.0", "triton": "3.6.0"}


def tuned(problem: Problem = PROBLEM, config: KernelConfig = CONFIG, **changes: Any) -> Winner:
    provenance = current_provenance(V2, problem).model_copy(
        update={"date": "2026-11-29", "run": "r1", "strategy": "racing", "trials": 96}
    )
    fields: dict[str, Any] = {
        "identity": identity_of(V2, problem, "h200"),
        "provenance": provenance,
        "config": config.to_dict(),
        "latency_us": 2.0,
        "p20_us": 1.98,
        "p80_us": 2.02,
        "rel_error": 3.1e-4,
        "reproducible": True,
        "tie_band": 0.02,
        "tie_set": (Reading(config=config.key, latency_us=2.0, ratio=1.0),),
        "runner_up": Reading(config=replace(config, num_warps=4).key, latency_us=2.2, ratio=1.1),
        "default": Reading(config=V2.default_config(problem).key, latency_us=3.0, ratio=1.5),
        "baselines": {"torch": Baseline(latency_us=6.0)},
        "rejected": {"wrong": Rejected(count=2, example="block_n=16", evidence="7 output words unwritten")},
    }
    return Winner(**{**fields, **changes})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(winners_store.ENVIRONMENT, str(tmp_path))
    monkeypatch.delenv(lookup.STRICT, raising=False)
    monkeypatch.setattr(winners_store, "user_folder", lambda: tmp_path / "user")
    monkeypatch.setattr(winners_store, "shipped_folder", lambda: None)
    monkeypatch.setattr(environment, "toolchain", lambda: make_toolchain(VERSIONS))
    return tmp_path


def test_a_tuned_problem_gets_its_winner(folder: Path):
    winners_store.save(folder, tuned())
    choice = choose(V2, PROBLEM, "h200")
    assert (choice.config, choice.source) == (CONFIG, "tuned")


def test_an_untuned_one_gets_the_default_and_the_reasons(folder: Path):
    choice = choose(V2, PROBLEM, "h200")
    assert (choice.config, choice.source) == (V2.default_config(PROBLEM), "default")
    assert "no such file" in choice.notes[0]


@pytest.mark.parametrize("field", ["driver", "cuda", "torch", "triton"])
def test_another_toolchain_is_used_but_marked(folder: Path, monkeypatch, field: str):
    winners_store.save(folder, tuned())
    monkeypatch.setattr(environment, "toolchain", lambda: make_toolchain({**VERSIONS, field: "new"}))
    choice = choose(V2, PROBLEM, "h200")
    assert (choice.config, choice.source) == (CONFIG, "unvalidated")
    assert choice.notes == (f"{field}: {VERSIONS[field]} -> new",)
    with pytest.raises(RoofgapError, match=f"unvalidated .*{field}"):
        choose(V2, PROBLEM, "h200", strict=True)


def test_a_changed_source_keeps_the_winner(folder: Path, monkeypatch):
    winners_store.save(folder, tuned())
    monkeypatch.setattr(lookup, "source_hash", lambda variant: "edited")
    choice = choose(V2, PROBLEM, "h200")
    assert (choice.config, choice.source) == (CONFIG, "unvalidated")


@pytest.mark.parametrize(("value", "strict"), [("", False), ("0", False), ("1", True)])
def test_strict_mode_by_environment(folder: Path, monkeypatch, value: str, strict: bool):
    monkeypatch.setenv(lookup.STRICT, value)
    if strict:
        with pytest.raises(RoofgapError, match="is not tuned"):
            choose(V2, PROBLEM, "h200")
    else:
        assert choose(V2, PROBLEM, "h200").source == "default"


def test_a_config_that_no_longer_fits_is_passed_over(folder: Path):
    winners_store.save(folder, tuned())
    small = Limits(max_warps=4)
    choice = choose(V2, PROBLEM, "h200", limits=small)
    assert choice.source == "default" and "num_warps" in " ".join(choice.notes)


def test_a_corrupt_winner_is_an_error_and_no_silent_miss(folder: Path):
    path = winners_store.save(folder, tuned())
    path.write_text("{")
    with pytest.raises(RoofgapError, match=str(path)):
        choose(V2, PROBLEM, "h200")


@pytest.mark.parametrize(
    ("m", "expected"), [(1, 1), (2, 2), (3, 4), (5, 8), (16, 16), (17, 32), (5000, 4096)]
)
def test_buckets_are_powers_of_two(m: int, expected: int):
    assert bucket(m) == expected


def test_a_bucket_serves_the_m_below_it_and_an_exact_winner_comes_first(folder: Path):
    gemm = get_variant("gemm")
    problem = PROBLEM.with_m(13)
    config = gemm.default_config(problem.with_m(16))
    for m, source in ((16, 16), (13, 13)):
        assert choose(gemm, problem, "h200").source == ("default" if m == 16 else "tuned")
        provenance = current_provenance(gemm, problem.with_m(m))
        identity = identity_of(gemm, problem.with_m(m), "h200")
        winners_store.save(folder, tuned(config=config, identity=identity, provenance=provenance))
        assert choose(gemm, problem, "h200").m == source
    assert choose(gemm, problem.with_m(17), "h200").source == "default"


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(environment, "current_gpu", lambda index=0: "h200")
    monkeypatch.setattr("roofgap.kernels.ops.limits_of", lambda device: Limits())
    lookup.install()
    yield folder
    set_config_lookup(None)


def test_the_kernels_use_it_and_say_once_what_is_untuned(installed: Path, caplog):
    winners_store.save(installed, tuned())
    device, other = torch.device("cuda", 0), Problem(n=256, k=1536)
    assert find_config(V2, PROBLEM, device) == CONFIG
    with caplog.at_level(logging.WARNING, logger="roofgap.tuning"):
        for _ in range(3):
            assert find_config(V2, other, device) == V2.default_config(other)
    assert [record.getMessage() for record in caplog.records] == [
        f"v2 {other.key} is not tuned on h200: using the default config"
    ]


def test_dependent_launches_have_winners_of_their_own_and_else_the_others(installed: Path):
    device = torch.device("cuda", 0)
    assert find_config(V2, PROBLEM, device, True) == V2.default_config(PROBLEM)
    winners_store.save(installed, tuned())
    lookup.install()  # asks anew
    assert find_config(V2, PROBLEM, device, True) == CONFIG
    own = replace(CONFIG, num_warps=2)
    identity = identity_of(V2, PROBLEM, "h200", CHAINED.key)
    path = winners_store.save(installed, tuned(config=own, identity=identity))
    assert path.name == f"{PROBLEM.key}@chained-graph-l2x3.json"
    lookup.install()
    assert (find_config(V2, PROBLEM, device, True), find_config(V2, PROBLEM, device)) == (own, CONFIG)


def test_a_stale_winner_of_dependent_launches_is_an_error_in_strict_mode(folder: Path, monkeypatch):
    winners_store.save(folder, tuned())
    winners_store.save(folder, tuned(identity=identity_of(V2, PROBLEM, "h200", CHAINED.key)))
    monkeypatch.setenv(lookup.STRICT, "1")
    assert lookup.choose_chained(V2, PROBLEM, "h200").source == "tuned"
    monkeypatch.setattr(environment, "toolchain", lambda: make_toolchain({**VERSIONS, "triton": "new"}))
    with pytest.raises(RoofgapError, match="--variant v2 --m 1 --chained"):
        lookup.choose_chained(V2, PROBLEM, "h200")


def test_on_a_cpu_nothing_is_looked_up(installed: Path, caplog):
    (installed / "h200" / "v2").mkdir(parents=True)
    (installed / "h200" / "v2" / f"{PROBLEM.key}.json").write_text("{")
    assert find_config(V2, PROBLEM, torch.device("cpu")) == V2.default_config(PROBLEM)


def test_explain_a_hit(folder: Path):
    path = winners_store.save(folder, tuned())
    default = V2.default_config(PROBLEM).key
    assert explain(V2, PROBLEM, "h200") == [
        f"v2 {PROBLEM.key} on h200",
        f"  hit  {path}",
        f"config: {CONFIG.key} (tuned)",
        "time: 2.000 us (p20 to p80: 2.0% of it), run r1 of 2026-11-29, racing, 96 configs tried",
        "  relative error 3.1e-04 against fp64, the same bits in every run",
        f"default: 1.500 times as slow: {default}",
        "tie set: 1 within 2% of the fastest",
        f"  1.0000  {CONFIG.key}",
        "second: 10.0% behind the fastest with num_warps=4",
        "torch: 3.00 times as slow",
        "rejected: 2 wrong, for example block_n=16: 7 output words unwritten",
    ]


def test_explain_a_dependent_launch(folder: Path):
    plain = winners_store.save(folder, tuned())
    assert f"  hit  {plain}" in explain(V2, PROBLEM, "h200", chained=True)
    own = replace(CONFIG, num_warps=2)
    identity = identity_of(V2, PROBLEM, "h200", CHAINED.key)
    path = winners_store.save(folder, tuned(config=own, identity=identity))
    lines = explain(V2, PROBLEM, "h200", chained=True)
    assert lines[:3] == [
        f"v2 {PROBLEM.key} on h200, chained",
        f"  hit  {path}",
        f"config: {own.key} (tuned)",
    ]
    assert explain(V2, PROBLEM.with_m(3), "h200", chained=True)[-1].endswith("--variant v2 --m 3 --chained")


def test_explain_a_miss_field_by_field(folder: Path, monkeypatch):
    path = winners_store.save(folder, tuned())
    monkeypatch.setattr(type(V2.default_config(PROBLEM)), "version", 7)
    lines = explain(V2, PROBLEM, "h200")
    assert lines[1] == f"  miss {path}: config_version is 1, wanted 7"
    assert lines[-1].endswith("roofgap tune 1536x1536 --variant v2 --m 1")


def test_check_names_every_kind_of_trouble(folder: Path, monkeypatch):
    good = winners_store.save(folder, tuned())
    other = Problem(n=256, k=1536)
    stale = current_provenance(V2, other).model_copy(update={"source_hash": "old"})
    unvalidated = winners_store.save(folder, tuned(other, provenance=stale))
    wide = Problem(n=64, k=64)
    invalid = winners_store.save(
        folder, tuned(wide, type(CONFIG).from_dict({**CONFIG.to_dict(), "block_n": 512}))
    )
    damaged = winners_store.save(folder, tuned(Problem(n=8, k=8)))
    damaged.write_text("{")
    verdicts = {row["file"]: row["verdict"] for row in check_folder(folder)}
    assert verdicts == {
        str(good): "validated",
        str(unvalidated): "unvalidated",
        str(invalid): "invalid",
        str(damaged): "damaged",
    }


def test_merging_is_commutative_and_idempotent(tmp_path: Path, folder: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    older = tuned().provenance.model_copy(update={"date": "2026-01-01"})
    winners_store.save(one, tuned(provenance=older))
    winners_store.save(one, tuned(Problem(n=256, k=1536)))
    winners_store.save(two, tuned(latency_us=1.5))
    results = []
    for name, order in (("a", (one, two)), ("b", (two, one)), ("c", (one, two, one, two))):
        for source in order:
            winners_store.merge(source, tmp_path / name)
        results.append({p.name: p.read_bytes() for p in (tmp_path / name).rglob("*.json")})
    assert results[0] == results[1] == results[2] and len(results[0]) == 2


def test_gpu_names_and_limits():
    assert gpu_name("NVIDIA H200") == "h200"
    assert gpu_name("NVIDIA X900/PCIe") == "x900-pcie"
    assert limits_for("h200").sm_count == 132
    assert limits_for("nobody") == Limits()


@pytest.mark.parametrize(
    "problem",
    [PROBLEM, Problem(n=5, k=8, m=0, group_size=-1, x_dtype="bf16", zero_mode="offset", bias=True)],
)
def test_a_problem_is_its_key(problem: Problem):
    assert Problem.from_key(problem.key) == problem
