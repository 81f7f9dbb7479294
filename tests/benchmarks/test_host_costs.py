"""What the host pays around a kernel. ``make host-bench`` times it; without timing these are plain tests.

Inputs come from fixed seeds and torch runs on one thread. Every run carries the versions that its times depend on, so
that two runs kept with ``--benchmark-autosave`` can be told apart or compared.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pydantic
import pytest
import torch
import triton

from roofgap.kernels.config import KernelConfig, _parse
from roofgap.kernels.formats.layout import Layout
from roofgap.kernels.formats.quantise import quantise
from roofgap.kernels.formats.registry import LAYOUTS
from roofgap.kernels.inputs import generator, meta_operands, random_weight
from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.kernels.step import Launch
from roofgap.shapes.accounting import choose_formats, honest
from roofgap.shapes.device import load_device
from roofgap.shapes.manifest import Manifest, load_manifest
from roofgap.shapes.problem import Problem
from roofgap.shapes.roofline import TokenFloor, token_floor
from roofgap.tuning import lookup, winners_store
from roofgap.tuning.lookup import choose, current_provenance, identity_of
from roofgap.tuning.winner import Winner

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SEED = 0
SMALL = Problem(n=256, k=1536, zero_mode="asym")
DECODE = Problem(n=8960, k=1536)  # gate or up of Qwen2.5-1.5B, one token
VERSIONS = {
    "python": platform.python_version(),
    "torch": torch.__version__,
    "triton": triton.__version__,
    "numpy": np.__version__,
    "pydantic": pydantic.VERSION,
}


@pytest.fixture(autouse=True)
def _comparable(benchmark: BenchmarkFixture) -> Iterator[None]:
    """One thread, and in the record the versions and whether kernels are the interpreter's."""
    benchmark.extra_info.update(VERSIONS, seed=SEED, interpreted=os.environ.get("TRITON_INTERPRET") == "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.benchmark(group="pack 256x1536")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_pack(benchmark: BenchmarkFixture, layout: type[Layout]) -> None:
    weight = random_weight(SMALL, SEED)
    packed = benchmark(layout.pack, weight)
    assert 2 * packed.codes.nbytes == SMALL.n * SMALL.k


@pytest.mark.benchmark(group="unpack 256x1536")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_unpack(benchmark: BenchmarkFixture, layout: type[Layout]) -> None:
    weight = random_weight(SMALL, SEED)
    assert benchmark(layout.unpack, layout.pack(weight)).equal(weight)


@pytest.mark.benchmark(group="quantise 256x1536 (RTN)")
@pytest.mark.parametrize("symmetric", [True, False], ids=["sym", "asym"])
def test_quantise(benchmark: BenchmarkFixture, symmetric: bool) -> None:
    dense = torch.randn((SMALL.n, SMALL.k), generator=generator(SEED, "cpu"))
    weight = benchmark(quantise, dense, SMALL.group_size, symmetric=symmetric)
    steps = weight.scales.repeat_interleave(weight.group, dim=1)
    # Half a step from rounding to a code; in asym another half, from rounding the zero, where the range is clamped.
    assert bool(((weight.dequantise() - dense).abs() <= (0.501 if symmetric else 1.001) * steps).all())


@pytest.fixture
def winners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only winners folder that a lookup sees, empty."""
    monkeypatch.setenv(winners_store.ENVIRONMENT, str(tmp_path))
    monkeypatch.delenv(lookup.STRICT, raising=False)
    monkeypatch.setattr(winners_store, "user_folder", lambda: tmp_path / "user")
    monkeypatch.setattr(winners_store, "shipped_folder", lambda: None)
    return tmp_path


@pytest.mark.benchmark(group="config lookup")
@pytest.mark.parametrize("tuned", [True, False], ids=["hit", "miss"])
def test_lookup(benchmark: BenchmarkFixture, winners: Path, tuned: bool) -> None:
    variant = get_variant("v2")
    config = list(variant.configs(DECODE))[-1]
    assert config != variant.default_config(DECODE)
    if tuned:
        winner = Winner(
            identity=identity_of(variant, DECODE, "h200"),
            provenance=current_provenance(variant, DECODE),
            config=config.to_dict(),
            latency_us=2.0,
            p20_us=2.0,
            p80_us=2.0,
            tie_band=0.02,
            tie_set=(),
        )
        winners_store.save(winners, winner)
    choice = benchmark(choose, variant, DECODE, "h200")
    # A driver that cannot be read never matches: on a machine without a GPU the hit is an unvalidated one.
    assert choice.config == (config if tuned else variant.default_config(DECODE))
    assert (choice.source == "default") is not tuned


@pytest.mark.benchmark(group="plan 8960x1536, M=1 (meta)")
@pytest.mark.parametrize("name", VARIANTS)
def test_plan(benchmark: BenchmarkFixture, name: str) -> None:
    """The part of a launch's overhead that is roofgap's own; Triton's launcher is not in it."""
    variant = get_variant(name)
    config, operands = variant.default_config(DECODE), meta_operands(variant, DECODE)
    steps = benchmark(variant.plan, DECODE, config, operands)
    assert [step.role for step in steps if isinstance(step, Launch)].count("main") == 1


@pytest.mark.benchmark(group="config parse")
@pytest.mark.parametrize(
    "parse",
    [_parse, lambda config_type, text: config_type.parse(text)],
    ids=["first time", "again"],
)
def test_config_parse(
    benchmark: BenchmarkFixture, parse: Callable[[type[KernelConfig], str], KernelConfig]
) -> None:
    config = get_variant("v2").default_config(DECODE)
    assert benchmark(parse, type(config), config.key) == config


@pytest.mark.benchmark(group="manifest load")
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "qwen2.5-72b"])
def test_manifest_load(benchmark: BenchmarkFixture, model: str) -> None:
    assert benchmark(load_manifest, model).model == model


@pytest.mark.benchmark(group="roofline of a model")
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "qwen2.5-72b"])
def test_roofline(benchmark: BenchmarkFixture, model: str) -> None:
    manifest, bandwidth = load_manifest(model), load_device("h200").bandwidth()
    formats = choose_formats("w4", "bf16")

    def floor(manifest: Manifest) -> TokenFloor:
        return token_floor(manifest, *formats, read=honest(manifest, *formats), bandwidth=bandwidth)

    found = benchmark(floor, manifest)
    expected_us = honest(manifest, *formats).total / bandwidth.gbps / 1e3
    assert found.matrices_us + found.other_us == pytest.approx(expected_us)
