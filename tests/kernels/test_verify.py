"""``verify`` and ``roofgap verify``."""

from __future__ import annotations

import json

import pytest
from kernel_cases import DEVICE
from typer.testing import CliRunner

from roofgap.cli.main import app
from roofgap.kernels import checks
from roofgap.kernels.checks import Case
from roofgap.kernels.registry import get_variant
from roofgap.kernels.verify import verify
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem

SMALL = Problem(n=8, k=40, group_size=16)


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["verify", *args, "--device", DEVICE.type])
    if isinstance(result.exception, RoofgapError):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_shape_gets_every_check() -> None:
    code, out, _ = run("20x77", "--variant", "gemm", "--group-size", "32", "--zero-mode", "asym", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["check"] for row in rows] == list(checks.CHECKS)
    assert {row["status"] for row in rows} <= {"passed", "skipped"}
    assert rows[0]["problem"] == "n20-k77-m1-g32-fp16-asym"


@pytest.mark.skipif(DEVICE.type == "cuda", reason="shapes are cut for the interpreter only")
def test_a_manifest_is_cut_for_the_interpreter() -> None:
    code, out, err = run("qwen2.5-0.5b", "--variant", "tldot", "--json")
    problems = [row["problem"] for row in json.loads(out)]
    assert code == 0
    assert "is cut to" in err
    for key in problems:
        n, k = (int(part[1:]) for part in key.split("-")[:2])
        assert n * k <= 64 * 512
    assert problems.count(problems[0]) == len(checks.CHECKS) or len(set(problems)) > 1


def test_a_failed_check_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case: Case) -> str:
        raise checks.WrongResultError("three weights differ")

    monkeypatch.setitem(checks.CHECKS, "identity", broken)
    for name in list(checks.CHECKS):
        if name != "identity":
            monkeypatch.delitem(checks.CHECKS, name)
    code, out, _ = run("8x40", "--variant", "gemm")
    assert code == 1
    assert "three weights differ" in out
    assert "1 failed" in out


def test_an_exception_is_a_failed_check_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashing(case: Case) -> str:
        raise ValueError("no such register")

    monkeypatch.setitem(checks.CHECKS, "identity", crashing)
    (result,) = verify(get_variant("gemm"), [SMALL], DEVICE, checks=["identity"])
    assert (result.status, result.detail) == ("failed", "ValueError: no such register")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("8x40", "--variant", "v0"), "v0"),
        (("8x40", "--variant", "v2", "--config", "block_n=3"), "power of two"),
        (("8x40", "--variant", "v2", "--dtype", "fp8"), "fp8"),
        (("no-such-model", "--variant", "v2"), "no-such-model"),
    ],
)
def test_bad_input_is_refused(args: tuple[str, ...], words: str) -> None:
    with pytest.raises(RoofgapError, match=words):
        run(*args)


def test_unknown_checks_and_devices_are_refused() -> None:
    with pytest.raises(RoofgapError, match="op_contract"):
        verify(get_variant("gemm"), [SMALL], DEVICE, checks=["identiti"])
    with pytest.raises(RoofgapError, match="cuda or cpu"):
        CliRunner().invoke(
            app, ["verify", "8x40", "--variant", "v2", "--device", "tpu"], catch_exceptions=False
        )
