"""Shared memory of one program for ``ptx_machine``: copies under way, and accesses that no barrier orders.

All threads execute an instruction before any executes the next, which hides what a GPU would show. So every byte
remembers who read and wrote it since the last barrier, and an access that another thread's should be ordered with
raises. A copy arrives when its thread waits for its group and not before; until then nobody may touch its destination.
Memory that nobody has written is NaN in every format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton._C.libtriton import interpreter

STATIC_SHARED = 48 * 1024
"""Bytes that a kernel may declare (CUDA C++ Programming Guide, "Shared Memory")."""
POISON = 0xFF


class RaceError(Exception):
    """Two threads meet at an address and nothing says who comes first, or a copy has not arrived."""


class Memory:
    """Addresses are offsets; ``thread`` counts from 0. Arrays are one element per access."""

    def __init__(self) -> None:
        self.used = 0
        self._bytes = np.full(STATIC_SHARED, POISON, dtype=np.uint8)
        self._under_way = np.zeros(STATIC_SHARED, dtype=bool)
        # Bits of lanes since the last barrier of the warp, and of warps since the last one of all.
        self._lanes = {kind: np.zeros(STATIC_SHARED, dtype=np.uint32) for kind in ("read", "written")}
        self._warps = {kind: np.zeros(STATIC_SHARED, dtype=np.uint32) for kind in ("read", "written")}
        self._open: list[tuple[Any, Any, Any]] = []
        self._groups: list[list[tuple[Any, Any, Any]]] = []

    def declare(self, size: int) -> int:
        """Address of an array of so many bytes, aligned to 16."""
        at = -(-self.used // 16) * 16
        self.used = at + size
        if self.used > STATIC_SHARED:
            raise RaceError(f"{self.used} bytes are declared, {STATIC_SHARED} may be")
        return at

    def load(self, at: Any, thread: Any, kind: Any) -> Any:
        """Values of a type at the addresses."""
        places = self._places(at, np.dtype(kind).itemsize)
        self._refuse(places, thread, ("written",))
        self._note("read", places, thread)
        return self._bytes[places].view(kind)[..., 0]

    def store(self, at: Any, thread: Any, values: Any) -> None:
        """Writes values at the addresses."""
        values = np.ascontiguousarray(values)
        places = self._places(at, values.dtype.itemsize)
        self._refuse(places, thread, ("read", "written"))
        self._note("written", places, thread)
        self._bytes[places] = values[..., None].view(np.uint8)

    def copy(self, to: Any, source: Any, thread: Any, size: int, given: Any) -> None:
        """Starts copies of ``given`` bytes from global addresses, filled up to ``size`` with 0."""
        if (source % np.uint64(size)).any() or (given > size).any():
            raise RaceError(f"a copy of {size} bytes from a misaligned address, or of more than these")
        places = self._places(to, size)
        self._refuse(places, thread, ("read", "written"))
        offsets = np.arange(size, dtype=np.uint64)
        wanted = offsets < given[:, None]
        none = np.zeros(places.shape, dtype=np.uint8)
        found = interpreter.load(source[:, None] + offsets, wanted, none, np.dtype(np.uint8))
        self._bytes[places] = POISON
        self._under_way[places] = True
        self._open.append((places, thread, found))

    def commit(self) -> None:
        """Closes a group of every thread's copies since the last."""
        self._groups.append(self._open)
        self._open = []

    def wait(self, pending: int) -> None:
        """Lets all but the ``pending`` latest groups arrive, each for the thread that asked for it."""
        while len(self._groups) > pending:
            for places, thread, found in self._groups.pop(0):
                self._bytes[places] = found
                self._under_way[places] = False
                self._note("written", places, thread)

    def warp_barrier(self) -> None:
        """Orders the lanes of every warp."""
        for bits in self._lanes.values():
            bits[: self.used] = 0

    def barrier(self) -> None:
        """Orders all threads."""
        self.warp_barrier()
        for bits in self._warps.values():
            bits[: self.used] = 0

    def _places(self, at: Any, size: int) -> Any:
        at = at.astype(np.int64)
        if (at % size).any() or (at + size > self.used).any():
            raise RaceError(f"{size} bytes at a misaligned address, or beyond what was declared")
        return at[:, None] + np.arange(size)

    def _note(self, kind: str, places: Any, thread: Any) -> None:
        lane, warp = (np.uint32(1) << part.astype(np.uint32) for part in (thread % 32, thread // 32))
        np.bitwise_or.at(self._lanes[kind], places, lane[:, None])
        np.bitwise_or.at(self._warps[kind], places, warp[:, None])

    def _refuse(self, places: Any, thread: Any, kinds: tuple[str, ...]) -> None:
        if self._under_way[places].any():
            raise RaceError("an access to memory that a copy under way will fill")
        lane, warp = (np.uint32(1) << part.astype(np.uint32) for part in (thread % 32, thread // 32))
        for kind in kinds:
            if (self._warps[kind][places] & ~warp[:, None]).any():
                raise RaceError(f"memory that another warp has {kind}, and no barrier between")
            if (self._lanes[kind][places] & ~lane[:, None]).any():
                raise RaceError(f"memory that another lane has {kind}, and no barrier between")
