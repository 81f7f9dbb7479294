"""What ``roofgap doctor`` looks at, one function a fact, and what the facts allow.

A broken installation is a finding, never a crash: torch and Triton are imported in a child process, since a
bad driver or a mismatched library can end the interpreter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

State = Literal["ok", "off", "missing", "broken"]
Verdict = Literal["ready", "limited", "not possible"]
CHILD_SECONDS = 120
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# Runs in the child. Each part stands alone, so that one broken library does not hide another.
PROBE = """
import json
facts = {}
def part(name, look):
    try:
        facts[name] = look()
    except BaseException as error:
        facts[name] = {"error": f"{type(error).__name__}: {error}"}
def torch_facts():
    import torch
    return {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
def gpu_facts():
    import torch
    if not torch.cuda.is_available():
        return {"count": 0}
    props = torch.cuda.get_device_properties(0)
    capability = f"{props.major}.{props.minor}"
    return {"count": torch.cuda.device_count(), "name": props.name, "capability": capability}
def triton_facts():
    import os, triton
    tools = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
    return {"version": triton.__version__, "tools": sorted(os.listdir(tools)) if os.path.isdir(tools) else []}
def driver_facts():
    import pynvml
    pynvml.nvmlInit()
    return {"version": pynvml.nvmlSystemGetDriverVersion()}
for name, look in dict(torch=torch_facts, gpu=gpu_facts, triton=triton_facts, driver=driver_facts).items():
    part(name, look)
print("facts " + json.dumps(facts))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at: its state, what was found, and what to do if more is wanted."""

    name: str
    state: State
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One of the four uses of roofgap, how far it gets on this machine, and why not further."""

    use: str
    verdict: Verdict
    reason: str


def look() -> list[Finding]:
    """Every finding, in the order they are printed."""
    facts = _child_facts()
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        lambda: _torch(facts["torch"]),
        lambda: _triton(facts["triton"]),
        lambda: _gpu(facts["gpu"], facts["torch"]),
        lambda: _driver(facts["driver"]),
        _interpreter,
        _compiler,
        _packages,
        _history,
        _folders,
        _browser,
    ]
    found: list[Finding] = []
    for check in checks:
        try:
            found += check()
        except Exception as error:
            name = getattr(check, "__name__", "check").strip("_<>")
            found.append(Finding(name=name, state="broken", found=f"{type(error).__name__}: {error}"))
    return found


def judge(findings: list[Finding]) -> list[Use]:
    """What the findings allow. A use is limited where part of it runs; the reason names what does not."""
    state = {finding.name: finding.state for finding in findings}

    def lacking(*names: str) -> list[str]:
        return [name for name in names if state.get(name) != "ok"]

    gpu = state.get("gpu") == "ok" and state.get("interpreter") == "ok"
    no_gpu = "no GPU" if state.get("gpu") != "ok" else "TRITON_INTERPRET is set"
    no_device_times = (
        f"{no_gpu}: no device times; bytes, instructions, registers and host times still compare"
    )

    def use(name: str, needs: list[str], limits: list[str]) -> Use:
        if needs:
            return Use(use=name, verdict="not possible", reason=f"needs {', '.join(needs)}")
        return Use(use=name, verdict="limited" if limits else "ready", reason="; ".join(limits))

    peers = lacking("bitsandbytes", "gemlite")
    return [
        use(
            "compare two commits (asv continuous)",
            lacking("asv", "git history", "torch", "triton"),
            [] if gpu else [no_device_times],
        ),
        use(
            "retune a shape set",
            lacking("torch", "triton", "winners folder"),
            []
            if gpu and not lacking("c compiler")
            else [_retune_limit(no_gpu if not gpu else "no C compiler")],
        ),
        use("history site", lacking("asv", "git history"), []),
        use(
            "decode comparison",
            lacking("torch", "transformers"),
            ([] if gpu else [f"{no_gpu}: ceilings and published figures only"])
            + ([f"without {' and '.join(peers)} those arms are skipped"] if gpu and peers else []),
        ),
    ]


def _retune_limit(why: str) -> str:
    return f"{why}: recorded sweeps can be replayed, nothing new can be measured"


def _child_facts() -> dict[str, dict[str, Any]]:
    names = ("torch", "gpu", "triton", "driver")
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {name: {"error": f"no answer in {CHILD_SECONDS} s"} for name in names}
    for line in done.stdout.splitlines():
        if line.startswith("facts "):
            facts: dict[str, dict[str, Any]] = json.loads(line.removeprefix("facts "))
            return facts
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return {
        name: {"error": f"import ended the interpreter (exit {done.returncode}): {last}"} for name in names
    }


def _python() -> Iterator[Finding]:
    found = f"{sys.version.split()[0]} ({sys.executable})"
    supported = sys.version_info >= (3, 10)
    yield Finding(
        name="python",
        state="ok" if supported else "broken",
        found=found,
        remedy="" if supported else "use 3.10-3.12",
    )


def _failed(name: str, facts: dict[str, Any], remedy: str) -> Finding:
    error = facts["error"]
    absent = error.startswith("ModuleNotFoundError")
    return Finding(name=name, state="missing" if absent else "broken", found=error, remedy=remedy)


