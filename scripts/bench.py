"""What ``make bench`` runs: the last two commits compared by asv, or as much of that as this checkout allows.

No repository or no asv: the suite runs on this tree and prints its values. One commit, or a shallow clone
that ends at it: asv measures that commit. Else ``asv continuous HEAD~1 HEAD``, in the lanes that this machine can
run and on a part of the grid (``ROOFGAP_LANE_TIER=quick``). Slower is a result, not a failure; a benchmark that breaks
is one. ``bench.py site`` builds the site and measures nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "asv_bench"))  # the suite, as asv imports it: ``benchmarks``
CONFIG = json.loads((ROOT / "asv.conf.json").read_text())
FAILED = "failed"
SUITE = ROOT / CONFIG["benchmark_dir"]
LOG = ROOT / ".asv" / "bench.log"


def say(text: str) -> None:
    """Progress goes to stderr; results go to stdout."""
    print(f"roofgap: {text}", file=sys.stderr, flush=True)


def git(*args: str) -> str | None:
    """Output of a git command in this folder, or None when it fails or there is no git."""
    try:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def asv(*args: str) -> subprocess.CompletedProcess[str]:
    """Runs asv of this interpreter; what it prints goes into ``LOG`` too."""
    done = subprocess.run(
        [sys.executable, "-m", "asv", *args],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("a") as log:
        log.write(f"$ asv {' '.join(args)}\n{done.stdout}\n")
    return done


def classes(stem: str) -> Iterator[tuple[str, type]]:
    """Every public class of one module of the suite, by the name that asv gives it."""
    module = importlib.import_module(f"{SUITE.name}.{stem}")
    for name, cls in vars(module).items():
        if isinstance(cls, type) and cls.__module__ == module.__name__ and not name.startswith("_"):
            yield f"{stem}.{name}", cls


def cells(cls: type) -> Iterator[tuple[Any, ...]]:
    """Every combination of a class's parameters; like asv, takes one flat list for a single parameter."""
    params = getattr(cls, "params", ())
    if params and not isinstance(params[0], list | tuple):
        params = (params,)
    return itertools.product(*params)


def measure(cls: Any, method: str, values: tuple[Any, ...], cache: dict[type, Any]) -> str:
    """The value of one cell with its unit; what stops it is a value too."""
    instance = cls()
    try:
        if hasattr(instance, "setup_cache"):
            if cls not in cache:
                cache[cls] = instance.setup_cache()
            values = (cache[cls], *values)
        if hasattr(instance, "setup"):
            instance.setup(*values)
        result = getattr(instance, method)(*values)
    except NotImplementedError as reason:
        return f"n/a ({reason})"
    except Exception as error:  # one broken benchmark must not hide the others
        return f"{FAILED} ({type(error).__name__}: {error})"
    samples = result["samples"] if isinstance(result, dict) else result
    value = statistics.median(samples) if isinstance(samples, list) else samples
    return f"{value:.6g} {getattr(cls, method).unit}"


def run_module(stem: str) -> int:
    """Prints every value of one module, a median where there are samples; returns how many failed."""
    failures, cache = 0, dict[type, Any]()
    for name, cls in classes(stem):
        for method in (entry for entry in dir(cls) if entry.startswith(("track_", "sampled_"))):
            for values in cells(cls):
                outcome = measure(cls, method, values, cache)
                failures += outcome.startswith(FAILED)
                label = f"{name}.{method}({', '.join(map(str, values))})"
                print(f"{label:72} {outcome}", flush=True)
    return failures


def run_tree() -> int:
    """Measures this tree, without asv and without history: like asv, in a fresh process for each module."""
    modules = [path.stem for path in sorted(SUITE.glob("[!_]*.py"))]
    failures = 0
    for stem in modules:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            failures += fresh.submit(run_module, stem).result()
    if failures:
        say(f"{failures} benchmarks failed")
    return 1 if failures else 0


@contextmanager
def local_results() -> Iterator[Path]:
    """A configuration whose results lie in ``.asv/results`` and begin with the committed ones.

    A bench on a laptop must not change the tree; ``asv run`` itself writes into the committed folder. A committed file
    that is newer than its copy, from a pull or a record made again, replaces it.
    """
    local = ROOT / ".asv" / "results"
    committed = ROOT / CONFIG["results_dir"]
    for path in committed.rglob("*.json"):
        copy = local / path.relative_to(committed)
        if not copy.exists() or copy.stat().st_mtime_ns < path.stat().st_mtime_ns:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    # In the root, because asv changes into the folder of its configuration.
    path = ROOT / f".asv-local-{os.getpid()}.json"
    path.write_text(json.dumps({**CONFIG, "results_dir": str(local)}))
    try:
        yield path
    finally:
        path.unlink()


