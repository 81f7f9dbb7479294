"""The canary: everything the hook assumes about Triton's private interpreter."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from triton.runtime import interpreter

from roofgap.kernels.traffic.hook import EXPECTED, check_interpreter, memory_accesses
from roofgap.shapes.errors import RoofgapError


def test_this_triton_has_the_names_the_hook_wraps() -> None:
    check_interpreter(interpreter.InterpreterBuilder)


def test_memory_is_reached_from_the_wrapped_methods_only() -> None:
    reached = {
        name
        for name, method in inspect.getmembers(interpreter.InterpreterBuilder, inspect.isfunction)
        if re.search(r"_interpreter\.(load|store|atomic_\w+)\(", inspect.getsource(method))
    }
    assert reached == set(EXPECTED)
    whole = inspect.getsource(interpreter)
    assert len(re.findall(r"_interpreter\.(?:load|store|atomic_\w+)\(", whole)) == len(EXPECTED)
    assert not re.search(r"libtriton import (?!interpreter|ir\b)", whole)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_method_that_is_gone_is_refused(name: str) -> None:
    methods = {kept: getattr(interpreter.InterpreterBuilder, kept) for kept in EXPECTED if kept != name}
    with pytest.raises(RoofgapError, match=f"{name} takes None"):
        check_interpreter(type("Moved", (), methods))


def test_a_method_with_other_parameters_is_refused() -> None:
    class Moved(interpreter.InterpreterBuilder):
        def create_masked_load(self, mask, ptrs, other):  # type: ignore[no-untyped-def]
            """Swapped on purpose."""

    with pytest.raises(RoofgapError, match=r"create_masked_load takes .*'mask', 'ptrs'"):
        check_interpreter(Moved)


def test_the_methods_are_put_back() -> None:
    patch_tensor = interpreter._patch_lang_tensor
    before = {name: getattr(interpreter.InterpreterBuilder, name) for name in EXPECTED}
    with pytest.raises(KeyError), memory_accesses(lambda *_: None):
        assert interpreter.InterpreterBuilder.create_masked_load is not before["create_masked_load"]
        raise KeyError
    assert before == {name: getattr(interpreter.InterpreterBuilder, name) for name in EXPECTED}
    assert interpreter._patch_lang_tensor is patch_tensor


def test_masked_lanes_are_left_out() -> None:
    import triton.language as tl

    memory = np.arange(4, dtype=np.float32)
    addresses = memory.ctypes.data + 4 * np.arange(4, dtype=np.uint64)
    pointers = interpreter.TensorHandle(addresses, tl.pointer_type(tl.float32))
    mask = interpreter.TensorHandle(np.array([True, False, True, False]), tl.int1)
    seen: list[tuple[str, list[int], int]] = []
    with memory_accesses(lambda kind, active, size: seen.append((kind, active.tolist(), size))):
        interpreter.interpreter_builder.create_masked_load(pointers, mask, None, None, None, False)
    assert seen == [("load", [int(addresses[0]), int(addresses[2])], 4)]
