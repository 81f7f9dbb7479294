"""What ``asv publish`` writes for a repository whose history is known, and the records behind each page."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import shutil
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import site_toys
from hypothesis import given
from hypothesis import strategies as st
from site_toys import Site

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.problem import Problem
from roofgap.tracking.site import git, offline, tuning
from roofgap.tracking.site.roofline import roofline_data
from roofgap.tracking.site.tuning import problem_of, tuning_data, unvalidated
from roofgap.tuning.winner import Winner

asv = pytest.importorskip("asv", reason="asv is not installed")


def steps(site: Site, **wanted: str) -> list[dict[str, Any]]:
    """Steps of the history page whose series has these parameters or this benchmark."""
    data = site.data("history")
    found = []
    for step in data["steps"]:
        series = data["series"][step["series"]]
        if all(
            {"benchmark": series["benchmark"], **series["params"]}.get(key) == value
            for key, value in wanted.items()
        ):
            found.append(step)
    return found


def test_history_lists_steps_that_recovered(site: Site) -> None:
    fall, rise = steps(
        site, benchmark="static.Registers.track_registers", variant="v3", shape="1536x1536", target="sm_90"
    )
    assert (rise["before"], rise["after"], rise["direction"], rise["outcome"]) == (40, 56, "worse", "fixed")
    # Commit 3 was not measured: the culprit is 3 or 4.
    assert (rise["from"], rise["to"], rise["suspects"]) == (site.hashes[2], site.hashes[4], 2)
    assert (rise["end"], rise["end_commits"], rise["end_days"]) == (site.hashes[7], 3, 3.0)
    assert (fall["outcome"], fall["to"], fall["suspects"]) == ("held", site.hashes[7], 1)


def test_history_keeps_what_lasted_one_commit(site: Site) -> None:
    back, blip = steps(site, variant="v2", shape="8960x1536", target="sm_90")
    assert (blip["before"], blip["after"], blip["outcome"], blip["end"]) == (32, 33, "fixed", site.hashes[6])
    assert back["from"] == blip["to"] == site.hashes[5]


def test_history_keeps_every_change_of_an_exact_series(site: Site) -> None:
    found = steps(site, variant="v1", shape="1536x1536", target="sm_80")
    assert [step["after"] for step in found] == [71, 70, 69, 68, 67, 66, 65, 64, 62, 61], "asv fits one level"


def test_history_sees_the_last_commit_and_series_without_parameters(site: Site) -> None:
    (rise,) = steps(site, variant="v2", shape="1536x8960", target="sm_80")
    assert (rise["to"], rise["outcome"], rise["ratio"]) == (site.hashes[11], "open", 1.125)
    (slower,) = steps(site, benchmark="host.CommandStart.track_ms")
    assert (slower["to"], slower["after"]) == (site.hashes[6], 260)


def test_history_takes_steps_in_noise_from_asv(site: Site) -> None:
    found = [
        step
        for step in steps(site, benchmark="device.Kernel.device_latency", variant="v3")
        if not step["minor"]
    ]
    assert {(step["from"], step["to"]) for step in found} == {(site.hashes[6], site.hashes[8])}
    assert len(found) == 6


def test_history_names_every_suspect(site: Site) -> None:
    data = site.data("history")
    listed = {commit["hash"]: commit for commit in data["commits"]}
    assert set(site.hashes) == set(listed), "all but commit 3 were measured, and 3 is a suspect"
    assert not listed[site.hashes[3]]["measured"]
    assert listed[site.hashes[3]]["subject"] == "change 3 <b>of</b> the kernel"
    assert data["series_total"] == 18 + 2 * 18 + 1


def test_roofline_reads_every_source_and_names_what_is_broken(site: Site) -> None:
    data = site.data("roofline")
    by_gpu = {one["gpu"]: one for one in data["gpus"]}
    assert set(by_gpu) == {"h200", "rtx-3060"}
    rows = {(row["variant"], row["shape"], row["m"]): row for row in by_gpu["rtx-3060"]["kernels"]}
    row = rows["v3", "1536x1536", 1]
    bytes_us = 1536 * 1536 / 2 / 4e6
    assert row["attainable_gap"] == pytest.approx((bytes_us * 1.15 + 2) / (bytes_us + 1.8), rel=1e-5)
    assert row["roof_gap"] == pytest.approx((bytes_us * 1.15 + 2) / (bytes_us * 0.9 + 1.5), rel=1e-5)
    assert rows["gemlite", "1536x1536", 1]["latency_us"] is None
    assert [row["arm"] for row in by_gpu["rtx-3060"]["decode"]] == ["bf16", "w4-v3"]
    device = {(row["variant"], row["shape"], row["m"]): row for row in by_gpu["h200"]["kernels"]}
    newest = device["v3", "8960x1536", 16]
    assert newest["source"] == f"asv {site.hashes[10][:10]}"
    assert newest["latency_us"] == pytest.approx(site_toys.latency_us(10, "v3", "8960x1536", "16"), rel=0.02)
    assert newest["attainable_gap"] is not None and newest["roof_gap"] is None
    broken, row_problem = data["problems"]
    assert broken.startswith("results/compare/broken.json")
    assert row_problem == "results/e2e/rtx-3060/qwen2.5-1.5b.json row 3: model: Field required"
    assert "broken.json" in site.output, "the console names it too"


def test_roofline_without_results_is_empty(tmp_path: Path) -> None:
    assert roofline_data(tmp_path / "results", [], {}) == {"gpus": [], "problems": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": "one"}, "row 1: m:"),
        ({"latency_us": -1.0}, "row 1: latency_us:"),
        ({"variant": None}, "row 1: variant:"),
    ],
)
def test_roofline_names_a_bad_row(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = {"variant": "v2", "n": 8, "k": 8, "m": 1, "latency_us": 3.0}
    row = {**good, "variant": "v3", **change}
    head = {"schema": 1, "gpu": "h200", "versions": {}, "date": "", "commit": None, "command": ""}
    path = tmp_path / "results" / "compare" / "h200.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**head, "rows": [row, good]}))
    data = roofline_data(tmp_path / "results", [], {})
    assert message in data["problems"][0]
    assert [row["variant"] for row in data["gpus"][0]["kernels"]] == ["v2"], "the good row stays"


def test_tuning_follows_a_winner_through_its_commits(site: Site) -> None:
    data = site.data("tuning")
    kept, removed = data["winners"]
    assert kept["problem"] == site_toys.PROBLEM
    assert [(entry["event"], entry["commit"]) for entry in kept["history"]] == [
        ("first", site.hashes[2]),
        ("retuned", site.hashes[5]),
        ("unreadable", site.hashes[6]),
        ("retuned", site.hashes[8]),
    ]
    assert kept["history"][1]["changed"] == [{"field": "block_n", "from": 32, "to": 128}]
    assert kept["history"][1]["over_previous"] == 1.61
    assert {"field": "triton", "from": "3.6.0", "to": "3.7.1"} in kept["history"][3]["changed"]
    assert kept["current"]["ties"] == 1
    assert any(text.startswith("source_hash: 0123456789ab -> ") for text in kept["current"]["unvalidated"])
    assert not any("driver" in text for text in kept["current"]["unvalidated"]), "this machine is no H200"
    assert [entry["event"] for entry in removed["history"]] == ["first", "removed"]
    assert removed["current"] is None


def test_tuning_names_a_broken_winner_only_while_it_is_broken() -> None:
    def change(number: int, text: str | None) -> git.FileChange:
        commit = git.Commit(str(number) * 40, number, "s")
        path = f"tuning/winners/h200/v3/{site_toys.PROBLEM}.json"
        return git.FileChange(commit, path, None if text is None else text.encode())

    good = site_toys.winner_text(32, 5.0)
    assert tuning_data([change(1, good), change(2, "{"), change(3, good)])["problems"] == []
    (problem,) = tuning_data([change(1, good), change(2, "{")])["problems"]
    assert site_toys.PROBLEM in problem
    misplaced = git.FileChange(change(1, good).commit, "tuning/winners/a100/v3/other.json", good.encode())
    assert "belongs at h200/v3/" in tuning_data([misplaced])["problems"][0]


def test_winner_of_this_source_is_validated() -> None:
    from roofgap.kernels.registry import get_variant
    from roofgap.tuning.lookup import current_provenance

    winner = Winner.model_validate_json(site_toys.winner_text(32, 5.0))
    variant, problem = get_variant("v3"), problem_of(site_toys.PROBLEM)
    here = current_provenance(variant, problem)
    identity = winner.identity.model_copy(update={"config_version": variant.config_type.version})
    fresh = winner.model_copy(update={"provenance": here, "identity": identity})
    assert unvalidated(fresh) == []
    stale = fresh.model_copy(update={"provenance": here.model_copy(update={"space_hash": "other"})})
    assert [text.split(":")[0] for text in unvalidated(stale)] == ["space_hash"]
    gone = fresh.model_copy(update={"identity": identity.model_copy(update={"variant": "v0"})})
    assert "v0" in unvalidated(gone)[0]


@given(
    st.builds(
        Problem,
        n=st.integers(1, 99999),
        k=st.integers(1, 99999),
        m=st.integers(0, 64),
        group_size=st.sampled_from([-1, 32, 128]),
        x_dtype=st.sampled_from(["fp16", "bf16"]),
        zero_mode=st.sampled_from(["sym", "asym", "offset"]),
        bias=st.booleans(),
    )
)
def test_problem_from_its_key(problem: Problem) -> None:
    assert problem_of(problem.key) == problem


def test_key_of_no_problem_is_refused() -> None:
    with pytest.raises(RoofgapError, match="not the key of a problem"):
        problem_of("n8-k8")


def test_file_history_sees_merges_once_and_odd_names(tmp_path: Path) -> None:
    site_toys.git(tmp_path, "init", "-q", "-b", "main")
    assert git.file_history(tmp_path, "main", "data") == [], "no commit yet"
    (tmp_path / "data").mkdir()
    odd = tmp_path / "data" / "a b\tü\n.json"
    odd.write_text("1")
    site_toys.git(tmp_path, "add", "-A")
    site_toys.git(tmp_path, "commit", "-qm", "one")
    site_toys.git(tmp_path, "checkout", "-qb", "side")
    odd.write_bytes(b"2\n\xff")
    site_toys.git(tmp_path, "commit", "-qam", "side", commit=1)
    site_toys.git(tmp_path, "checkout", "-q", "main")
    (tmp_path / "other").write_text("x")
    site_toys.git(tmp_path, "add", "-A")
    site_toys.git(tmp_path, "commit", "-qm", "other", commit=2)
    site_toys.git(tmp_path, "merge", "-q", "--no-ff", "-m", "merge", "side", commit=3)
    found = git.file_history(tmp_path, "main", "data")
    assert [(change.commit.subject, change.path, change.content) for change in found] == [
        ("one", "data/a b\tü\n.json", b"1"),
        ("merge", "data/a b\tü\n.json", b"2\n\xff"),
    ]


def test_site_asks_for_nothing_outside_itself(site: Site) -> None:
    for page in site.html.glob("*.html"):
        for address in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', page.read_text()):
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
            assert (site.html / address.partition("?")[0]).is_file(), f"{page.name} lacks {address}"


@pytest.mark.parametrize("triton", ["3.6.0", "3.7.1"])
def test_an_upgrade_of_triton_is_no_regression(site: Site, tmp_path: Path, triton: str) -> None:
    """From commit 6 on everything on the laptop is twice as much, with the same Triton or with another."""
    repo = tmp_path / "repo"
    shutil.copytree(site.repo, repo, ignore=shutil.ignore_patterns("html"))
    for path in (repo / ".asv" / "results" / "laptop").glob("*-overlay-*.json"):
        stored = json.loads(path.read_text())
        if site.hashes.index(stored["commit_hash"]) < 6:
            continue
        path.unlink()
        stored["params"]["triton"] = stored["requirements"]["triton"] = triton
        stored["env_name"] = stored["env_name"].replace("3.6.0", triton)
        for columns in stored["results"].values():
            columns[0] = [2 * value for value in columns[0]]
        (path.parent / path.name.replace("3.6.0", triton)).write_text(json.dumps(stored))
    assert site_toys.publish(repo).returncode == 0
    changed = Site(repo, site.hashes, "")
    doubled = [
        step
        for step in steps(changed)
        if step["from"] == site.hashes[5] and changed.data("history")["series"][step["series"]]["gpu"] == ""
    ]
    machines = json.loads((changed.html / "index.json").read_text())["graph_param_list"]
    listed = json.loads((changed.html / "regressions.json").read_text())["regressions"]
    upgraded = triton != "3.6.0"
    assert len(doubled) == (0 if upgraded else 18 + 1)
    assert len(machines) == (3 if upgraded else 2)
    assert (6 in {jump[1] for *_, jumps in listed for jump in jumps}) != upgraded


def test_what_was_never_measured_is_left_out(site: Site, tmp_path: Path) -> None:
    stored = json.loads((site.repo / ".asv" / "results" / "benchmarks.json").read_text())
    assert "host.Never.track_measured" in stored
    shown = json.loads((site.html / "index.json").read_text())["benchmarks"]
    assert set(shown) == {benchmark["name"] for benchmark, _, _ in site_toys.suite()}
    assert all(one["params"] == stored[name]["params"] for name, one in shown.items())
    cell = {"name": "a", "idx": 0, "last_value": None}
    folder = tmp_path / "graphs" / "machine-m"
    folder.mkdir(parents=True)
    (tmp_path / "index.json").write_text('{"benchmarks": {}}')
    (folder / "summary.json").write_text(json.dumps([{**cell, "last_rev": rev} for rev in (None, 0, 3)]))
    offline.leave_out_unmeasured(tmp_path)
    left = json.loads((folder / "summary.json").read_text())
    assert [row["last_rev"] for row in left] == [0, 3], "a cell that failed where it was measured stays"


def test_two_publications_are_the_same(site: Site) -> None:
    def files() -> dict[str, str]:
        return {
            path.relative_to(site.html).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(site.html.rglob("*"))
            if path.is_file()
        }

    before = files()
    assert site_toys.publish(site.repo).returncode == 0
    assert files() == before


def test_vendored_files_are_what_the_manifest_says() -> None:
    folder = offline.ASSETS / "vendor"
    entries = json.loads((folder / "manifest.json").read_text())
    for entry in entries:
        content = (folder / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"], entry["file"]
        if entry["integrity"]:
            name, _, expected = entry["integrity"].partition("-")
            assert b64encode(hashlib.new(name, content).digest()).decode() == expected, entry["file"]
        licence = folder / (entry["licence_file"] or entry["file"])
        assert "MIT" in licence.read_text() or "Permission is hereby granted" in licence.read_text()
    known = {name for entry in entries for name in (entry["file"], entry["licence_file"]) if name}
    assert {path.name for path in folder.iterdir()} == known | {"manifest.json", "README.md"}


def test_page_that_asks_for_another_library_is_refused() -> None:
    html = asv_index()
    with pytest.raises(RoofgapError, match="jquery-4"):
        offline.offline_index(html.replace("jquery-3.3.1", "jquery-4.0.0"), "")
    with pytest.raises(RoofgapError, match="once"):
        offline.offline_index(html.replace('<li id="nav-li-graphdisplay">', ""), "")
    with pytest.raises(RoofgapError, match="another title"):
        offline.offline_index(html.replace("of an unladen", ""), "")


def asv_index() -> str:
    """The page that the installed asv publishes."""
    return (Path(asv.__file__).parent / "www" / "index.html").read_text()


def test_canary_of_private_asv_names(tmp_path: Path) -> None:
    """Fails when an asv is installed that lacks a name which the plug-in leans on."""
    from asv.commands.publish import Publish
    from asv.config import Config
    from asv.graph import Graph, GraphSet
    from asv.plugins.git import Git
    from asv.publishing import OutputPublisher

    assert inspect.ismethod(Publish.run), "wrapped as a class method"
    assert list(inspect.signature(Publish.run).parameters) == ["conf", "range_spec", "pull"]
    assert list(inspect.signature(OutputPublisher.publish).parameters) == [
        "conf",
        "repo",
        "benchmarks",
        "graphs",
        "revisions",
    ]
    assert {"show_commit_url", "branches", "html_dir", "regressions_thresholds"} <= vars(Config()).keys()
    assert Config().show_commit_url == "#"
    graphs = GraphSet()
    graph = graphs.get_graph("a.b", {"machine": "m"})
    assert isinstance(graph, Graph) and graph.benchmark_name == "a.b" and graph.params == {"machine": "m"}
    graph.add_data_point(1, [1.0, 2.0], [None, None])
    assert list(graphs) == [(graph.path, graph)]
    assert graph.get_data() == [(1, [1.0, 2.0], [None, None])] and graph.scalar_series is False
    assert [step[:3] for step in graph.get_steps()[1]] == [(1, 2, 2.0)]
    site_toys.git(tmp_path, "init", "-q")
    repo = Git(str(tmp_path), "")
    assert Path(repo._path) == tmp_path
    assert repo.get_range_spec("a", "b") and callable(repo.get_hashes_from_range)
    assert offline.offline_index(asv_index(), "x")
    script = tmp_path / "regressions.js"
    script.write_text((Path(asv.__file__).parent / "www" / "regressions.js").read_text())
    offline.say_from_zero(script)
    with pytest.raises(RoofgapError, match=r"regressions\.js"):
        offline.say_from_zero(script)
    assert tuning.FOLDER == "tuning/winners"


def test_the_feed_does_not_depend_on_the_order_of_its_entries(tmp_path: Path) -> None:
    def entry(day: int, title: str) -> str:
        return f"<entry><title>{title}</title><updated>2026-11-{day:02}T00:00:00Z</updated></entry>"

    entries = [entry(1, "a"), entry(2, "b"), entry(2, "c")]
    settled = []
    for listed in (entries, entries[::-1], [entries[1], entries[0], entries[2]]):
        path = tmp_path / "regressions.xml"
        path.write_text(f'<feed xmlns="{offline.ATOM}"><title>t</title>{"".join(listed)}</feed>')
        offline.settle_feed(path)
        settled.append(path.read_text())
    assert settled[0] == settled[1] == settled[2]
    assert settled[0].index("<title>c") < settled[0].index("<title>b") < settled[0].index("<title>a")
