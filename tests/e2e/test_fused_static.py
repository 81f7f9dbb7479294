"""Every fused kernel fits the GPUs it is meant for, compiled without one."""

from __future__ import annotations

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