def selection() -> tuple[list[str], list[str]]:
    """asv's ``--bench`` patterns for the exact lanes and for those that time something, cut to the quick tier."""
    grid = importlib.import_module(f"{SUITE.name}._cells")
    shapes, targets = ("|".join(names) for names in (grid.QUICK_SHAPES, grid.QUICK_TARGETS))
    exact = [
        rf"^static\..*, '({shapes})', '({targets})'\)$",
        rf"^traffic\..*, '({shapes})'\)$",
        rf"^quality\..*, '{grid.FORMATS[0]}'\)$",
        r"^roofline\.",
    ]
    timed = [r"^host\."]
    if has_gpu():
        timed.append(rf"^device\..*, '({shapes})', {grid.TOKENS[0]}\)$")
    return exact, timed


def has_gpu() -> bool:
    """Whether torch can use a GPU; asked in a process of its own, for torch takes seconds to import."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def compare(config: Path, factor: float, patterns: list[str], commits: list[str]) -> int:
    """Measures and prints what changed by more than ``factor``; returns asv's exit code.

    asv prints no table where a benchmark failed (exit code 2): then ``asv compare`` does.
    """
    options = [
        "--config",
        str(config),
        "--show-stderr",
        *(part for text in patterns for part in ("--bench", text)),
    ]
    if len(commits) == 1:
        return asv("run", *options, f"{commits[0]}^!").returncode
    done = asv("continuous", "--factor", str(factor), *options, *commits)
    if "| Change" in done.stdout:
        print(done.stdout[done.stdout.find("| Change") :])
    elif done.returncode in (0, 1):
        print("nothing changed")
    else:
        table = ["compare", "--config", str(config), "--factor", str(factor), "--only-changed", *commits]
        print(asv(*table).stdout)
    return done.returncode


def failed_cells(commits: list[str], since: float) -> list[str]:
    """Cells that have no value in the results written since then: asv writes null for a failure, NaN for n/a."""
    found = []
    for path in (
        path for commit in commits for path in (ROOT / ".asv" / "results").glob(f"*/{commit[:8]}*.json")
    ):
        if path.stat().st_mtime < since:
            continue
        stored = json.loads(path.read_text())
        for name, row in stored["results"].items():
            columns = dict(zip(stored["result_columns"], row, strict=False))
            cells = list(itertools.product(*(columns.get("params") or [])))
            values = columns["result"] or [None] * len(cells)
            found += [
                f"{path.name[:8]} {name}({', '.join(cell)})"
                for cell, value in zip(cells, values, strict=True)
                if value is None
            ]
    return found


def run_commits(commits: list[str]) -> int:
    """Measures one or two commits with asv in the lanes this machine can run, and builds the site."""
    if git("status", "--porcelain"):
        say("uncommitted changes are not measured; asv measures commits")
    began, statuses = time.time(), []
    with local_results() as config:
        asv("machine", "--yes", "--config", str(config))
        exact, timed = selection()
        for factor, patterns, title in ((1.0, exact, "exact lanes"), (1.1, timed, "timed lanes")):
            say(f"{title} of {' and '.join(commit[:10] for commit in commits)}, about a minute a commit")
            statuses.append(compare(config, factor, patterns, commits))
        published = asv("publish", "--no-pull", "--config", str(config)).returncode == 0
    failed = failed_cells(commits, began)
    for cell in failed:
        say(f"failed: {cell}")
    if 1 in statuses:
        say("something got worse, see the tables above")
    if failed or any(status not in (0, 1) for status in statuses):
        say(f"asv ended with {statuses}: a benchmark or an installation failed, see {LOG}")
    if not published:
        say(f"asv publish failed, see {LOG}")
        return 1
    say(f"history site, for any browser: {ROOT / CONFIG['html_dir'] / 'index.html'}")
    return 1 if failed or any(status not in (0, 1) for status in statuses) else 0


def publish() -> int:
    """Builds the site from the committed and the local results."""
    with local_results() as config:
        if asv("publish", "--no-pull", "--config", str(config)).returncode:
            say(f"asv publish failed, see {LOG}")
            return 1
    say(f"history site, for any browser: {ROOT / CONFIG['html_dir'] / 'index.html'}")
    return 0


def main() -> int:
    """Chooses what this checkout allows and runs it."""
    os.environ.setdefault("ROOFGAP_LANE_TIER", "quick")
    if sys.argv[1:] == ["site"]:
        return publish()
    top = git("rev-parse", "--show-toplevel")
    head = git("rev-parse", "HEAD") if top and Path(top).resolve() == ROOT else None
    if head is None:
        say("no git history here (an unpacked archive, an empty repository): measuring this tree, no site")
        return run_tree()
    if importlib.util.find_spec("asv") is None:
        say("asv is not installed: measuring this tree alone, no comparison and no site")
        return run_tree()
    parent = git("rev-parse", "--verify", "--quiet", "HEAD~1")
    if parent is None:
        shallow = git("rev-parse", "--is-shallow-repository") == "true"
        why = "a shallow clone (`git fetch --unshallow` brings the rest)" if shallow else "a single commit"
        say(f"the history is {why}: measuring HEAD, nothing to compare it with")
    return run_commits([commit for commit in (parent, head) if commit])


if __name__ == "__main__":
    sys.exit(main())
