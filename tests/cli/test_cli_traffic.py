"""``roofgap traffic`` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from roofgap.cli.main import app
from roofgap.kernels.registry import VARIANTS
from roofgap.shapes.errors import RoofgapError

RUNNER = CliRunner()


def run_json(*arguments: str) -> dict[str, Any]:
    result = RUNNER.invoke(app, ["traffic", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_json_has_rows_totals_and_what_was_run() -> None:
    answer = run_json(
        "--variant", "v2", "--shape", "128x200", "--group-size", "64", "--config", "block_n=64,block_k=64"
    )
    assert answer["variant"] == "v2"
    assert answer["problem"]["k"] == 200
    assert answer["config"]["block_n"] == 64
    assert answer["cut_from"] is None
    assert answer["codes_ratio"] == answer["scales_ratio"] == 1.0
    assert answer["zeros_ratio"] is None
    assert answer["bytes_per_weight"] == 0.5
    assert answer["x_ratio"] == 2.0
    assert answer["cached_bytes"] == answer["minimum_bytes"] < answer["asked_bytes"]
    assert answer["modelled_bytes"] == 0
    assert set(answer["rows"][0]) == {
        "tensor",
        "kind",
        "asked_bytes",
        "unique_bytes",
        "size_bytes",
        "ratio",
        "bytes_per_weight",
        "modelled",
    }


@pytest.mark.skipif("v1" not in VARIANTS, reason="v1 is not registered")
def test_v1_moves_four_and_a_half_bytes_per_weight() -> None:
    answer = run_json("--variant", "v1", "--shape", "256x1536")
    assert answer["bytes_per_weight"] == 4.5
    parts = {(row["tensor"], row["kind"], row["modelled"]): row["bytes_per_weight"] for row in answer["rows"]}
    assert parts["codes", "load", False] == 0.5
    assert parts["dense", "store", False] == 2.0
    assert parts["dense", "load", True] == 2.0


@pytest.mark.skipif("gemm" not in VARIANTS, reason="gemm is not registered")
@pytest.mark.parametrize("m", [1, 16])
def test_gemm_loads_each_packed_word_once(m: int) -> None:
    assert run_json("--variant", "gemm", "--shape", "256x1536", "--m", str(m))["codes_ratio"] == 1.0


def test_a_large_shape_is_refused_with_the_remedy_and_cut_on_demand() -> None:
    with pytest.raises(RoofgapError, match="--cut"):
        RUNNER.invoke(app, ["traffic", "--variant", "v2", "--shape", "8960x1500"], catch_exceptions=False)
    result = RUNNER.invoke(app, ["traffic", "--variant", "v2", "--shape", "8960x1500", "--cut", "--json"])
    assert "8960x1500 is cut to 256x1500" in result.stderr
    answer = json.loads(result.stdout)
    assert answer["cut_from"] == "8960x1500"
    assert answer["codes_ratio"] == 1.0


def test_the_table_names_tensors_and_totals() -> None:
    result = RUNNER.invoke(app, ["traffic", "--variant", "v2", "--shape", "128x128", "--zero-mode", "asym"])
    assert result.exit_code == 0
    for text in ("codes", "zeros", "weight path: 0.5 bytes per weight", "at least"):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variant", "v9", "--shape", "128x128"], "v9"),
        (["--variant", "v2", "--shape", "128"], "NxK"),
        (["--variant", "v2", "--shape", "128x128", "--config", "block_q=3"], "block_q"),
        (["--variant", "v2", "--shape", "128x128", "--dtype", "fp64"], "fp64"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(RoofgapError, match=message):
        RUNNER.invoke(app, ["traffic", *arguments], catch_exceptions=False)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process in which Triton has not been told to interpret."""
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], env=plain, capture_output=True, text=True, check=False, timeout=120
    )


def test_kernels_imported_for_a_gpu_are_counted_in_a_child() -> None:
    program = """
import sys
from roofgap.kernels.registry import get_variant
from roofgap.kernels.traffic.run import count_traffic
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from triton.runtime import JITFunction
assert all(isinstance(kernel, JITFunction) for kernel in get_variant("v2").kernels())
problem = Problem(n=128, k=200, group_size=64)
try:
    count_traffic("v2", problem, "block_n=3")
except RoofgapError as error:
    assert "block_n=3" in str(error), error
else:
    sys.exit("the child's refusal was lost")
print(count_traffic("v2", problem, "block_n=64").model_dump_json())
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer == run_json(
        "--variant", "v2", "--shape", "128x200", "--group-size", "64", "--config", "block_n=64"
    )


def test_the_command_interprets_without_being_told_to() -> None:
    arguments = ["traffic", "--variant", "v2", "--shape", "128x128", "--json"]
    done = python("-c", "from roofgap.cli.main import main; main()", *arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["codes_ratio"] == 1.0
