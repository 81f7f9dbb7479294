"""bitsandbytes NF4: a table of 16 values times one fp32 maximum per group."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch

from roofgap.kernels.formats.weight import QuantizedWeight
from roofgap.kernels.reference import CHUNK_ELEMENTS, Reference
from roofgap.shapes.problem import Problem
from roofgap.tuning.peers.peer import Packed, Peer, Tuned

BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
ROUNDINGS = 4
"""Of one product in the kernels for few rows (gemm_4bit_simt.cu, kgemm_4bit_inference_naive): table value, maximum,
their product and its product with x, each to 16 bits; sums are fp32. Independent of x and of each other, so their
standard deviations add in squares. The tensor-core path and dequantise-then-cuBLAS round less often."""


class NF4(Peer):
    """bitsandbytes' ``matmul_4bit``: the library chooses between its kernels by M, N and K.

    The dense weight is quantised anew by the library, ``blocksize`` = group size, absmax in fp32 (no double
    quantisation).
    """

    name = "bnb-nf4"
    package = "bitsandbytes"
    needs_gpu = False

    def refuses(self, problem: Problem) -> str | None:
        """Blocks must fill rows."""
        if problem.group_size not in BLOCKS or problem.k % problem.group_size:
            return "NF4 takes groups of 32 to 4096, a power of two that divides K"
        return None

    def pack(self, weight: QuantizedWeight, dtype: torch.dtype) -> Packed:
        """Two values a byte, the first in the upper nibble."""
        codes, state = _functional().quantize_4bit(
            weight.dequantise(dtype), blocksize=weight.group_size, quant_type="nf4", compress_statistics=False
        )
        return Packed(
            n=weight.n,
            k=weight.k,
            group_size=weight.group_size,
            dtype=dtype,
            read={"codes": codes, "absmax": state.absmax},
            shared={"table": state.code, "shape": torch.Size((weight.n, weight.k))},
        )

    def run(self, x: torch.Tensor, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns a new tensor."""
        state = _state(packed)
        return cast(
            "torch.Tensor",
            importlib.import_module("bitsandbytes").matmul_4bit(x, packed.read["codes"], state),
        )

    def reference(self, x: torch.Tensor, weight: QuantizedWeight, packed: Packed, tuned: Tuned) -> Reference:
        """From the stored bytes, table and maxima; the library's own dequantisation is not used."""
        found = dense_reference(x, packed.n, packed.k, lambda start, stop: rows_of(packed, start, stop))
        return replace(found, energy=found.energy * ROUNDINGS**0.5)


class NF4Gemv(NF4):
    """bitsandbytes' ``gemv_4bit``, its older kernel for one row, called by itself."""

    name = "bnb-nf4-gemv"
    takes_out = True

    def refuses(self, problem: Problem) -> str | None:
        """One row only."""
        return "gemv_4bit takes one row" if problem.m != 1 else super().refuses(problem)

    def run(self, x: torch.Tensor, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """Into ``out`` [1, N]."""
        y = _functional().gemv_4bit(x, packed.read["codes"].t(), out=out, state=_state(packed))
        return cast("torch.Tensor", y)


def rows_of(packed: Packed, start: int, stop: int) -> torch.Tensor:
    """Rows ``start`` to ``stop`` of the stored weight, fp64."""
    stop = min(stop, packed.n)
    packed_rows = packed.read["codes"].reshape(packed.n, packed.k // 2)[start:stop]
    codes = torch.stack([packed_rows >> 4, packed_rows & 15], dim=-1).reshape(stop - start, packed.k)
    scales = packed.read["absmax"].double().reshape(packed.n, -1)[start:stop]
    table: torch.Tensor = packed.shared["table"].double()
    return table[codes.long()] * scales.repeat_interleave(packed.group_size, dim=1)


def dense_reference(x: torch.Tensor, n: int, k: int, rows: Callable[[int, int], torch.Tensor]) -> Reference:
    """``kernels.reference`` for other weights than canonical ones; ``rows(start, stop)`` gives them, fp64 [rows, K]."""
    x64, step = x.double(), max(1, CHUNK_ELEMENTS // k)
    parts = []
    for start in range(0, n, step):
        dense = rows(start, start + step).T
        parts.append((x64 @ dense, x64.abs() @ dense.abs(), ((x64 * x64) @ (dense * dense)).sqrt()))
    y, magnitude, energy = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    x_sum = x64.abs().sum(1, keepdim=True)
    return Reference(y=y, magnitude=magnitude, code_magnitude=magnitude, energy=energy, x_sum=x_sum)


def _functional() -> Any:
    return importlib.import_module("bitsandbytes.functional")


def _state(packed: Packed) -> Any:
    """The library's record of a quantised weight, on this copy's maxima."""
    return _functional().QuantState(
        absmax=packed.read["absmax"],
        shape=packed.shared["shape"],
        code=packed.shared["table"],
        blocksize=packed.group_size,
        quant_type="nf4",
        dtype=packed.dtype,
    )
