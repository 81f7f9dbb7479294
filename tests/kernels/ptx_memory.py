"""Shared memory of one program or cluster for ``ptx_machine``: copies under way, accesses that no barrier orders.

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
MAPPED = 1 << 24
"""Set in an address of the cluster's window, which has every program's memory one after the other."""


class RaceError(Exception):
    """Two threads meet at an address and nothing says who comes first, or a copy has not arrived."""


class Memory:
    """Addresses are offsets; ``thread`` counts from 0 through all programs of a cluster. Arrays are one element per
    access.
    """

    def __init__(self, cluster: int = 1, threads: int = 1024) -> None:
        self.used, self.cluster, self.threads = 0, cluster, threads
        size = cluster * STATIC_SHARED
        self._bytes = np.full(size, POISON, dtype=np.uint8)
        self._under_way = np.zeros(size, dtype=bool)
        # Bits of lanes since the last barrier of the warp, and of warps since the last one of all.
        self._lanes = {kind: np.zeros(size, dtype=np.uint32) for kind in ("read", "written")}
        self._warps = {kind: np.zeros(size, dtype=np.uint32) for kind in ("read", "written")}
        self._arrived, self._begun = "", False
        self._stored: set[int] = set()
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
        places = self._places(at, np.dtype(kind).itemsize, thread)
        self._refuse(places, thread, ("written",))
        self._note("read", places, thread)
        return self._bytes[places].view(kind)[..., 0]

    def store(self, at: Any, thread: Any, values: Any, *, far: bool = False) -> None:
        """Writes values at the addresses; ``far`` ones are of the cluster's window."""
        if far and not self._begun:
            raise RaceError("memory of a program that may not have begun")
        values = np.ascontiguousarray(values)
        places = self._places(at, values.dtype.itemsize, None if far else thread)
        self._refuse(places, thread, ("read", "written"))
        self._note("written", places, thread)
        self._bytes[places] = values[..., None].view(np.uint8)

    def store_global(self, at: Any) -> None:
        """Notes stores to global addresses: who comes last is nobody's to say."""
        addresses = set(at.tolist())
        if len(addresses) < len(at) or addresses & self._stored:
            raise RaceError("two stores to one global address")
        self._stored |= addresses

    def copy(self, to: Any, source: Any, thread: Any, size: int, given: Any) -> None:
        """Starts copies of ``given`` bytes from global addresses, filled up to ``size`` with 0."""
        if (source % np.uint64(size)).any() or (given > size).any():
            raise RaceError(f"a copy of {size} bytes from a misaligned address, or of more than these")
        places = self._places(to, size, thread)
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
            bits.reshape(self.cluster, -1)[:, : self.used] = 0

    def barrier(self) -> None:
        """Orders all threads of the program."""
        if self.cluster > 1:
            raise RaceError("a barrier of one program, where others write")
        self._all_meet()

    def arrive(self, order: str) -> None:
        """All threads of the cluster say that they are here; ``release``: what they have written is to be seen."""
        if self._arrived:
            raise RaceError("the barrier of the cluster is not waited for")
        self._arrived = order

    def wait_cluster(self) -> None:
        """All threads of the cluster wait for each other."""
        if not self._arrived:
            raise RaceError("nobody arrives at the barrier of the cluster")
        if self._arrived == "release":
            self._all_meet()
        self._arrived, self._begun = "", True

    def mapped(self, at: Any, program: Any) -> Any:
        """The address of the same place in another program of the cluster."""
        return at + program * np.uint32(STATIC_SHARED) + np.uint32(MAPPED)

    def program_of(self, thread: Any) -> Any:
        """Which program of the cluster a thread is of."""
        return thread // self.threads

    def _all_meet(self) -> None:
        self.warp_barrier()
        for bits in self._warps.values():
            bits.reshape(self.cluster, -1)[:, : self.used] = 0

    def _places(self, at: Any, size: int, thread: Any) -> Any:
        """Bytes of an access of a thread to its own program's memory, or (None) through the cluster's window."""
        at = at.astype(np.int64)
        if thread is not None:
            if (at >= STATIC_SHARED).any():
                raise RaceError(
                    "an address of the cluster's window, or of nothing, used as one of a program's own"
                )
            if self.cluster > 1:
                at = at + self.program_of(thread).astype(np.int64) * STATIC_SHARED
        elif (at < MAPPED).any():
            raise RaceError("an address of a program's own used as one of the cluster's window")
        else:
            at = at - MAPPED
        if (at % size).any() or (at % STATIC_SHARED + size > self.used).any():
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