def _torch(facts: dict[str, Any]) -> Iterator[Finding]:
    if "error" in facts:
        yield _failed("torch", facts, "`make venv`, or `pip install torch`")
        return
    build = (
        f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU build"
    )
    yield Finding(name="torch", state="ok", found=f"{facts['version']} ({build})")


def _triton(facts: dict[str, Any]) -> Iterator[Finding]:
    if "error" in facts:
        yield _failed(
            "triton", facts, "`make venv`, or `pip install triton` (torch's CPU build does not bring it)"
        )
        return
    yield Finding(name="triton", state="ok", found=facts["version"])
    for tool in ("ptxas", "cuobjdump", "nvdisasm"):
        there = tool in facts["tools"]
        yield Finding(
            name=tool,
            state="ok" if there else "missing",
            found="in the triton wheel" if there else "not in the triton wheel",
            remedy=""
            if there
            else "install triton from its wheel: static analysis reads registers and SASS with it",
        )


def _gpu(facts: dict[str, Any], torch: dict[str, Any]) -> Iterator[Finding]:
    if "error" in facts:
        yield _failed("gpu", facts, "mend torch first")
    elif facts["count"]:
        more = f", {facts['count']} of them" if facts["count"] > 1 else ""
        yield Finding(
            name="gpu", state="ok", found=f"{facts['name']}, compute capability {facts['capability']}{more}"
        )
    else:
        cpu_build = not (torch.get("cuda") or torch.get("hip"))
        remedy = (
            "install a CUDA or ROCm build of torch"
            if cpu_build
            else "check the driver (nvidia-smi, rocminfo)"
        )
        yield Finding(
            name="gpu", state="missing", found="none that torch can use", remedy=f"to measure: {remedy}"
        )


def _driver(facts: dict[str, Any]) -> Iterator[Finding]:
    if "error" in facts:
        yield Finding(
            name="nvml",
            state="missing",
            found=facts["error"],
            remedy="needs an NVIDIA driver and nvidia-ml-py; without it clocks and throttling go unrecorded",
        )
    else:
        yield Finding(name="nvml", state="ok", found=f"driver {facts['version']}")


def _interpreter() -> Iterator[Finding]:
    on = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    yield Finding(
        name="interpreter",
        state="off" if on else "ok",
        found="TRITON_INTERPRET is set: kernels run on the CPU"
        if on
        else "kernels compile (TRITON_INTERPRET is not set)",
        remedy="unset TRITON_INTERPRET to measure" if on else "",
    )


def _compiler() -> Iterator[Finding]:
    found = next(
        (path for name in (os.environ.get("CC"), "gcc", "clang") if name and (path := shutil.which(name))),
        None,
    )
    yield Finding(
        name="c compiler",
        state="ok" if found else "missing",
        found=found or "neither $CC, gcc nor clang",
        remedy="" if found else "Triton builds its launcher with it: `apt-get install gcc`",
    )


def _packages() -> Iterator[Finding]:
    remedies = {
        "transformers": "`pip install transformers`: extracting shapes from a model, decoding",
        "asv": "`make venv`, or `pip install 'asv>=0.6.6,<0.7'`: comparing commits, the site",
        "bitsandbytes": "`pip install 'roofgap[compare]'`: the NF4 peer",
        "gemlite": "`pip install 'roofgap[compare]'`: the GemLite peer",
    }
    for name, remedy in remedies.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            yield Finding(name=name, state="missing", found="not installed", remedy=remedy)
            continue
        importable = find_spec(name) is not None
        state: State = "ok" if importable else "broken"
        yield Finding(
            name=name, state=state, found=found, remedy="" if importable else f"reinstall it: {remedy}"
        )


def _history() -> Iterator[Finding]:
    def git(*args: str) -> str:
        return subprocess.run(["git", *args], capture_output=True, text=True, check=True).stdout.strip()

    name = "git history"
    if shutil.which("git") is None:
        yield Finding(name=name, state="missing", found="no git", remedy="`apt-get install git`")
        return
    try:
        commits = int(git("rev-list", "--count", "HEAD"))
        shallow = git("rev-parse", "--is-shallow-repository") == "true"
    except subprocess.CalledProcessError:
        found = f"{Path.cwd()} is in no repository with a commit"
        yield Finding(name=name, state="missing", found=found, remedy="run in a clone of roofgap")
        return
    found = f"{commits} commit{'s' if commits != 1 else ''}{', shallow' if shallow else ''}"
    remedy = "`git fetch --unshallow`" if shallow else "" if commits > 1 else "a comparison needs two commits"
    yield Finding(name=name, state="ok" if commits > 1 else "missing", found=found, remedy=remedy)


def _folders() -> Iterator[Finding]:
    from roofgap.tuning.winners_store import writable_folder

    triton_cache = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    for name, folder in (
        ("winners folder", writable_folder()),
        ("journal folder", Path.cwd() / ".roofgap"),
        ("triton cache", Path(triton_cache)),
    ):
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        writable = os.access(nearest, os.W_OK)
        remedy = "" if writable else f"make {nearest} writable, or work in another folder"
        yield Finding(name=name, state="ok" if writable else "broken", found=str(folder), remedy=remedy)


def _browser() -> Iterator[Finding]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    remedy = "" if found else "`apt-get install chromium`: tests of the history site are skipped without it"
    yield Finding(name="chromium", state="ok" if found else "missing", found=found or "none", remedy=remedy)
