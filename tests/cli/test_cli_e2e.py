"""``roofgap e2e`` without a GPU: plans, published tables, refusals."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from roofgap.cli.main import app
from roofgap.shapes.errors import RoofgapError


def run(*args: str):
    done = CliRunner().invoke(app, ["e2e", *args])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_published_table_needs_no_gpu_and_no_model() -> None:
    rows = json.loads(run("--published", "rtx-3060", "--json").stdout)["recomputed"]
    assert {row["accounting"] for row in rows} == {"honest", "published"}
    assert round(rows[0]["ceiling_tok_s"], 1) == 102.9
    honest = json.loads(run("--published", "rtx-3060", "--accounting", "honest", "--json").stdout)[
        "recomputed"
    ]
    assert len(honest) == len(rows) // 2
    assert "268.5" in run("--published", "rtx-3060").stdout


def test_plan_for_a_gpu_that_is_not_here() -> None:
    text = run("qwen2.5-1.5b", "--plan", "--device", "rtx-3060").stdout
    assert "nothing was timed" in text
    rows = json.loads(run("qwen2.5-1.5b", "--plan", "--device", "rtx-3060", "--json").stdout)["rows"]
    assert all(row["fits"] for row in rows)
    assert not any("tok_s" in row for row in rows), "a plan must not look like a measurement"
    lines = run("qwen2.5-1.5b", "--plan", "--arms", "w4-v3*", "--markdown").stdout.splitlines()
    assert all(line.startswith("| ") for line in lines)


def test_two_depths_are_two_plans() -> None:
    text = run("orch-fusion", "--plan", "--arms", "bf16-graph", "--depth", "128,2048").stdout
    assert "depth 128" in text
    assert "depth 2048" in text


def test_arms_are_listed() -> None:
    names = [row["arm"] for row in json.loads(run("--list-arms", "--json").stdout)]
    assert {"bf16-eager", "nf4-graph", "w4-v3-fused-ops-head-graph", "stream-w4"} <= set(names)


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        ((), "nothing to decode"),
        (("qwen2.5-9b", "--plan"), "is not known"),
        (("qwen2.5-1.5b", "--plan", "--arms", "bf16-grap"), "did you mean bf16-graph"),
        (("qwen2.5-1.5b", "--plan", "--depth", "many"), "joined by commas"),
        (("qwen2.5-1.5b", "--plan", "--depth", "0"), "at least 1"),
        (("qwen2.5-1.5b", "--plan", "--depth", "999999"), "at most"),
        (("qwen2.5-1.5b", "--plan", "--zero-mode", "none"), "unknown name"),
        (("qwen2.5-1.5b", "--plan", "--json", "--markdown"), "exclude one another"),
        (("qwen2.5-1.5b", "--plan", "--accounting", "mine"), "unknown"),
        (("qwen2.5-1.5b", "--plan", "--out", "x.json"), "a plan runs none"),
        (("--published", "rtx-3070"), "is not known"),
    ],
)
def test_bad_input_is_named(args, rule) -> None:
    with pytest.raises(RoofgapError, match=f"(?i){rule}"):
        run(*args)
