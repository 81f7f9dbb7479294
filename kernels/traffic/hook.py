"""Sees every memory access of Triton's interpreter. The one place that relies on its private names.

All of ``tl.load``, ``tl.store``, atomics, block pointers and tensor descriptors end in the four methods of
``InterpreterBuilder`` below (the same in Triton 3.6 and 3.7), with an address and a mask bit for each lane.
They are wrapped on the class and put back afterwards. ``check_interpreter`` refuses a Triton whose names have
moved, because a hook that is never called would count zero bytes.

Why not triton-viz 3.0, whose clients see the same calls: its rewriting of loops outlives the trace. After
one traced launch, any kernel with a ``for`` that the process interprets for the first time fails with a
NameError, and so does a traced kernel whose helper with a ``for`` lives in another module.

Triton 3.6 takes ``int()`` of one-element arrays where a loop's bound is known at run time only, which numpy
2.4 forbids; the same hook mends that, as Triton 3.7 did.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from roofgap.shapes.errors import RoofgapError

AccessKind = Literal["load", "store", "atomic"]
Addresses = npt.NDArray[np.uint64]
Record = Callable[[AccessKind, Addresses, int], None]

# Leading parameters that the wrappers rely on, per method.
EXPECTED: dict[str, tuple[str, ...]] = {
    "create_masked_load": ("self", "ptrs", "mask"),
    "create_masked_store": ("self", "ptrs", "value", "mask"),
    "create_atomic_rmw": ("self", "rmwOp", "ptr", "val", "mask"),
    "create_atomic_cas": ("self", "ptr", "cmp", "val"),
}


def check_interpreter(builder: type) -> None:
    """Checks that an interpreter has the methods this module wraps.

    Raises:
        RoofgapError: a method is missing or takes other parameters.
    """
    import triton

    for name, expected in EXPECTED.items():
        method = getattr(builder, name, None)
        found = tuple(inspect.signature(method).parameters)[: len(expected)] if method else None
        if found != expected:
            raise RoofgapError(
                f"Triton {triton.__version__}",
                f"its interpreter's {name} takes {found}, expected {expected}; bytes cannot be counted",
                "use Triton 3.6 or 3.7, or adapt kernels/traffic/hook.py",
            )


@contextmanager
def memory_accesses(record: Record) -> Iterator[None]:
    """Calls ``record(kind, addresses, element_bytes)`` before each access, with the active lanes' addresses.

    One context at a time in a process. An exception of ``record`` stops the kernel before the access is made.

    Raises:
        RoofgapError: this Triton's interpreter has changed (see ``check_interpreter``).
    """
    from triton.runtime import interpreter

    Builder = interpreter.InterpreterBuilder
    check_interpreter(Builder)
    patch_tensor = interpreter._patch_lang_tensor
    originals: dict[str, Any] = {name: getattr(Builder, name) for name in EXPECTED}

    def note(kind: AccessKind, ptrs: Any, mask: Any) -> None:
        addresses = np.asarray(ptrs.data)
        if mask is not None:  # a handle, or a bare array where it comes from a block pointer or a descriptor
            lanes = mask if isinstance(mask, np.ndarray) else np.asarray(mask.data)
            addresses = addresses[np.broadcast_to(lanes, addresses.shape)]
        record(kind, addresses.reshape(-1), ptrs.get_element_ty().primitive_bitwidth // 8)

    def load(self: Any, ptrs: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        note("load", ptrs, mask)
        return originals["create_masked_load"](self, ptrs, mask, *rest, **options)

    def store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        note("store", ptrs, mask)
        return originals["create_masked_store"](self, ptrs, value, mask, *rest, **options)

    def atomic_rmw(self: Any, operation: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        note("atomic", ptr, mask)
        return originals["create_atomic_rmw"](self, operation, ptr, value, mask, *rest)

    def atomic_cas(self: Any, ptr: Any, *rest: Any) -> Any:
        note("atomic", ptr, None)
        return originals["create_atomic_cas"](self, ptr, *rest)

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    wrappers = dict(zip(EXPECTED, (load, store, atomic_rmw, atomic_cas), strict=True))
    try:
        for name, wrapper in wrappers.items():
            setattr(Builder, name, wrapper)
        interpreter._patch_lang_tensor = patch_tensor_and_index
        yield
    finally:
        interpreter._patch_lang_tensor = patch_tensor
        for name, original in originals.items():
            setattr(Builder, name, original)
