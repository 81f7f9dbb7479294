"""Tensor shapes from a GGUF file, by header only (format: ggml's docs/gguf.md, versions 2 and 3).

"GGUF" | version u32 | tensors u64 | pairs u64 | pairs: key, type u32, value | tensors: name, rank u32,
dimensions u64 each (fastest first, so reversed against torch), type u32, offset u64 | padding | data
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

from roofgap.shapes.extract.found import Found, Shape, Stated, clip, measured, refuse

HEADER_LIMIT = 100_000_000
"""Bytes; a vocabulary of 256,000 tokens with its merges takes about 15 million."""

_SCALARS = {
    kind: f"<{code}" for kind, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_STRING, _ARRAY = 8, 9
_NESTING = 4
_RANK = 4
# Values in a block, to ggml type, to bytes of one block (ggml.c, type_traits).
_BLOCK_BYTES = {
    1: {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2},
    32: {2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 9: 40, 20: 18, 39: 17},
    256: {10: 84, 11: 110, 12: 144, 13: 176, 14: 210, 15: 292}  # Q2_K .. Q8_K
    | {16: 66, 17: 74, 18: 98, 19: 50, 21: 110, 22: 82, 23: 136, 29: 56, 34: 54, 35: 66},  # IQ and TQ
}
BLOCKS = {kind: (values, size) for values, sizes in _BLOCK_BYTES.items() for kind, size in sizes.items()}
"""ggml type to values and bytes of one block."""
# Architecture field to the key behind "<architecture>.".
_KEYS = {
    "layers": "block_count",
    "hidden": "embedding_length",
    "intermediate": "feed_forward_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_context": "context_length",
    "rope_theta": "rope.freq_base",
    "norm_eps": "attention.layer_norm_rms_epsilon",
}


class _Header:
    """Reads a header that may lie about its lengths: never past ``HEADER_LIMIT`` or the end of the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self.size = path.stat().st_size
        self.left = min(self.size, HEADER_LIMIT)

    def take(self, count: int) -> int:
        """Books ``count`` bytes."""
        if count > self.left:
            raise refuse(
                f"{self.path}: {count} bytes wanted at byte {self.file.tell()}",
                f"the header reaches past the end of the file or past {HEADER_LIMIT} bytes",
            )
        self.left -= count
        return count

    def bytes(self, count: int) -> bytes:
        """The next bytes."""
        return self.file.read(self.take(count))

    def scalar(self, form: str) -> int | float | bool:
        """The next number."""
        value: int | float | bool = struct.unpack(form, self.bytes(struct.calcsize(form)))[0]
        return value

    def unsigned(self, form: str = "<Q") -> int:
        """The next unsigned integer."""
        return int(self.scalar(form))

    def string(self) -> str:
        """The next string: length u64 and UTF-8."""
        raw = self.bytes(self.unsigned())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise refuse(f"{self.path}: {clip(raw[:40])}", "is not UTF-8") from error

    def value(self, kind: int) -> int | float | bool | str | None:
        """The next value; None for an array, which is skipped."""
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        self.skip(kind, 0)
        return None

    def skip(self, kind: int, depth: int) -> None:
        """Steps over a value of that kind."""
        if kind in _SCALARS:
            self.file.seek(self.take(struct.calcsize(_SCALARS[kind])), 1)
        elif kind == _STRING:
            self.file.seek(self.take(self.unsigned()), 1)
        elif kind == _ARRAY and depth < _NESTING:
            inner, count = self.unsigned("<I"), self.unsigned()
            if inner in _SCALARS:
                self.file.seek(self.take(count * struct.calcsize(_SCALARS[inner])), 1)
            else:
                self.check_count(count, 8)
                for _ in range(count):
                    self.skip(inner, depth + 1)
        else:
            raise refuse(f"{self.path}: value type {kind}", "is not a GGUF type, or is nested too deep")

    def check_count(self, count: int, each: int) -> None:
        """Refuses a count of items that cannot fit, ``each`` bytes at least, before looping over it."""
        if count * each > self.left:
            raise refuse(f"{self.path}: {count} items", "do not fit into the rest of the header")


