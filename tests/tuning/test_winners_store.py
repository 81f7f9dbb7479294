from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning_toys import PROBLEM, TOOLCHAIN, TOY

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tuning import winners_store
from roofgap.tuning.lookup import identity_of
from roofgap.tuning.winner import Identity, Provenance, Reading, Winner, gpu_slug

IDENTITY = identity_of(TOY, PROBLEM, "h200")
PROVENANCE = Provenance(
    toolchain=TOOLCHAIN,
    source_hash="s",
    space_hash="p",
    date="2026-11-29",
    run="one",
    strategy="racing",
    seed=0,
    trials=9,
)


def winner(**changes: Any) -> Winner:
    fields: dict[str, Any] = {
        "identity": IDENTITY,
        "provenance": PROVENANCE,
        "config": TOY.default_config(PROBLEM).to_dict(),
        "latency_us": 2.0,
        "p20_us": 1.9,
        "p80_us": 2.1,
        "tie_band": 0.02,
        "tie_set": (),
        "default": Reading(config="d", latency_us=3.0, ratio=1.5),
    }
    return Winner(**{**fields, **changes})


@pytest.fixture
def only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(winners_store.ENVIRONMENT, str(tmp_path))
    monkeypatch.setattr(winners_store, "user_folder", lambda: tmp_path / "user")
    monkeypatch.setattr(winners_store, "shipped_folder", lambda: None)
    return tmp_path


def test_round_trip(only_folder: Path):
    path = winners_store.save(only_folder, winner())
    assert path == only_folder / "h200" / "toy" / f"{PROBLEM.key}.json"
    found = winners_store.find(IDENTITY)
    assert found.winner == winner() and found.path == path


def test_project_before_user_before_shipped(tmp_path: Path, monkeypatch):
    layers = [tmp_path / name for name in ("project", "user", "shipped")]
    monkeypatch.setenv(winners_store.ENVIRONMENT, str(layers[0]))
    monkeypatch.setattr(winners_store, "user_folder", lambda: layers[1])
    monkeypatch.setattr(winners_store, "shipped_folder", lambda: layers[2])
    for folder in reversed(layers):
        path = winners_store.save(folder, winner())
        assert winners_store.find(IDENTITY).path == path
    assert winners_store.writable_folder() == layers[0]


def test_project_folder_is_that_of_the_repository(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(winners_store.ENVIRONMENT, raising=False)
    (tmp_path / "tuning" / "winners").mkdir(parents=True)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "deep" / "er")
    assert winners_store.project_folder() == tmp_path / "tuning" / "winners"
    (tmp_path / "deep" / ".git").mkdir()
    assert winners_store.project_folder() is None


FIELDS = {
    "n": st.integers(1, 9999),
    "k": st.integers(1, 9999),
    "m": st.integers(0, 999),
    "group_size": st.sampled_from([-1, 32, 64, 128]),
    "x_dtype": st.sampled_from(["fp16", "bf16"]),
    "zero_mode": st.sampled_from(["sym", "asym", "offset"]),
    "bias": st.booleans(),
}


@given(first=st.builds(Problem, **FIELDS), second=st.builds(Problem, **FIELDS))
def test_two_problems_never_share_a_file(first: Problem, second: Problem):
    names = {identity_of(TOY, problem, "h200").file_name for problem in (first, second)}
    assert (len(names) == 1) == (first == second)


@pytest.mark.parametrize(
    ("field", "value"), [("gpu", "h100"), ("variant", "v2"), ("config_version", 2), ("policy", "eager-l2x3")]
)
def test_any_other_identity_misses(only_folder: Path, field: str, value: Any):
    winners_store.save(only_folder, winner())
    assert winners_store.find(IDENTITY.model_copy(update={field: value})).winner is None


def test_a_miss_says_which_field(only_folder: Path):
    winners_store.save(only_folder, winner())
    found = winners_store.find(IDENTITY.model_copy(update={"config_version": 2}))
    assert found.steps[0][1] == "config_version is 1, wanted 2"


