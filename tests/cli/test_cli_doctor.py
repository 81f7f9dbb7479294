"""``roofgap doctor``: its verdicts follow from what it finds, and a broken installation is a finding."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roofgap.cli import checks
from roofgap.cli.checks import Finding, judge
from roofgap.cli.main import app

NAMES = (
    "torch",
    "triton",
    "gpu",
    "interpreter",
    "c compiler",
    "transformers",
    "asv",
    "bitsandbytes",
    "gemlite",
    "git history",
    "winners folder",
)
COMPLETE = [Finding(name=name, state="ok", found="here") for name in NAMES]


def without(*names: str) -> list[Finding]:
    """A complete machine less these."""
    return [replace(item, state="missing") if item.name in names else item for item in COMPLETE]


def test_complete_machine_is_ready_for_everything() -> None:
    assert [use.verdict for use in judge(COMPLETE)] == ["ready"] * 4


@pytest.mark.parametrize(
    ("missing", "verdicts"),
    [
        (("gpu",), ["limited", "limited", "ready", "limited"]),
        (("interpreter",), ["limited", "limited", "ready", "limited"]),
        (("c compiler",), ["ready", "limited", "ready", "ready"]),
        (("asv",), ["not possible", "ready", "not possible", "ready"]),
        (("git history",), ["not possible", "ready", "not possible", "ready"]),
        (("torch",), ["not possible", "not possible", "ready", "not possible"]),
        (("gemlite",), ["ready", "ready", "ready", "limited"]),
        (("winners folder",), ["ready", "not possible", "ready", "ready"]),
    ],
)
def test_verdict_follows_from_what_is_missing(missing: tuple[str, ...], verdicts: list[str]) -> None:
    uses = judge(without(*missing))
    assert [use.verdict for use in uses] == verdicts
    assert all(use.reason for use in uses if use.verdict != "ready")


def test_command_prints_json_and_exits_zero() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    found = {item["name"]: item for item in report["findings"]}
    assert {*NAMES, "python", "ptxas", "cuobjdump", "nvdisasm", "nvml", "chromium"} <= set(found)
    assert found["python"]["found"].startswith(sys.version.split()[0])
    assert all(item["remedy"] for item in found.values() if item["state"] == "missing")
    assert len(report["uses"]) == 4


def test_table_shows_brackets_of_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding(name="x", state="missing", found="", remedy="pip install 'roofgap[compare]'")
    monkeypatch.setattr(checks, "look", lambda: [finding])
    assert "roofgap[compare]" in CliRunner().invoke(app, ["doctor"]).stdout


def look() -> dict[str, Finding]:
    """Findings by name."""
    return {item.name: item for item in checks.look()}


def test_library_that_ends_the_interpreter_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = "import os, sys; print('bad driver', file=sys.stderr, flush=True); os.abort()"
    monkeypatch.setattr(checks, "PROBE", crash)
    found = look()
    for name in ("torch", "triton", "gpu"):
        assert found[name].state == "broken"
        assert "bad driver" in found[name].found
    assert found["python"].state == "ok"


def test_library_that_raises_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    (tmp_path / "triton.py").write_text("__version__ = '9.9'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = look()
    assert found["torch"].state == "broken"
    assert "libcudart" in found["torch"].found
    assert found["triton"].found == "9.9"
    assert found["ptxas"].state == "missing"


def test_folder_without_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PROBE", "")
    monkeypatch.chdir(tmp_path)
    found = look()["git history"]
    assert found.state == "missing"
    assert str(tmp_path) in found.found


def test_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise PermissionError("no /proc")

    monkeypatch.setattr(checks, "PROBE", "")
    monkeypatch.setattr(checks, "_browser", broken)
    last = checks.look()[-1]
    assert last.state == "broken"
    assert "no /proc" in last.found