def read_gguf(path: Path) -> Found:
    """Tensors of one GGUF file, and the numbers its metadata states.

    Raises:
        RoofgapError: not GGUF, a header that lies about its lengths, tensors outside the file or over one
            another, or one part of a split model.
    """
    try:
        with path.open("rb") as file:
            header = _Header(file, path)
            magic, version = header.bytes(4), header.unsigned("<I")
            if magic != b"GGUF" or version not in (2, 3):
                raise refuse(
                    f"{path}: {clip(magic)}, version {version}", "must be little-endian GGUF, version 2 or 3"
                )
            tensors, pairs = header.unsigned(), header.unsigned()
            header.check_count(tensors * 24 + pairs * 12, 1)
            metadata = _metadata(header, pairs)
            shapes = _tensors(header, tensors, metadata)
    except OSError as error:
        raise refuse(str(path), f"cannot be read ({error.strerror})", "check the path") from error
    if int(metadata.get("split.count") or 1) > 1:
        raise refuse(
            f"{path}: split.count", "is one part of a split model", "merge the parts with llama-gguf-split"
        )
    return Found(place=path.name, shapes=shapes, stated=_stated(metadata, path))


def _metadata(header: _Header, pairs: int) -> dict[str, int | float | bool | str | None]:
    metadata: dict[str, int | float | bool | str | None] = {}
    for _ in range(pairs):
        key = header.string()
        if key in metadata:
            raise refuse(f"{header.path}: {clip(key)}", "is in the metadata twice")
        metadata[key] = header.value(header.unsigned("<I"))
    return metadata


def _tensors(
    header: _Header, count: int, metadata: dict[str, int | float | bool | str | None]
) -> dict[str, Shape]:
    path = header.path
    shapes: dict[str, Shape] = {}
    spans: list[tuple[int, int, str]] = []
    for _ in range(count):
        name, rank = header.string(), header.unsigned("<I")
        where = f"{path}: {clip(name)}"
        if name in shapes:
            raise refuse(where, "is in the header twice")
        if not 1 <= rank <= _RANK:
            raise refuse(f"{where}, rank {rank}", f"must be 1 to {_RANK}")
        shape = tuple(header.unsigned() for _ in range(rank))[::-1]
        kind, offset = header.unsigned("<I"), header.unsigned()
        values, size = BLOCKS.get(kind, (0, 0))
        if not values:
            raise refuse(f"{where}, type {kind}", "is not a ggml type that is known here")
        if shape[-1] % values:
            raise refuse(f"{where}, {list(shape)}", f"must have rows of whole blocks of {values}")
        shapes[name] = shape
        spans.append((offset, math.prod(shape) // values * size, name))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise refuse(f"{path}: general.alignment={clip(alignment)}", "must be a whole number of at least 1")
    data = -(-header.file.tell() // alignment) * alignment
    end, before = 0, "the beginning"
    for offset, size, name in sorted(spans):
        if offset < end:
            raise refuse(f"{path}: {clip(name)} at {offset}", f"overlaps {clip(before)}")
        end, before = offset + size, name
    if data + end > header.size:
        raise refuse(
            f"{path}: {header.size} bytes", f"the header describes {data + end}: the file is cut short"
        )
    return shapes


def _stated(metadata: dict[str, int | float | bool | str | None], path: Path) -> dict[str, Stated]:
    family = metadata.get("general.architecture")
    stated: dict[str, Stated] = {}
    for field, key in _KEYS.items():
        value = metadata.get(f"{family}.{key}")
        if value is None:
            continue  # absent, or an array over layers, which shapes must settle
        wanted = float if field in ("rope_theta", "norm_eps") else int
        if type(value) is not wanted:
            raise refuse(f"{path}: {family}.{key}={clip(value)}", f"must be of type {wanted.__name__}")
        number = float(f"{value:.7g}") if wanted is float else value  # GGUF keeps floats in 32 bits
        stated[field] = measured(number, f"{path.name}: {family}.{key}")
    if "head_dim" not in stated and {"hidden", "heads"} <= stated.keys():
        hidden, heads = stated["hidden"].value, stated["heads"].value
        if heads == 0 or hidden % heads:
            raise refuse(
                f"{path}: {hidden} values over {heads} heads", "the heads must divide the hidden size"
            )
        stated["head_dim"] = measured(hidden // heads, f"{path.name}: {family}.embedding_length / head_count")
    if "heads" in stated and f"{family}.attention.head_count_kv" not in metadata:
        stated["kv_heads"] = measured(stated["heads"].value, f"{path.name}: {family}.attention.head_count")
    return stated
