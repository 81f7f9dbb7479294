"""``roofgap compare``: without a GPU, and whole on a scripted one with peers that need none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roofgap.cli.main import app
from roofgap.kernels.reference import reference
from roofgap.shapes.device import Bandwidth
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import load_manifest
from roofgap.tracking.site.roofline import roofline_data
from roofgap.tuning import gpu_session
from roofgap.tuning.measure.fake import ScriptedDevice
from roofgap.tuning.measure.gap import Ceilings
from roofgap.tuning.measure.policy import CHAINED, MeasurePolicy
from roofgap.tuning.peers import compare as comparing
from roofgap.tuning.peers import worker as workers
from roofgap.tuning.peers.peer import NOT_TUNED, Packed, Peer
from roofgap.tuning.peers.registry import PEER_NAMES
from roofgap.tuning.results import make_results, read_results

runner = CliRunner()
FEW = MeasurePolicy(min_launches=1, max_launches=1, replays=1, warmup_window=1)


def run(*args: str) -> Any:
    return runner.invoke(app, ["compare", *args])


class Toy(Peer):
    """A dense product under a peer's name; ``gone`` are not installed."""

    needs_gpu = False
    gone: set[str] = set()  # noqa: RUF012 - set by tests

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]
        self.dtypes = ("bf16",) if name == "tinygemm" else ("fp16", "bf16")  # type: ignore[misc]

    def missing(self, dtype: Any) -> str | None:
        return f"{self.name} is not installed" if self.name in self.gone else None

    def refuses(self, problem: Any) -> str | None:
        return "one row only" if self.name == "bnb-nf4-gemv" and problem.m > 1 else None

    def pack(self, weight: Any, dtype: Any) -> Packed:
        read = {"dense": weight.dequantise(dtype)}
        return Packed(n=weight.n, k=weight.k, group_size=weight.group_size, dtype=dtype, read=read)

    def run(self, x: Any, packed: Packed, out: Any = None) -> Any:
        return (x.float() @ packed.read["dense"].float().T).to(x.dtype)

    def reference(self, x: Any, weight: Any, packed: Packed, tuned: Any = NOT_TUNED) -> Any:
        return reference(x, weight)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedDevice:
    """Toys on a scripted GPU, in this process."""
    device = ScriptedDevice(l2_bytes=1 << 10, work_us=4.0)
    device.read_gbps = 4000.0

    class Here:
        def __init__(self, settings: Any, timeout: float) -> None:
            object.__setattr__(settings, "policy", FEW)
            ceilings = Ceilings(Bandwidth(4000.0, "measured read"), 1.0, None)
            self.bench = comparing.Bench(device, settings, ceilings)
            self.runnable = self.bench.runnable
            self.close = self.bench.close

        def hello(self) -> workers.Hello:
            return workers.Hello(gpu="toy", device="Toy", versions=self.bench.versions(), read_gbps=4000.0)

        def measure(self, task: Any, banned: Any) -> Any:
            return self.bench.measure(task, banned)

    monkeypatch.setattr(Toy, "gone", set())
    monkeypatch.setattr(
        comparing, "make_peers", lambda settings: {name: Toy(name) for name in PEER_NAMES[1:]}
    )
    monkeypatch.setattr(gpu_session, "require_gpu", lambda indices: None)
    monkeypatch.setattr(workers, "Worker", Here)
    return device


@pytest.mark.skipif("__import__('torch').cuda.is_available()")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    result = run("64x128", "--out", str(tmp_path / "x.json"))
    assert isinstance(result.exception, RoofgapError)
    assert "needs a GPU" in str(result.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--variant", "v9"), "v9"),
        (("--peers", "cutlass"), "cutlass"),
        (("--m", "0"), "at least 1"),
        (("--gemlite-tuning", "best"), "max, fast or default"),
        (("--resume",), "Name it with --out"),
    ],
)
@pytest.mark.usefixtures("scripted")
def test_bad_input(args: tuple[str, ...], words: str) -> None:
    result = run("64x128", *args)
    assert isinstance(result.exception, RoofgapError), result.output
    assert words in str(result.exception)


