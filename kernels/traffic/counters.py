"""Byte counters per tensor: whose address it is, how often it was asked for, and how much of the tensor."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from roofgap.kernels.traffic.hook import AccessKind, Addresses
from roofgap.shapes.errors import RoofgapError

if TYPE_CHECKING:
    import torch


class Region:
    """The addresses of one tensor, with what was asked of them.

    Attributes:
        name: the operand's name, or the kernel argument's for a workspace.
        start: first address.
        stop: address after the last element (rows may be further apart than their length).
        size_bytes: elements times element size.
        asked_bytes: bytes asked for by kind, repeated ones counted again.
        modelled_bytes: bytes by kind that torch moves, taken from tensor sizes.
    """

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        element = tensor.element_size()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.name = name
        self.start = tensor.data_ptr()
        self.stop = self.start + (last + 1) * element
        self.size_bytes = tensor.numel() * element
        self.asked_bytes: dict[AccessKind, int] = defaultdict(int)
        self.modelled_bytes: dict[AccessKind, int] = defaultdict(int)
        self._touched: dict[AccessKind, npt.NDArray[np.bool_]] = {}

    def count(self, kind: AccessKind, addresses: Addresses, element_bytes: int) -> None:
        """Adds accesses that all lie inside the region."""
        touched = self._touched.setdefault(kind, np.zeros(self.stop - self.start, dtype=np.bool_))
        offsets = (addresses - np.uint64(self.start)).astype(np.int64)
        for byte in range(element_bytes):
            touched[offsets + byte] = True
        self.asked_bytes[kind] += addresses.size * element_bytes

    def unique_bytes(self, kind: AccessKind) -> int:
        """Distinct bytes asked for."""
        return int(np.count_nonzero(self._touched[kind])) if kind in self._touched else 0


class Counters:
    """All regions of one run. A later tensor that starts inside a known one is a view of it."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.kernel = ""

    def add(self, name: str, tensor: torch.Tensor) -> Region | None:
        """The tensor's region, made under this name if it is new; None for a tensor without elements.

        Two workspaces of one name are told apart by a number.
        """
        if tensor.numel() == 0:
            return None
        address = tensor.data_ptr()
        for region in self.regions:
            if region.start <= address < region.stop:
                return region
        taken = sum(region.name.split("#")[0] == name for region in self.regions)
        self.regions.append(Region(f"{name}#{taken + 1}" if taken else name, tensor))
        return self.regions[-1]

    def record(self, kind: AccessKind, addresses: Addresses, element_bytes: int) -> None:
        """Attributes one access of the running kernel (``self.kernel``) to the tensors it touches.

        Raises:
            RoofgapError: a lane that the mask leaves active is outside every tensor.
        """
        left = addresses
        for region in self.regions:
            if left.size == 0:
                return
            inside = (left >= region.start) & (left + np.uint64(element_bytes) <= region.stop)
            if inside.all():
                region.count(kind, left, element_bytes)
                return
            if inside.any():
                region.count(kind, left[inside], element_bytes)
                left = left[~inside]
        if left.size:
            raise RoofgapError(
                f"kernel {self.kernel}",
                f"{left.size} lanes of a {kind} of {element_bytes}-byte elements are outside every tensor",
                "correct its mask",
            )
