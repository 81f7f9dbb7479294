"""Adds the variant of docs/add-a-kernel.md exactly as the page says; everything that reads the registry sees it."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kernel_cases import DEVICE, RAGGED
from typer.testing import CliRunner

from roofgap.cli.main import app
from roofgap.e2e.arms import choose_arms
from roofgap.kernels.formats.nmajor import NMajor
from roofgap.kernels.inputs import random_weight, random_x
from roofgap.kernels.linear import W4Linear
from roofgap.kernels.ops import linear
from roofgap.kernels.reference import reference
from roofgap.kernels.registry import VARIANTS, get_variant
from roofgap.kernels.source import source_hash
from roofgap.kernels.tolerance import judge
from roofgap.kernels.variant import Limits, Variant
from roofgap.kernels.verify import EVERY_SHAPE, verify
from roofgap.shapes.problem import Problem
from roofgap.tuning.space import build_space


@pytest.fixture(scope="module")
def rowdot(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Variant]:
    page = (root / "docs" / "add-a-kernel.md").read_text()
    file, lines = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    folder = tmp_path_factory.mktemp("variants")
    (folder / "rowdot.py").write_text(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        module = importlib.import_module("rowdot")
        patch.setitem(sys.modules, "roofgap.kernels.variants.rowdot", module)
        patch.setitem(VARIANTS, "rowdot", None)  # type: ignore[arg-type]  # removed again at the end
        exec(compile(lines, "registry", "exec"), {"VARIANTS": VARIANTS})
        yield get_variant("rowdot")
        patch.delitem(sys.modules, "rowdot")


@pytest.mark.parametrize("problem", RAGGED[1:4], ids=lambda problem: problem.key)
def test_it_is_checked(rowdot: Variant, problem: Problem) -> None:
    assert not [
        result
        for result in verify(rowdot, [problem], DEVICE, checks=EVERY_SHAPE)
        if result.status == "failed"
    ]


def test_it_is_an_op_and_a_layer(rowdot: Variant) -> None:
    problem = RAGGED[0].with_m(2)
    weight, x = random_weight(problem, 0, DEVICE), random_x(problem, 0, DEVICE)
    y = linear(x, NMajor.pack(weight), variant="rowdot")
    assert judge(y, reference(x, weight), k=problem.k).passed
    assert torch.equal(W4Linear(weight, variant="rowdot")(x), y)
    assert torch.ops.roofgap.rowdot is not None


def test_it_has_a_space_and_a_source(rowdot: Variant) -> None:
    assert len(list(rowdot.configs(Problem(n=8960, k=1536)))) == 60
    assert source_hash(rowdot) not in {source_hash(v) for name, v in VARIANTS.items() if name != "rowdot"}


def test_the_tuner_has_its_configs(rowdot: Variant) -> None:
    problem = Problem(n=8960, k=1536)
    space = build_space(rowdot, problem, Limits(sm_count=132))
    assert len(space.configs) >= 60
    assert rowdot.default_config(problem, Limits(sm_count=132)) in space.configs


@pytest.mark.usefixtures("rowdot")
def test_it_has_decode_arms() -> None:
    (arm,) = choose_arms("w4-rowdot-graph")
    assert (arm.build.variant, arm.loop) == ("rowdot", "graph")


def test_asv_tracks_it(root: Path, tmp_path: Path) -> None:
    """The suite reads the variants of its own tree: a copy of it with the new file has the new cells."""
    shutil.copytree(root / "asv_bench", tmp_path / "asv_bench")
    for folder in ("kernels/variants", "shapes/manifests"):
        shutil.copytree(root / folder, tmp_path / folder)
    file, _ = re.findall(r"```python\n(.*?)```", (root / "docs" / "add-a-kernel.md").read_text(), flags=re.S)
    (tmp_path / "kernels" / "variants" / "rowdot.py").write_text(file)
    code = "from benchmarks._cells import VARIANTS; print(*VARIANTS)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "asv_bench", capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == sorted({*VARIANTS, "rowdot"})


def _json(*args: str) -> object:
    result = CliRunner().invoke(app, [*args, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.usefixtures("rowdot")
def test_the_command_line_knows_it() -> None:
    rows = _json("verify", "16x77", "--variant", "rowdot", "--group-size", "32", "--device", DEVICE.type)
    assert isinstance(rows, list)
    assert {row["status"] for row in rows} <= {"passed", "skipped"}
    static = _json("inspect", "--variant", "rowdot", "--shape", "8960x1536", "--target", "sm_90")
    assert isinstance(static, dict)
    assert static["weight_load_bits"] == 128


@pytest.mark.usefixtures("rowdot")
@pytest.mark.skipif(DEVICE.type == "cuda", reason="traffic runs where kernels are interpreted")
def test_its_traffic_is_counted() -> None:
    counted = _json("traffic", "--variant", "rowdot", "--shape", "32x512")
    assert isinstance(counted, dict)
    (codes,) = [row for row in counted["rows"] if row["tensor"] == "codes" and row["kind"] == "load"]
    assert codes["ratio"] == 1.0