@pytest.mark.usefixtures("scripted")
def test_from_check_to_file_and_page(tmp_path: Path) -> None:
    out = tmp_path / "results" / "compare" / "toy.json"
    result = run(
        "64x128", "--variant", "v2,v3", "--m", "1,2", "--group-size", "32", "--out", str(out), "--json"
    )
    assert result.exit_code == 0, result.output
    saved = read_results(out)
    printed = json.loads(result.stdout)
    assert printed["rows"] == [dict(row) for row in saved.rows]
    assert saved.gpu == "toy"
    assert [(row["variant"], row["m"]) for row in saved.rows] == [
        (name, m) for m in (1, 2) for name in ("v2", "v3", *PEER_NAMES)
    ]
    refused = [row for row in saved.rows if row["status"] != "ok"]
    assert [(row["variant"], row["m"], row["status"]) for row in refused] == [
        ("bnb-nf4-gemv", 2, "unsupported")
    ]
    first = saved.rows[0]
    assert (first["latency_us"], first["best_peer_ratio"], first["ratio_counts"]) == (4.0, 1.0, True)
    assert first["config_source"] == "default"
    assert {row["dtype"] for row in saved.rows if row["variant"] == "tinygemm"} == {"bf16"}
    for row in saved.rows:
        if row["status"] == "ok":
            assert row["roof_gap"] == pytest.approx(row["latency_us"] / row["floor_us"])  # type: ignore[operator]
            assert isinstance(row["weight_bytes"], int)
    assert [mean["variant"] for mean in printed["summary"]] == [
        "best own",
        "best own",
        "v2",
        "v2",
        "v3",
        "v3",
    ]
    page = roofline_data(tmp_path / "results", [], {})
    assert not page["problems"]
    assert len(page["gpus"][0]["kernels"]) == len(saved.rows)


@pytest.mark.usefixtures("scripted")
def test_resume_measures_what_is_lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "toy.json"
    args = ("--variant", "v2", "--group-size", "32", "--out", str(out), "--resume")
    monkeypatch.setattr(Toy, "gone", {"marlin"})
    first = run("64x128", *args)
    assert first.exit_code == 0, first.output
    assert "no ratio counts: marlin unsupported" in first.stderr
    before = read_results(out).rows
    assert "kept" in run("64x128", *args).stderr
    assert read_results(out).rows == before
    monkeypatch.setattr(Toy, "gone", set())
    second = run("64x128", *args, "--m", "1,2")
    assert "kept" not in second.stderr
    rows = read_results(out).rows
    assert len(rows) == 2 * len(before)
    assert all(row["ratio_counts"] for row in rows)


@pytest.mark.usefixtures("scripted")
def test_resume_refuses_another_gpu(tmp_path: Path) -> None:
    out = tmp_path / "other.json"
    make_results("other", {}, []).save(out)
    result = run("64x128", "--out", str(out), "--resume")
    assert "is not this GPU (toy)" in str(result.exception)


@pytest.mark.usefixtures("scripted")
def test_resume_refuses_rows_of_another_policy(tmp_path: Path) -> None:
    out = tmp_path / "chained.json"
    make_results("toy", {}, [{"problem": "p", "variant": "v4", "policy": CHAINED.key}]).save(out)
    before = out.read_bytes()
    result = run("64x128", "--out", str(out), "--resume")
    assert "was not measured under cold-graph-l2x3" in str(result.exception)
    assert out.read_bytes() == before


@pytest.mark.usefixtures("scripted")
def test_a_manifest_with_fused_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(self: Any, task: Any, banned: Any) -> list[dict[str, Any]]:
        assert not task.problem.bias
        return [
            {"problem": task.problem.key, "variant": "torch", "status": "ok", "latency_us": 1.0}
            | {"n": task.problem.n, "k": task.problem.k, "m": 1, "dtype": "fp16"}
        ]

    monkeypatch.setattr(comparing.Bench, "measure", measure)
    result = run("qwen2.5-1.5b", "--variant", "v2", "--peers", "torch", "--include-fused", "--json")
    shapes = [(row["n"], row["k"]) for row in json.loads(result.stdout)["rows"]]
    manifest = load_manifest("qwen2.5-1.5b")
    wanted = {(one.n, one.k) for kind in (manifest, manifest.fused()) for one in kind.matrices}
    assert set(shapes) == wanted
    assert len(shapes) == len(wanted) == 7