def _edited(**changes: Any) -> str:
    return json.dumps({**json.loads(winner().to_json()), **changes})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "damaged"),
        (winner().to_json()[:200], "damaged"),
        ("[]", "not a winner file"),
        ('{"E": 8, "N": 512}', "not a winner file"),
        (_edited(schema=2), "schema 2, this version reads up to 1"),
        (_edited(latency_us=-1.0), "latency_us"),
        (_edited(surprise=1), "surprise"),
        (_edited(identity={**IDENTITY.model_dump(), "problem": "n1-k8-m1-g128-fp16-sym"}), "belongs at"),
    ],
)
def test_a_bad_file_on_the_way_is_an_error_that_names_it(only_folder: Path, content: str, said: str):
    path = winners_store.path_in(only_folder, IDENTITY)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(RoofgapError, match=said) as caught:
        winners_store.find(IDENTITY)
    assert str(path) in str(caught.value)
    assert path.read_text() == content


def test_publishing_over_a_damaged_winner_leaves_it(only_folder: Path):
    path = winners_store.path_in(only_folder, IDENTITY)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(RoofgapError):
        winners_store.publish(only_folder, winner())
    assert path.read_text() == "{"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_keeps_the_old_winner(only_folder: Path, monkeypatch, failing: str):
    path = winners_store.save(only_folder, winner())
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(RoofgapError, match="cannot be written"):
        winners_store.save(only_folder, winner(latency_us=1.0))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == [path]


def test_a_read_only_place(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RoofgapError, match="cannot be written"):
        winners_store.save(tmp_path / "file", winner())


def test_never_into_the_installed_package(tmp_path: Path):
    with pytest.raises(RoofgapError, match="installed package"):
        winners_store.save(tmp_path / "site-packages" / "roofgap", winner())


def _new(ratio_previous: float | None, **changes: Any) -> Winner:
    config = replace(TOY.default_config(PROBLEM), num_warps=8)
    previous = None
    if ratio_previous is not None:
        previous = Reading(config=winner().config_key, latency_us=2.0, ratio=ratio_previous)
    provenance = PROVENANCE.model_copy(update={"run": "two", "replaces": "one"})
    return winner(**{"config": config.to_dict(), "previous": previous, "provenance": provenance, **changes})


CHANGED = PROVENANCE.model_copy(update={"run": "two", "replaces": "one", "source_hash": "other"})


@pytest.mark.parametrize(
    ("new", "reason", "written"),
    [
        (_new(1.10), "published", True),
        (_new(0.99), "published", True),
        (_new(0.90), "previous winner is faster by 11.1%", False),
        (_new(None), "published", True),
        (
            _new(1.1, default=Reading(config="d", latency_us=1.0, ratio=0.5)),
            "default is faster by 100.0%",
            False,
        ),
        (_new(1.0, config=winner().config), "unchanged", False),
        (_new(1.0, config=winner().config, provenance=CHANGED), "published", True),
        (winner(provenance=PROVENANCE.model_copy(update={"run": "three"})), "another run published", False),
    ],
)
def test_a_winner_is_replaced_only_by_a_better_one(
    only_folder: Path, new: Winner, reason: str, written: bool
):
    path = winners_store.save(only_folder, winner())
    published, said = winners_store.publish(only_folder, new)
    assert reason in said
    assert (published == path) == written
    assert winners_store.load(path) == (new if written else winner())


def test_stale_fields_name_both_sides_and_unknown_matches_nothing():
    unknown = PROVENANCE.model_copy(update={"toolchain": TOOLCHAIN.model_copy(update={"driver": "unknown"})})
    assert winners_store.stale_fields(PROVENANCE, PROVENANCE) == []
    assert winners_store.stale_fields(PROVENANCE, CHANGED) == ["source_hash: s -> other"]
    assert winners_store.stale_fields(unknown, unknown) == ["driver: unknown -> unknown"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 3060", "rtx-3060"),
        ("AMD Instinct MI60 / MI50", "mi60-mi50"),
        ("../../etc/passwd", "etc-passwd"),
        ("///", "unknown"),
    ],
)
def test_gpu_slugs_are_safe_file_names(name: str, expected: str):
    assert gpu_slug(name) == expected


@given(name=st.text(max_size=30))
def test_any_device_name_gives_one_path_part(name: str):
    slug = gpu_slug(name)
    assert slug and "/" not in slug and slug not in (".", "..")


def test_other_policies_have_files_of_their_own():
    other = Identity(**{**IDENTITY.model_dump(), "policy": "warm-graph"})
    assert other.file_name == f"{PROBLEM.key}@warm-graph.json"
