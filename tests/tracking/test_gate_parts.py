"""The gate without commits: judging, allow-list, device rounds with scripted times, explanations, reports."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from roofgap.cli.main import app
from roofgap.shapes.errors import RoofgapError
from roofgap.tracking.gate import allow, checkout, device, exact, run
from roofgap.tracking.gate.device import NotMeasuredError
from roofgap.tracking.gate.records import Finding, Report
from roofgap.tracking.gate.report import markdown, reasons, rows, summary

CELL = ("v2", "64x256", "sm_86")
TODAY = datetime.date(2026, 11, 29)


def reading(**metrics: float | None) -> dict[str, Any]:
    return {"metrics": metrics, "facts": {"config": "block_n=64"}}


def report(*findings: Finding, incomplete: bool = False) -> Report:
    return Report(
        before="a" * 40,
        after="b" * 40,
        lanes=("static",),
        versions={},
        gpu=None,
        not_applicable=0,
        warnings=(),
        incomplete=incomplete,
        findings=findings,
    )


@pytest.mark.parametrize(
    ("before", "after", "verdicts"),
    [
        (reading(registers=40), reading(registers=40), ["same"]),
        (reading(registers=40), reading(registers=41), ["worse"]),
        (reading(registers=40), reading(registers=39), ["better"]),
        (reading(spill=0), reading(spill=8), ["worse"]),
        (reading(registers=40, lanes=0), reading(registers=32, lanes=3), ["better", "worse"]),
        (reading(registers=40), reading(registers=None), ["unmeasured"]),
        (reading(registers=None), reading(registers=40), ["new"]),
        (reading(registers=None), reading(registers=None), []),
        ({"na": "no such variant"}, {"na": "no such variant"}, []),
        ({"na": "no such variant"}, reading(registers=40), ["new"]),
        (reading(registers=40), {"na": "no such variant"}, ["unmeasured"]),
        (reading(registers=40), {"failed": "crash"}, ["unmeasured"]),
        ({"failed": "crash"}, {"failed": "crash"}, ["unmeasured"]),
        ({"failed": "crash"}, reading(registers=40), ["new"]),
    ],
)
def test_exact_lanes_know_every_outcome(
    before: dict[str, Any], after: dict[str, Any], verdicts: list[str]
) -> None:
    found = exact.judge("static", CELL, before, after)
    assert [finding.verdict for finding in found] == verdicts
    assert all(finding.cell.startswith("static/v2/64x256/sm_86") for finding in found)


def test_a_rise_from_zero_has_no_ratio() -> None:
    (finding,) = exact.judge("static", CELL, reading(spill_bytes=0), reading(spill_bytes=8))
    assert (finding.verdict, finding.effect) == ("worse", None)


@pytest.mark.parametrize(
    ("verdicts", "incomplete", "code"),
    [
        ((), False, 0),
        (("same", "better", "new", "allowed"), False, 0),
        (("same", "worse"), False, 1),
        (("same", "unmeasured"), False, 2),
        (("worse", "unmeasured"), False, 1),
        (("same",), True, 2),
    ],
)
def test_exit_codes(verdicts: tuple[Any, ...], incomplete: bool, code: int) -> None:
    findings = [Finding(cell=f"static/{n}", verdict=verdict) for n, verdict in enumerate(verdicts)]
    assert report(*findings, incomplete=incomplete).exit_code == code


def allow_list(tmp_path: Path, *entries: dict[str, str]) -> allow.AllowList:
    path = tmp_path / "allow.json"
    path.write_text(json.dumps({"allow": entries}))
    return allow.load(path)


def test_allowed_cells_are_not_worse_until_their_day(tmp_path: Path) -> None:
    listed = allow_list(
        tmp_path,
        {"cell": "static/v2/*/registers", "reason": "wider tiles", "until": "2026-11-29"},
        {"cell": "static/v3/a/registers", "reason": "old", "until": "2026-11-28"},
        {"cell": "static/v9/*", "reason": "typo", "until": "2027-01-01"},
        {"cell": "static/v4/a/registers", "reason": "mended", "until": "2027-01-01"},
    )
    findings = [
        Finding(cell="static/v2/a/registers", verdict="worse"),
        Finding(cell="static/v3/a/registers", verdict="worse"),
        Finding(cell="static/v4/a/registers", verdict="same"),
    ]
    judged, warnings = allow.apply(listed, findings, TODAY)
    assert [finding.verdict for finding in judged] == ["allowed", "worse", "same"]
    assert judged[0].reason == "wider tiles (until 2026-11-29)"
    assert [text.split(": ")[1].split(" ")[0] for text in warnings] == [
        "static/v3/a/registers",
        "static/v9/*",
        "static/v4/a/registers",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        '{"allow": [{"cell": "a", "reason": " ", "until": "2027-01-01"}]}',
        '{"allow": [{"cell": "a", "reason": "b"}]}',
        '{"allow": [{"cell": "a", "reason": "b", "until": "soon"}]}',
        '{"allowed": []}',
    ],
)
def test_a_broken_allow_list_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "allow.json"
    path.write_text(text)
    with pytest.raises(RoofgapError, match=r"allow\.json"):
        allow.load(path)


class Scripted:
    """One commit whose cells take the times it is told, or fail where it is told."""

    def __init__(
        self, seed: int, times: Mapping[str, float | NotMeasuredError], fails_at: int | None = None
    ) -> None:
        self._random, self._times, self._fails_at = np.random.default_rng(seed), times, fails_at
        self._mean, self.taken, self.held = 0.0, 0, 0

    def prepare(self, cell: tuple[str, ...]) -> dict[str, Any]:
        given = self._times[cell[0]]
        if isinstance(given, NotMeasuredError):
            raise given
        self._mean, self.held = given, self.held + 1
        return {"config": f"c{given}", "gpu": "Scripted"}

    def sample_us(self, arm: int) -> float:
        self.taken += 1
        if self.taken == self._fails_at:
            raise NotMeasuredError("wrong output")
        return self._mean * float(np.exp(self._random.normal(0, 0.005)))

    def release(self) -> None:
        self.held = 0


def test_device_rounds_name_the_slow_cell_and_print_the_rest() -> None:
    absent, broken = NotMeasuredError("no GPU", "absent"), NotMeasuredError("illegal memory access")
    before: dict[str, float | NotMeasuredError] = {
        "a": 10.0,
        "b": 10.0,
        "c": 10.0,
        "d": absent,
        "e": absent,
        "f": 10.0,
    }
    after: dict[str, float | NotMeasuredError] = {
        "a": 10.0,
        "b": 10.6,
        "c": broken,
        "d": absent,
        "e": 10.0,
        "f": absent,
    }
    sides = Scripted(1, before), Scripted(2, after)
    findings, gpu = device.judge(*sides, [(name, "64x256", "1") for name in before], rounds=16)
    assert {finding.cell.split("/")[1]: finding.verdict for finding in findings} == {
        "a": "same", "b": "worse", "c": "unmeasured", "e": "new", "f": "unmeasured",
    }  # fmt: skip
    assert gpu == "Scripted"
    assert all(side.held == 0 for side in sides), "memory must go back after every cell"
    slow = next(finding for finding in findings if finding.verdict == "worse")
    assert slow.evidence is not None
    assert slow.evidence.rounds == 16
    assert slow.effect == pytest.approx(0.06, abs=0.01)
    assert slow.explanation == ("config c10.0 (default) -> c10.6 (default)",)
    assert report(*findings).exit_code == 1


def test_a_sample_that_fails_costs_its_cell_alone() -> None:
    sides = Scripted(1, {"a": 10.0, "b": 10.0}, fails_at=5), Scripted(2, {"a": 10.0, "b": 10.0})
    findings, _ = device.judge(*sides, [("a", "64x256", "1"), ("b", "64x256", "1")], rounds=10)
    assert {finding.cell.split("/")[1]: finding.verdict for finding in findings} == {
        "a": "unmeasured", "b": "same",
    }  # fmt: skip


def test_a_large_grid_takes_as_many_rounds_as_it_needs() -> None:
    names = [f"cell {number}" for number in range(40)]
    slow = {**dict.fromkeys(names, 10.0), names[0]: 12.0}
    sides = Scripted(1, dict.fromkeys(names, 10.0)), Scripted(2, slow)
    findings, _ = device.judge(*sides, [(name, "64x256", "1") for name in names], rounds=8)
    assert {finding.evidence.rounds for finding in findings if finding.evidence} == {13}
    assert [finding.cell.split("/")[1] for finding in findings if finding.verdict == "worse"] == [names[0]]


def test_reports_name_cells_reasons_and_the_smallest_effect() -> None:
    findings, _ = device.judge(
        Scripted(1, {"a": 10.0}), Scripted(2, {"a": 11.0}), [("a", "64x256", "1")], rounds=16
    )
    whole = report(*findings, Finding(cell="static/v3/x", verdict="unmeasured", reason="crash | here"))
    whole = whole.model_copy(update={"gpu": "Scripted", "warnings": ("mind the gap",)})
    text = markdown(whole)
    for part in (
        "device/a/64x256/1/latency_us",
        "seen from",
        "+10",
        "crash \\| here",
        "mind the gap",
        "worse",
    ):
        assert part in text.replace("crash | here", "crash \\| here")
    assert [row["verdict"] for row in rows(whole)] == ["worse", "unmeasured"]
    assert any("crash | here" in text for text in reasons(whole))
    assert "1 worse, 1 unmeasured" in summary(whole)
    assert Report.model_validate_json(whole.model_dump_json(by_alias=True)) == whole


def test_the_command_exits_with_the_reports_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[run.Options] = []

    def fake(root: Path, before: str, after: str, options: run.Options, say: object) -> Report:
        seen.append(options)
        return report(Finding(cell="static/v2/x", verdict="unmeasured", reason="crash"))

    monkeypatch.setattr(run, "gate", fake)
    monkeypatch.setattr(checkout, "repository", lambda: tmp_path)
    arguments = ["gate", "A", "B", "--lanes", "traffic,static", "--only", "static/v2/*"]
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    result = CliRunner().invoke(app, [*arguments, *files])
    assert result.exit_code == 2
    assert "crash" in result.output
    assert seen[0].lanes == ("static", "traffic")
    assert seen[0].required
    assert json.loads((tmp_path / "r.json").read_text())["findings"][0]["verdict"] == "unmeasured"
    assert "crash" in (tmp_path / "r.md").read_text()


def test_unknown_lanes_and_commits_are_refused(root: Path) -> None:
    result = CliRunner().invoke(app, ["gate", "A", "--lanes", "statik"])
    assert isinstance(result.exception, RoofgapError)
    with pytest.raises(RoofgapError, match="no-such-commit"):
        checkout.resolve(root, "no-such-commit")
