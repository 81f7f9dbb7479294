"""Every fused kernel fits the GPUs it is meant for, compiled without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from roofgap.e2e.fused.inspect import costs
from roofgap.kernels.static.targets import TARGETS
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import load_manifest

KERNELS = {
    "add_rms_norm_kernel",
    "decode_attention_split_kernel",
    "decode_attention_combine_kernel",
    "swiglu_kernel",
    "argmax_block_kernel",
    "argmax_final_kernel",
}


@pytest.mark.parametrize(
    ("model", "names", "cache_length"),
    [("qwen2.5-1.5b", ("sm_86", "sm_90"), 1024), ("orch-fusion", ("sm_86",), 4096)],
)
def test_fused_kernels_fit_without_spills(model: str, names: tuple[str, ...], cache_length: int) -> None:
    architecture = load_manifest(model).architecture
    found = costs(architecture, [TARGETS[name] for name in names], cache_length)
    assert {(cost.target, cost.kernel) for cost in found} == {
        (name, kernel) for name in names for kernel in KERNELS
    }
    assert [cost for cost in found if not cost.fits] == []


def test_other_vendors_are_refused() -> None:
    with pytest.raises(RoofgapError, match="NVIDIA"):
        costs(load_manifest("orch-fusion").architecture, [TARGETS["gfx942"]])


# Runs where kernels are not interpreted; prints, for every launch in its dependent form, grid control, loads and stores
# in the order of its PTX, and what it spills.
DEPENDENT = """
import json, re
import torch
from roofgap.e2e.fused.inspect import launches
from roofgap.kernels.static import sass
from roofgap.kernels.static.compile import compile_launch, with_file
from roofgap.kernels.static.targets import load_target
from roofgap.shapes.manifest import load_manifest

events, found = re.compile(r"griddepcontrol[.][a-z_]+|(?:ld|st)[.]global|^ret", re.MULTILINE), []
for launch in launches(load_manifest("qwen2.5-1.5b").architecture, 1024):
    compiled = compile_launch(launch.dependent(), load_target("sm_90"), torch.empty(0, device="meta"))
    spilled = with_file(compiled.binary, "cubin", sass.read_resources).spill_bytes
    found.append([launch.kernel.__name__, events.findall(compiled.asm["ptx"]), spilled])
print(json.dumps(found))
"""


def test_every_fused_kernel_can_be_a_dependent_launch() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", DEPENDENT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name for name, _, _ in found} == KERNELS
    for name, events, spilled in found:
        assert spilled == 0, name
        assert events[0] == "griddepcontrol.launch_dependents", name
        # Attention has two ends, and each waits.
        assert events.count("griddepcontrol.wait") == (2 if "split" in name else 1), name
        assert "st.global" not in events[: events.index("griddepcontrol.wait")], name
    before = {
        name: events[: events.index("griddepcontrol.wait")].count("ld.global") for name, events, _ in found
    }
    assert before["add_rms_norm_kernel"] > 0, "the norm's weight"
    assert before["decode_attention_combine_kernel"] == 0
