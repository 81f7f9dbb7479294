"""The executable part of a cubin or AMD code object, for hashing."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

_CODE = (".text", ".nv.constant", ".nv.global", ".rodata", ".data")


def code_hash(binary: bytes, *launch: int) -> str:
    """SHA-256 over code and constants, names, line tables and notes left out.

    Two kernels with equal hashes run the same instructions, whatever source they came from.

    Args:
        binary: an ELF file.
        launch: numbers that belong to the code, e.g. threads per program and bytes of shared memory.
    """
    digest = hashlib.sha256(repr(launch).encode())
    for name, content in _sections(binary):
        if name.startswith(_CODE):
            digest.update(struct.pack("<Q", len(content)))
            digest.update(content)
    return digest.hexdigest()


def _sections(binary: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each section of a 64-bit little-endian ELF file (System V ABI, chapter 4)."""
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", binary, table + at * size) for at in range(count)]
    names = headers[names_at][4]
    for name, kind, _flags, _address, offset, length in headers:
        start = names + name
        text = binary[start : binary.index(b"\0", start)].decode()
        yield (
            text,
            b"" if kind == 8 else binary[offset : offset + length],
        )  # 8: SHT_NOBITS, nothing in the file
