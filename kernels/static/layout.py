"""How many elements of a tile each thread loads, from the layouts in Triton's GPU IR."""

from __future__ import annotations

import re
from math import prod

from roofgap.kernels.static.ttir import Load

_LOCATION = re.compile(r"^(#loc\d*) = loc\(\"[^\"]*\":(\d+):\d+\)", re.MULTILINE)
_LOAD = re.compile(r"tt\.load|async_copy_global_to_local|buffer_load|cp\.async")
_ENCODED = re.compile(r"tensor<((?:\d+x)+)[^,>]*(?:<\w+>)?, (?P<encoding>#ttg\.slice<\{.*?\}>|#\w+)>")
_BLOCKED = re.compile(r"^(#\w+) = #ttg\.blocked<\{(.*)\}>", re.MULTILINE)
_LINEAR = re.compile(r"^(#\w+) = #ttg\.linear<\{register = \[(.*?)\], lane", re.MULTILINE)
_SLICE = re.compile(r"#ttg\.slice<\{dim = (\d+), parent = (#\w+)\}>")


def loaded_bytes_per_thread(ttgir: str, loads: tuple[Load, ...]) -> int | None:
    """Bytes per thread that one execution of the loads fetches, or None where a layout is not understood.

    Args:
        ttgir: GPU IR whose locations are lines of the Triton IR.
        loads: loads found there.
    """
    encodings = _encodings(ttgir)
    total = 0
    for load in loads:
        elements = _elements(ttgir, encodings[load.line], load.shape) if load.line in encodings else None
        if elements is None:
            return None
        total += elements * load.element_bytes
    return total


def _encodings(ttgir: str) -> dict[int, str]:
    """Layout of each load by its IR line."""
    lines = {name: int(line) for name, line in _LOCATION.findall(ttgir)}
    found: dict[int, str] = {}
    for text in ttgir.splitlines():
        location = re.search(r"loc\((#loc\d*)\)$", text)
        encoded = _ENCODED.search(text)
        if _LOAD.search(text) and location and encoded and location[1] in lines:
            found.setdefault(lines[location[1]], encoded["encoding"])
    return found


def _elements(ttgir: str, encoding: str, shape: tuple[int, ...]) -> int | None:
    if sliced := _SLICE.match(encoding):
        axis, encoding = int(sliced[1]), sliced[2]
    else:
        axis = None
    for name, body in _BLOCKED.findall(ttgir):
        if name == encoding:
            return _blocked(body, shape, axis)
    for name, registers in _LINEAR.findall(ttgir):
        if name == encoding and axis is None:
            bases = re.findall(r"\[([^\]]*)\]", registers)
            return int(2 ** sum(bool(re.search(r"[1-9]", base)) for base in bases))
    return None


def _blocked(body: str, shape: tuple[int, ...], without: int | None) -> int:
    """Distinct elements per thread: sizePerThread x threadsPerWarp x warpsPerCTA, and along one axis twice for every
    basis of CGALayout (the programs of a cluster), repeats over the shape.
    """
    fields = {
        name: [int(size) for size in sizes.split(",")]
        for name, sizes in re.findall(r"(sizePerThread|threadsPerWarp|warpsPerCTA) = \[([\d, ]+)\]", body)
    }
    per_axis = list(
        zip(fields["sizePerThread"], fields["threadsPerWarp"], fields["warpsPerCTA"], strict=True)
    )
    programs = [1] * len(per_axis)
    if cluster := re.search(r"CGALayout = \[((?:\[[\d, ]+\](?:, )?)*)\]", body):
        for basis in re.findall(r"\[([\d, ]+)\]", cluster[1]):
            for axis, step in enumerate(basis.split(",")):
                programs[axis] *= 2 if int(step) else 1
    if without is not None:
        del per_axis[without], programs[without]
    return prod(
        min(own, size) * -(-size // (own * threads * warps * among))
        for size, (own, threads, warps), among in zip(shape, per_axis, programs, strict=True)
    )
