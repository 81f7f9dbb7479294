"""What a winner's identity and provenance are compared with: this GPU and these versions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from roofgap.kernels.variant import Limits, max_cluster
from roofgap.shapes.device import load_device
from roofgap.shapes.errors import RoofgapError
from roofgap.tuning.winner import Toolchain, gpu_slug

UNKNOWN = "unknown"


def gpu_name(device_name: str) -> str:
    """The slug a GPU's winners are filed under: its device profile's name, else one made from torch's device
    name.
    """
    try:
        return load_device(device_name).name
    except RoofgapError:
        return gpu_slug(device_name)


@lru_cache(maxsize=8)
def current_gpu(index: int = 0) -> str | None:
    """Slug of a visible GPU, None where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        return None
    return gpu_name(torch.cuda.get_device_name(index))


@lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """Versions of this process; what cannot be found out is ``unknown``, which matches nothing."""
    import torch
    import triton

    cuda = torch.version.cuda or getattr(torch.version, "hip", None)
    return make_toolchain(
        {"driver": _driver(), "cuda": cuda, "torch": torch.__version__, "triton": triton.__version__}
    )


def make_toolchain(versions: Mapping[str, str | None]) -> Toolchain:
    """The versions that a compiled kernel depends on, out of all that are known."""
    fields = {name: versions.get(name) or UNKNOWN for name in Toolchain.model_fields}
    return Toolchain(**{name: UNKNOWN if text == "unavailable" else text for name, text in fields.items()})


def _driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return UNKNOWN
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def limits_for(gpu: str) -> Limits:
    """What a config may use on a GPU by its slug; what every GPU has where there is no profile of it."""
    try:
        profile = load_device(gpu)
    except RoofgapError:
        return Limits()
    return Limits(
        sm_count=profile.sm_count,
        shared_bytes=profile.shared_bytes_per_block,
        warp_size=profile.warp_size,
        max_cluster=max_cluster(
            int(profile.compute_capability.split(".")[0]) if profile.vendor == "nvidia" else 0
        ),
    )
