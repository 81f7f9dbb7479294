"""Every own kernel that an arm launches runs on an RTX 3060: it compiles for sm_86, spills nothing, fits in 99 KiB."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from roofgap.e2e.arms import ARMS, OWN_VARIANTS
from roofgap.kernels.registry import VARIANTS
from roofgap.kernels.static.pool import CompilePool, request_for
from roofgap.kernels.static.targets import load_target
from roofgap.shapes.manifest import load_manifest

SM_86 = load_target("sm_86")
LAUNCHED = sorted({arm.build.variant for arm in ARMS.values() if arm.build.variant} & VARIANTS.keys())


def problems():
    """The extremes among the arms' shapes: narrowest (ORCH's k), with a bias, widest, longest K, a 4-bit head."""
    qwen, orch = load_manifest("qwen2.5-1.5b"), load_manifest("orch-fusion")
    joined = {
        matrix.role: problem
        for matrix, problem in qwen.problems(x_dtype="bf16", zero_mode="asym", fused=True)
    }
    narrow = {matrix.role: problem for matrix, problem in orch.problems(x_dtype="bf16", zero_mode="asym")}[
        "k"
    ]
    return [narrow, *(joined[role] for role in ("qkv", "gate_up", "down", "head"))]


def test_the_arms_launch_what_the_table_says() -> None:
    assert set(LAUNCHED) <= set(OWN_VARIANTS)
    assert {"v2", "v3"} <= set(LAUNCHED)


@pytest.mark.timeout(300)
def test_own_kernels_fit_the_3060() -> None:
    requests = [
        request_for(VARIANTS[name], problem, SM_86)
        for name in LAUNCHED
        for problem in problems()
        if VARIANTS[name].supports(problem) is None
    ]
    assert len(requests) == 5 * len(LAUNCHED)
    with CompilePool(workers=2) as pool:
        for request, found in zip(requests, pool.inspect(requests), strict=True):
            place = f"{request.variant.name} {request.problem.key}"
            assert hasattr(found, "launches"), f"{place}: {found}"
            for launch in found.launches:
                assert launch.spill_bytes == 0, f"{place}: {launch.kernel} spills"
                assert launch.shared_bytes <= 99 * 1024, f"{place}: {launch.kernel}"


# Runs where kernels are not interpreted; prints name, spilled and shared bytes of every launch of the stream arms.
STREAMS = """
import json, torch
from roofgap.e2e.stream_arm import CONFIGS
from roofgap.kernels.static import sass
from roofgap.kernels.static.compile import compile_launch, with_file
from roofgap.kernels.static.targets import load_target

target, found = load_target("sm_86"), []
words = torch.empty(1 << 20, dtype=torch.int32, device="meta")
for config in CONFIGS:
    out = torch.empty(config.programs(words.numel(), 28), dtype=torch.int32, device="meta")
    compiled = compile_launch(config.launch(words, out, 28), target, words)
    needs = with_file(compiled.binary, "cubin", sass.read_resources)
    found.append([config.key, needs.spill_bytes, max(needs.shared_bytes, compiled.shared_bytes)])
print(json.dumps(found))
"""


def test_stream_kernels_fit_the_3060() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", STREAMS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for key, spilled, shared in json.loads(done.stdout):
        assert spilled == 0, key
        assert shared <= 99 * 1024, key
