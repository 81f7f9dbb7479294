"""Result files."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.results import ResultFile, current_commit, make_results, read_results

ROWS: list[dict[str, str | int | float | bool | None]] = [
    {"variant": "v2", "n": 8960, "k": 1536, "latency_us": 4.1, "status": "ok", "rel_error": None}
]


def test_a_file_survives_the_trip(tmp_path: Path) -> None:
    results = make_results("h200", {"torch": "2.11"}, ROWS)
    results.save(tmp_path / "deep" / "x.json")
    assert read_results(tmp_path / "deep" / "x.json") == results
    raw = json.loads((tmp_path / "deep" / "x.json").read_text())
    assert list(raw) == ["schema", "gpu", "versions", "date", "commit", "command", "rows"]
    assert raw["rows"] == ROWS


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw.update(schema=2),
        lambda raw: raw.update(extra=1),
        lambda raw: raw.pop("gpu"),
        lambda raw: raw.update(rows=[{"nested": {}}]),
    ],
    ids=["future", "extra", "incomplete", "nested"],
)
def test_another_schema_is_refused_by_name(tmp_path: Path, damage: object) -> None:
    raw = json.loads(make_results("h200", {}, ROWS).model_dump_json(by_alias=True))
    damage(raw)  # type: ignore[operator]
    (tmp_path / "x.json").write_text(json.dumps(raw))
    with pytest.raises(RoofgapError, match=r"x\.json.*Measure again"):
        read_results(tmp_path / "x.json")


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_torn_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RoofgapError, match="Measure again"):
        read_results(tmp_path / "x.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RoofgapError, match=r"none\.json: cannot be read"):
        read_results(tmp_path / "none.json")


def test_no_infinity_reaches_the_disk() -> None:
    with pytest.raises(ValidationError):
        ResultFile(gpu="h200", versions={}, date="", commit=None, command="", rows=({"us": math.inf},))


def test_the_commit_says_whether_the_tree_differs(tmp_path: Path) -> None:
    assert current_commit(tmp_path) is None

    def git(*args: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *args],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "first")
    clean = current_commit(tmp_path)
    assert clean
    assert len(clean) == 40
    (tmp_path / "file").write_text("2")
    assert current_commit(tmp_path) == f"{clean}-dirty"
