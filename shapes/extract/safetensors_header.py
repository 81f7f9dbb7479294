"""Tensor shapes from safetensors files, by header only: 8 bytes of length, then that much JSON.

The format is that of the safetensors README: tensors fill the rest of the file without holes or overlaps,
their names are unique, and ``__metadata__`` maps strings to strings. Nothing past the header is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roofgap.shapes.extract.found import Found, Shape, clip, refuse

HEADER_LIMIT = 100_000_000
"""Bytes; the limit that the safetensors library itself sets."""

_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


def read_safetensors(paths: Sequence[Path]) -> Found:
    """Tensors of one model over its shards, given as files or as the index JSON that names them.

    Raises:
        RoofgapError: a file that is not safetensors, an index that disagrees with its shards, or a name in
            two shards.
    """
    shards, mapped = list(paths), None
    if len(paths) == 1 and paths[0].suffix == ".json":
        mapped = _read_index(paths[0])
        shards = [paths[0].parent / name for name in dict.fromkeys(mapped.values())]
    shapes: dict[str, Shape] = {}
    for shard in shards:
        for name, shape in read_header(shard).items():
            if name in shapes:
                raise refuse(f"{shard}: {clip(name)}", "is in another shard too")
            if mapped is not None and mapped.get(name) != shard.name:
                raise refuse(f"{shard}: {clip(name)}", f"{paths[0].name} does not place it in this shard")
            shapes[name] = shape
    absent = sorted(set(mapped or ()) - set(shapes))
    if absent:
        raise refuse(f"{paths[0]}: {clip(absent[0])}", "is in the index but in none of its shards")
    return Found(place=paths[0].name, shapes=shapes)


def read_header(path: Path) -> dict[str, Shape]:
    """Shapes by name, from the header of one file.

    Raises:
        RoofgapError: the header is longer than ``HEADER_LIMIT`` or the file, is not JSON of the right form,
            or its offsets leave holes, overlap, or disagree with dtype and shape.
    """
    try:
        with path.open("rb", buffering=0) as file:  # unbuffered: a header read reads the header
            size = path.stat().st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                raise refuse(f"{path}: {size} bytes", "is too short for a safetensors header")
            length = int.from_bytes(prefix, "little")
            if length > size - 8:
                raise refuse(
                    f"{path}: header of {length} bytes", f"reaches past the end of the file, {size} bytes"
                )
            if length > HEADER_LIMIT:
                raise refuse(f"{path}: header of {length} bytes", f"must be at most {HEADER_LIMIT} bytes")
            header = file.read(length)
    except OSError as error:
        raise refuse(str(path), f"cannot be read ({error.strerror})", "check the path") from error
    return _shapes(_parse(header, path), size - 8 - length, path)


def _parse(header: bytes, path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise refuse(f"{path}: {clip(twice)}", "is in the header twice")
        return table

    try:
        table = json.loads(header.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a giant integer, deep nesting
        raise refuse(f"{path}: header", f"is not JSON ({type(error).__name__})") from error
    if not header.startswith(b"{") or not isinstance(table, dict):
        raise refuse(f"{path}: header", "must be a JSON object that begins at its first byte")
    return table


def _shapes(table: dict[str, Any], data_bytes: int, path: Path) -> dict[str, Shape]:
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise refuse(f"{path}: __metadata__", "must map strings to strings")
    if not table:
        raise refuse(str(path), "holds no tensors")
    shapes: dict[str, Shape] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in table.items():
        where = f"{path}: {clip(name)}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise refuse(where, "must give dtype, shape and data_offsets, and nothing else")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        bits = _BITS.get(dtype) if isinstance(dtype, str) else None
        if bits is None:
            raise refuse(f"{where}, dtype {clip(dtype)}", f"is none of {', '.join(_BITS)}")
        if not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
            raise refuse(
                f"{where}, shape {clip(shape)}, offsets {clip(offsets)}",
                "must be whole numbers from 0 on, the offsets two",
            )
        begin, end = offsets
        if begin > end:
            raise refuse(f"{where}, offsets {clip(offsets)}", "must begin before they end")
        if (end - begin) * 8 != math.prod(shape) * bits:
            raise refuse(
                f"{where}, {dtype} {clip(shape)}",
                f"does not take the {clip(end - begin)} bytes of its offsets",
            )
        shapes[name] = tuple(shape)
        spans.append((begin, end, name))
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            kind = "overlap another tensor's" if begin < position else "leave a hole before them"
            raise refuse(f"{path}: {clip(name)}, offsets {clip([begin, end])}", kind)
        position = end
    if position != data_bytes:
        raise refuse(
            f"{path}: {data_bytes} bytes of data",
            f"the header describes {clip(position)}: the file is cut short, or goes on behind its tensors",
        )
    return shapes


def _whole(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _read_index(path: Path) -> dict[str, str]:
    try:
        mapped = json.loads(path.read_bytes())["weight_map"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise refuse(
            str(path), f"must be a JSON object with a weight_map ({type(error).__name__})"
        ) from error
    if (
        not isinstance(mapped, dict)
        or not mapped
        or not all(isinstance(name, str) for name in mapped.values())
    ):
        raise refuse(f"{path}: weight_map", "must map tensor names to file names")
    for name in mapped.values():
        if not name or Path(name).name != name or "\\" in name:
            raise refuse(f"{path}: shard {clip(name)}", "must be a plain file name in the index's own folder")
    return mapped
