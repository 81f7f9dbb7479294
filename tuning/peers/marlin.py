"""Marlin (the kernel of vLLM's lineage) as GPTQModel ships it: symmetric codes, fp32 reduction."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, cast

import torch

from roofgap.kernels.formats.kpacked import KPacked
from roofgap.kernels.formats.weight import DTYPE_NAMES, QuantizedWeight
from roofgap.kernels.reference import Reference, reference
from roofgap.shapes.problem import Problem
from roofgap.tuning.peers.peer import Packed, Peer, Tuned

UINT4B8 = 4 << 8 | 8 << 17 | 1 << 50
"""ScalarType id of uint4b8: 4 mantissa bits, bias 8, IEEE NaN tag."""
GROUPED = [i + 8 * j for i in range(8) for j in range(8)]
PER_ROW = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
"""Orders of scales within blocks of 64 and of 32 columns (GPTQModel's ``get_scale_perms``)."""
LEAST_WORKSPACE = 128


class Marlin(Peer):
    """Weights go through its own repacking op from GPTQ's layout, which is `KPacked`.

    Arithmetic: codes to 16 bits exactly, times the group's scale in 16 bits, tensor cores with fp32 sums, partial sums
    reduced in fp32: one rounding per weight and one of the output. That is how GPTQModel calls it
    (``use_fp32_reduce``, no atomics).

    Args:
        path: where its ops come from unless they are loaded already: a shared library, a folder of them, the name of an
            installed package that builds them (``gptqmodel``), or its unpacked sources.
    """

    name = "marlin"
    takes_out = True

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._failed: dict[torch.dtype, str] = {}

    def missing(self, dtype: torch.dtype) -> str | None:
        """Loads its ops where a path was given."""
        reason = super().missing(dtype)
        if reason is not None or _loaded(dtype):
            return reason
        space = _space(dtype)
        if self._path is None:
            return f"no op {space}::{_gemm(dtype)} is loaded (GPTQModel's Marlin)"
        if dtype not in self._failed:
            try:
                load(self._path, dtype)
            except Exception as error:  # a compiler's or loader's; the reason goes into the row
                self._failed[dtype] = f"{self._path}: {type(error).__name__}: {str(error)[-800:]}"
        if _loaded(dtype):
            return None
        return self._failed.get(dtype, f"{self._path} has no op {space}::{_gemm(dtype)}")

    def refuses(self, problem: Problem) -> str | None:
        """Its thread tiles are 64 x 128 and 128 x 64 (N x K)."""
        n, k, group = problem.n, problem.k, problem.group_size
        if problem.zero_mode != "sym":
            return "Marlin's uint4b8 is symmetric"
        tiled = (n % 64 == 0 and k % 128 == 0) or (n % 128 == 0 and k % 64 == 0)
        if not tiled or (group != -1 and k % group):
            return "Marlin takes N in multiples of 64 and K of 128 (or 128 and 64), K a multiple of the group"
        return None

    def pack(self, weight: QuantizedWeight, dtype: torch.dtype) -> Packed:
        """Codes through ``gptq_marlin_repack``, scales permuted within blocks."""
        gptq = KPacked.pack(weight)
        device, n, k = weight.codes.device, weight.n, weight.k
        none = torch.empty(0, dtype=torch.int32, device=device)
        order = PER_ROW if weight.groups == 1 else GROUPED
        scales = gptq.scales.to(dtype).reshape(-1, len(order))[:, order].reshape(-1, n).contiguous()
        return Packed(
            n=n,
            k=k,
            group_size=weight.group_size,
            dtype=dtype,
            read={"codes": _op(dtype, "gptq_marlin_repack")(gptq.codes, none, k, n, 4), "scales": scales},
            shared={"none": none, "workspace": _workspace(device)},
        )

    def run(self, x: torch.Tensor, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """Into ``out`` [M, N] if one is given."""
        none, workspace = packed.shared["none"], packed.shared["workspace"]
        y = _op(packed.dtype, _gemm(packed.dtype))(
            x, out, packed.read["codes"], None, packed.read["scales"], None, none, none, none, workspace,
            UINT4B8, x.shape[0], packed.n, packed.k, True, False, True, False,
        )  # fmt: skip
        return cast("torch.Tensor", y)

    def reference(self, x: torch.Tensor, weight: QuantizedWeight, packed: Packed, tuned: Tuned) -> Reference:
        """With the scales in ``packed.dtype``."""
        stored = QuantizedWeight(
            codes=weight.codes, scales=weight.scales.to(packed.dtype), group_size=weight.group_size
        )
        return reference(x, stored)

    def version(self) -> str | None:
        """Where the ops came from."""
        return Path(self._path).name if self._path else None


def load(path: str, dtype: torch.dtype) -> None:
    """Makes the ops of one dtype known to torch.

    Raises:
        Exception: what loading, importing or building raised.
    """
    place = Path(path)
    if place.suffix == ".so":
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    elif libraries := sorted(place.rglob("*.so")) if place.is_dir() else []:
        for library in libraries:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    elif place.is_dir():
        from roofgap.tuning.peers.marlin_build import build

        build(place, dtype)
    elif importlib.util.find_spec(path) is not None:
        importlib.import_module(f"{path}.utils.marlin").prewarm_marlin_extension(dtype)
    else:
        raise FileNotFoundError("neither a library, a folder nor an installed package")


def _space(dtype: torch.dtype) -> str:
    return f"gptqmodel_marlin_{DTYPE_NAMES[dtype]}"


def _gemm(dtype: torch.dtype) -> str:
    return f"gptq_marlin_gemm_{DTYPE_NAMES[dtype]}"


def _loaded(dtype: torch.dtype) -> bool:
    return hasattr(getattr(torch.ops, _space(dtype)), _gemm(dtype))


def _op(dtype: torch.dtype, name: str) -> Any:
    return getattr(getattr(torch.ops, _space(dtype)), name)


def _workspace(device: torch.device) -> torch.Tensor:
    """Locks, zero between launches, which restore them; launches of one stream can share them."""
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return torch.zeros(max(sms, LEAST_WORKSPACE), dtype=torch.int32, device=device)
