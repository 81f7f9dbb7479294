"""The gate over real commits: what was planted in a kernel is found, and nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from roofgap.tracking.gate.records import Report
from roofgap.tracking.gate.run import Options, gate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]

ROOMS = ("shapes", "kernels", "tuning", "tracking", "asv_bench")
SHAPE = "256x1024"
V2, V3 = "kernels/variants/v2.py", "kernels/variants/v3.py"
WORDS = "        part = tl.zeros((BLOCK_W, BLOCK_N), dtype=tl.float32)\n"
# volatile, so that the compiler cannot merge it with the first load; and-ing a value with itself changes nothing
RELOAD = """        words &= tl.load(
            codes_ptr + first_word * stride_cw + offs_w[:, None] * stride_cw + offs_n[None, :],
            mask=tile_mask, other=0, volatile=True,
        )
"""
WARPS = "block_k=fit_k(128, problem.k), num_warps=4)"
PLAN = '        reduce = "none" if config.split_k == 1 else config.reduce\n        sums'


class Repository:
    """A repository of its own: this tree's rooms as commit ``base``, and one commit a branch beside it."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        for room in ROOMS:
            shutil.copytree(root / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
        self.git("init", "-q", "-b", "base")
        self.commit()

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")

    def branch(self, name: str, path: str = V2, old: str = "", new: str = "") -> None:
        """A branch off ``base`` with one text replaced; the working tree ends on ``base``."""
        self.git("checkout", "-q", "-b", name, "base")
        text = (self.folder / path).read_text()
        assert old in text, f"{path} has changed: plant it anew"
        (self.folder / path).write_text(text.replace(old, new, 1))
        self.commit()
        self.git("checkout", "-q", "base")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Repository:
    made = Repository(tmp_path_factory.mktemp("gate"), root)
    made.branch("same")
    made.branch("reload", V2, WORDS, RELOAD + WORDS)
    made.branch("registers", V2, WARPS, WARPS.replace("num_warps=4", "num_warps=1"))
    made.branch("crash", V3, PLAN, "        __import__('os')._exit(7)\n" + PLAN)
    return made


def compare(repository: Repository, after: str, *only: str) -> Report:
    lanes = tuple(lane for lane in ("static", "traffic") if any(name.startswith(lane) for name in only))
    report = gate(repository.folder, "base", after, Options(lanes=lanes, only=only))  # type: ignore[arg-type]
    assert json.loads(report.model_dump_json(by_alias=True))["schema"] == 1
    return report


STATIC = f"static/v[23]/{SHAPE}/sm_86"


def test_one_more_load_of_the_packed_words_is_named(repository: Repository) -> None:
    report = compare(repository, "reload", STATIC, f"traffic/v2/{SHAPE}")
    assert report.exit_code == 1
    worse = {finding.cell for finding in report.having("worse")}
    assert {cell for cell in worse if cell.startswith("traffic")} == {
        f"traffic/v2/{SHAPE}/loads_per_code",
        f"traffic/v2/{SHAPE}/bytes_over_minimum",
    }
    assert f"static/v2/{SHAPE}/sm_86/instructions_per_weight" in worse
    same = {finding.cell for finding in report.having("same")}
    assert {cell for cell in same if "/v3/" in cell}, "the other variant was measured"
    assert not [
        finding.cell for finding in report.findings if "/v3/" in finding.cell and finding.verdict != "same"
    ]
    loads = next(
        finding for finding in report.findings if finding.cell.endswith("v2/256x1024/loads_per_code")
    )
    assert loads.after == 2 * (loads.before or 0)
    static = next(finding for finding in report.having("worse") if finding.cell.startswith("static"))
    assert any("kernel source" in line and "->" in line for line in static.explanation)
    assert any("load_global" in line for line in static.explanation)


def test_a_register_heavy_change_is_named_and_explained(repository: Repository) -> None:
    report = compare(repository, "registers", STATIC)
    assert report.exit_code == 1
    assert f"static/v2/{SHAPE}/sm_86/registers" in {finding.cell for finding in report.having("worse")}
    assert all("/v2/" in finding.cell for finding in report.having("worse", "better", "unmeasured", "new"))
    (registers,) = (f for f in report.having("worse") if f.cell.endswith("/registers"))
    assert any("num_warps=4" in line and "num_warps=1" in line for line in registers.explanation)


def test_equal_commits_pass(repository: Repository) -> None:
    report = compare(repository, "same", STATIC, f"traffic/v3/{SHAPE}")
    assert report.exit_code == 0
    assert {finding.verdict for finding in report.findings} == {"same"}


def test_a_crash_costs_its_cells_alone(repository: Repository) -> None:
    """v3's plan ends its process: a compile worker on the static lane, the live worker itself on the other."""
    targets = ("sm_80", "sm_86", "sm_90")  # so that the workers that crash have just compiled something else
    report = compare(
        repository, "crash", *(f"static/v[23]/{SHAPE}/{target}" for target in targets), f"traffic/v3/{SHAPE}"
    )
    assert report.exit_code == 2
    assert [finding.cell for finding in report.having("unmeasured")] == [
        *(f"static/v3/{SHAPE}/{target}" for target in targets),
        f"traffic/v3/{SHAPE}",
    ]
    assert all("7" in (finding.reason or "") for finding in report.having("unmeasured"))
    assert {finding.verdict for finding in report.findings if "/v2/" in finding.cell} == {"same"}


def test_the_users_checkout_is_left_alone(repository: Repository) -> None:
    done = subprocess.run(
        ["git", "status", "--porcelain"], cwd=repository.folder, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=repository.folder, capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 1
