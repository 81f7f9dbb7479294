"""A small repository with asv results, winners and result files: enough history for every page of the site.

Runs as a program too (``python site_toys.py FOLDER``), to look at the pages.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMITS = 12
DAY_S = 86400
START_S = 1_790_000_000
VARIANTS = ("v1", "v2", "v3")
SHAPES = ("1536x1536", "8960x1536", "1536x8960")
PROBLEM = "n1536-k1536-m1-g128-fp16-sym"
COMPARED = ((1536, 1536), (8960, 1536), (1536, 8960), (256, 1536), (4096, 14336))
FACTORS = {"v1": 3.1, "v2": 1.5, "v3": 1.15, "tldot": 2.6, "torch": 4.1, "tinygemm": 1.9, "marlin": 1.2}
OTHER_PROBLEM = "n8960-k1536-m1-g128-fp16-sym"


def registers(commit: int, variant: str, shape: str, target: str) -> float:
    """v3 rises at 4 and is mended at 7; v2 has a blip at 5 on sm_90, rises at 11 on sm_80; v1 creeps up by one each."""
    if variant == "v3":
        return 56 if 4 <= commit < 7 else 40
    if variant == "v2":
        return 33 if target == "sm_90" and commit == 5 else 36 if target == "sm_80" and commit == 11 else 32
    return 60 + commit


def latency_us(commit: int, variant: str, shape: str, m: str) -> float:
    """Half as long from commit 8 on, for v3."""
    n, k = (int(size) for size in shape.split("x"))
    base = n * k / 2 / 4.0e6 * {"v1": 3.0, "v2": 1.5, "v3": 1.2}[variant] + 2
    return base * (1.4 if variant == "v3" and commit < 8 else 1.0)


def git(repo: Path, *args: str, commit: int = 0) -> str:
    """Runs git with a fixed author and the date of a commit."""
    date = f"{START_S + commit * DAY_S} +0000"
    names = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", "t"), ("EMAIL", "t@localhost"), ("DATE", date))
    }
    done = subprocess.run(
        ["git", *args], cwd=repo, env={**os.environ, **names}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def winner_text(
    block_n: int, latency: float, problem: str = PROBLEM, triton: str = "3.6.0", **more: Any
) -> str:
    """A winner file of v3 on an H200."""
    fields = {
        "schema": 1,
        "identity": {"gpu": "h200", "variant": "v3", "problem": problem, "config_version": 1},
        "provenance": {
            "toolchain": {"driver": "580.1", "cuda": "13.0", "torch": "2.11.0", "triton": triton},
            "source_hash": "0123456789ab", "space_hash": "ba9876543210", "date": "2026-09-21", "run": "one",
            "strategy": "racing", "seed": 0, "trials": 96,
        },
        "config": {"block_n": block_n, "split_k": 4, "num_warps": 4},
        "latency_us": latency, "p20_us": latency * 0.98, "p80_us": latency * 1.03, "rel_error": 0.0004,
        "tie_band": 0.02, "tie_set": [{"config": "block_n=64", "latency_us": latency * 1.01, "ratio": 1.01}],
        "rejected": {"wrong": {"count": 2, "example": "block_n=256", "evidence": "row 7 differs"}},
        **more,
    }  # fmt: skip
    return json.dumps(fields, indent=2) + "\n"


def make_repo(repo: Path) -> list[str]:
    """Commits with fixed hashes; winners come at 2, change at 5 and 8, and one file is broken for a commit."""
    winners = repo / "tuning" / "winners" / "h200" / "v3"
    winners.mkdir(parents=True)
    conf = json.loads((ROOT / "asv.conf.json").read_text())
    thresholds = {"static\\.": 0.0, "device\\.": 0.03}
    own = {"regressions_thresholds": thresholds, "results_dir": ".asv/results", "html_dir": ".asv/html"}
    (repo / "asv.conf.json").write_text(json.dumps({**conf, **own}))
    contents: dict[int, dict[str, str | None]] = {
        2: {PROBLEM: winner_text(32, 5.0), OTHER_PROBLEM: winner_text(64, 11.0, OTHER_PROBLEM)},
        5: {
            PROBLEM: winner_text(
                128, 3.1, previous={"config": "block_n=32", "latency_us": 5.0, "ratio": 1.61}
            )
        },
        6: {PROBLEM: "{"},
        8: {PROBLEM: winner_text(64, 3.0, triton="3.7.1"), OTHER_PROBLEM: None},
    }
    git(repo, "init", "-q", "-b", "main")
    for commit in range(COMMITS):
        (repo / "code.txt").write_text(f"{commit}\n")
        for problem, text in contents.get(commit, {}).items():
            path = winners / f"{problem}.json"
            path.unlink() if text is None else path.write_text(text)
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", f"change {commit} <b>of</b> the kernel", commit=commit)
    return git(repo, "rev-list", "--reverse", "HEAD").split()


Cell = Callable[..., float]


def suite() -> Iterator[tuple[dict[str, Any], Cell, bool]]:
    """Benchmarks as asv describes them, their values and whether they are timed on the GPU."""

    def benchmark(name: str, unit: str, **params: tuple[str, ...]) -> dict[str, Any]:
        return {
            "name": name, "unit": unit, "type": "track", "version": "1", "code": "",
            "params": [[repr(value) for value in values] for values in params.values()], "param_names": list(params),
        }  # fmt: skip

    targets = ("sm_80", "sm_90")
    yield (
        benchmark(
            "static.Registers.track_registers", "registers", variant=VARIANTS, shape=SHAPES, target=targets
        ),
        registers,
        False,
    )
    yield (
        benchmark("device.Kernel.device_latency", "us", variant=VARIANTS, shape=SHAPES, m=("1", "16")),
        latency_us,
        True,
    )

    def gap(commit: int, variant: str, shape: str, m: str) -> float:
        n, k = (int(size) for size in shape.split("x"))
        return latency_us(commit, variant, shape, m) / (n * k / 2 / 4.0e6 + 2)

    yield (
        benchmark("device.Kernel.track_attainable_gap", "x", variant=VARIANTS, shape=SHAPES, m=("1", "16")),
        gap,
        True,
    )
    yield benchmark("host.CommandStart.track_ms", "ms"), lambda commit: 200.0 if commit < 6 else 260.0, False


def write_results(repo: Path, hashes: list[str], skipped: int = 3) -> None:
    """What asv would have measured: all commits but one on a laptop, and every second one on a GPU machine."""
    from asv import util
    from asv.benchmarks import Benchmarks
    from asv.config import Config
    from asv.results import Results
    from asv.runner import BenchmarkResult

    here = Path.cwd()
    os.chdir(repo)
    try:
        conf = Config.load(str(repo / "asv.conf.json"))
        never = {**next(suite())[0], "name": "host.Never.track_measured"}
        described = [never, *(benchmark for benchmark, _, _ in suite())]
        Benchmarks(conf, described).save()
        folder = Path(conf.results_dir)
        noise = random.Random(0)
        for machine, gpu in (("laptop", "none"), ("gpubox", "NVIDIA H200")):
            about = {"machine": machine, "arch": "x86_64", "os": "Linux", "gpu": gpu}
            util.write_json(str(folder / machine / "machine.json"), about, 1)
            for commit, commit_hash in enumerate(hashes):
                if commit == skipped or (gpu != "none" and commit % 2):
                    continue
                versions = {"torch": "2.11.0", "triton": "3.6.0"}
                results = Results(
                    {**about, "python": "3.11", **versions}, versions, commit_hash,
                    (START_S + commit * DAY_S) * 1000, "3.11", "overlay-py3.11-triton3.6.0", {},
                )  # fmt: skip
                for benchmark, value, timed in suite():
                    if timed != (gpu != "none"):
                        continue
                    cells = list(
                        itertools.product(
                            *([text.strip("'") for text in values] for values in benchmark["params"])
                        )
                    )
                    samples = [
                        [value(commit, *cell) * noise.gauss(1, 0.004) for _ in range(16)] if timed else None
                        for cell in cells
                    ]
                    values = [value(commit, *cell) for cell in cells]
                    results.add_result(
                        benchmark,
                        BenchmarkResult(values, samples, [1 if timed else None] * len(cells), 0, "", None),
                    )
                results.save(str(folder))
    finally:
        os.chdir(here)


def write_compare(repo: Path) -> None:
    """A compare file of one GPU, a decoding file, and a file that cannot be read."""
    rows: list[dict[str, Any]] = []
    for (n, k), m, (variant, factor) in itertools.product(COMPARED, (1, 16), FACTORS.items()):
        bytes_us = n * k / 2 / 4e6
        rows.append(
            {"variant": variant, "n": n, "k": k, "m": m, "dtype": "fp16", "group_size": 128,
             "latency_us": bytes_us * factor + 2, "probe_us": bytes_us + 1.8, "floor_us": bytes_us * 0.9 + 1.5,
             "rel_error": 0.0004, "status": "ok"}
        )  # fmt: skip
    rows.append({"variant": "gemlite", "n": 1536, "k": 1536, "m": 1, "status": "unsupported"})
    head = {
        "schema": 1,
        "gpu": "rtx-3060",
        "versions": {"triton": "3.6.0", "torch": "2.11.0"},
        "date": "2026-09-21T10:00:00+00:00",
        "commit": "0" * 40,
        "command": "roofgap bench --out results",
    }
    decode = [
        {
            "arm": arm,
            "model": "qwen2.5-1.5b",
            "depth": 512,
            "tok_s": speed,
            "ms_per_token": 1000 / speed,
            "status": "ok",
        }
        for arm, speed in (("bf16", 88.0), ("w4-v3", 190.0))
    ]
    for name, text in {
        "compare/rtx-3060.json": json.dumps({**head, "rows": rows}),
        "compare/broken.json": '{"schema": 1, "rows": [',
        "e2e/rtx-3060/qwen2.5-1.5b.json": json.dumps({**head, "rows": [*decode, {"arm": "no model"}]}),
    }.items():
        path = repo / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def publish(repo: Path) -> subprocess.CompletedProcess[str]:
    """``asv publish`` in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", "asv", "publish", "--no-pull"],
        cwd=repo, env={**os.environ, "HOME": str(repo)}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


class Site:
    """A published site, the repository it was made from and its commits, oldest first."""

    def __init__(self, repo: Path, hashes: list[str], output: str) -> None:
        self.repo, self.hashes, self.output = repo, hashes, output
        self.html = repo / ".asv" / "html"

    def data(self, page: str) -> Any:
        """What a page of ours embeds."""
        text = (self.html / f"{page}.html").read_text()
        (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
        return json.loads(found)


def make_site(folder: Path) -> list[str]:
    """Everything above; returns the commits, oldest first."""
    hashes = make_repo(folder)
    write_results(folder, hashes)
    write_compare(folder)
    return hashes


if __name__ == "__main__":
    target = Path(sys.argv[1])
    make_site(target)
    print(publish(target).stdout)
