from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from roofgap.cli.main import app
from roofgap.kernels.static import pool as pool_module
from roofgap.kernels.static.pool import CompilePool
from roofgap.shapes.errors import RoofgapError

RUN = CliRunner()
REQUIRED = {
    "registers", "spill_bytes", "shared_bytes", "occupancy", "occupancy_limit", "instructions_per_weight",
    "weight_load_bits", "bound", "budget", "launches", "machine_code_hash",
}  # fmt: skip


@pytest.fixture(scope="module")
def opened() -> Iterator[CompilePool]:
    with CompilePool(workers=1) as pool:
        yield pool


@pytest.fixture
def shared(opened: CompilePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the command use workers that are there already."""
    monkeypatch.setattr(pool_module, "CompilePool", lambda workers: contextlib.nullcontext(opened))


def inspect(*arguments: str) -> str:
    result = RUN.invoke(app, ["inspect", "--shape", "8960x1536", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_json_is_complete_and_equal_in_other_processes() -> None:
    """Each call compiles in workers of its own, with another hash seed and another cache folder."""
    arguments = ("--variant", "v2", "--target", "sm_86", "--json")
    first, second = inspect(*arguments), inspect(*arguments)
    assert first == second
    report = json.loads(first)
    assert set(report) >= REQUIRED
    assert report["target"] == "sm_86"
    assert report["launches"][0]["role"] == "main"
    assert report["instructions_per_weight"]["total"] > 1


@pytest.mark.usefixtures("shared")
def test_several_targets_make_a_table_and_a_list() -> None:
    table = inspect("--variant", "v2", "--target", "sm_90,gfx942")
    assert "sm_90" in table and "gfx942" in table and "issue-bound" in table


@pytest.mark.usefixtures("shared")
def test_one_variant_is_explained() -> None:
    text = inspect("--variant", "v2", "--target", "sm_90", "--config", "block_n=128")
    assert "block_n=128" in text
    assert "h200 streams" in text
    assert "of the issue slots" in text


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--variant", "v2", "--target", "sm_1"), "sm_86"),
        (("--variant", "nope", "--target", "sm_86"), "v2"),
        (("--variant", "v2", "--target", "sm_86", "--config", "nope=1"), "block_n"),
        (("--variant", "v2", "--target", "sm_86", "--device", "h200"), "sm_90"),
        (("--variant", "v2", "--target", "sm_86", "--m", "0"), "launches no Triton kernel"),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(RoofgapError, match=said):
        inspect(*arguments)
