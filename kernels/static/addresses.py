"""Evaluates the integers of a Triton IR module: addresses, masks and trip counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from roofgap.kernels.static.ir import CannotEvaluateError, Loop, Module, Operation, element_bytes, shape_of

Array = npt.NDArray[np.int64]

# Operations that make a pointer from their first operand.
POINTER_STEPS = frozenset(
    f"tt.{op}" for op in ("addptr", "splat", "broadcast", "expand_dims", "bitcast", "reshape", "trans")
)


class Evaluator:
    """Integer values of a module in the first iteration of its loops, given the launch's arguments.

    ``program`` is an axis and an id on it; the ids on the other axes are 0.
    """

    def __init__(
        self,
        module: Module,
        arguments: Mapping[str, Any],
        grid: Sequence[int],
        program: tuple[int, int] = (0, 0),
    ) -> None:
        self.arguments, self.grid = arguments, grid
        self._module, self._program = module, program
        self._known: dict[str, Array] = {}

    def addresses(self, pointers: str, mask: str | None = None) -> Array:
        """Byte offsets that pointers of a name hold, masked lanes left out."""
        pointer = self.value(pointers).reshape(-1)
        if mask is None:
            return pointer
        wanted = np.broadcast_to(self.value(mask).astype(bool).reshape(-1), pointer.shape)
        return np.asarray(pointer[wanted], dtype=np.int64)

    def trips(self, loop: Loop | None) -> int:
        """Product of the trip counts of a loop and the loops around it; 1 outside any loop."""
        if loop is None:
            return 1
        if loop.lower is None or loop.upper is None or loop.step is None:
            raise CannotEvaluateError("the trip count of a while loop")
        lower, upper, step = (int(self.value(name)) for name in (loop.lower, loop.upper, loop.step))
        return max(0, -(-(upper - lower) // step)) * self.trips(loop.parent)

    def value(self, name: str) -> Array:
        """The value of one SSA name.

        Raises:
            CannotEvaluateError: it depends on memory, on a float, or on an operation that is not known here.
        """
        if name not in self._known:
            self._known[name] = self._compute(name)
        return self._known[name]

    def _compute(self, name: str) -> Array:
        if name in self._module.aliases:
            return self.value(self._module.aliases[name])
        if name in self.arguments:
            given = self.arguments[name]
            return np.asarray(given if isinstance(given, int) else 0, dtype=np.int64)
        operation = self._module.definitions.get(name)
        if operation is None:
            raise CannotEvaluateError(f"{name}, which no operation defines")
        dialect, _, op = operation.op.partition(".")
        if dialect == "arith":
            return self._arith(op, operation)
        return self._tt(op, operation)

    def _arith(self, op: str, operation: Operation) -> Array:
        if op == "constant":
            return _constant(operation.text)
        inputs = [self.value(operand) for operand in operation.operands]
        if op in ("extsi", "extui", "trunci", "index_cast"):
            return inputs[0]
        if op == "select":
            return np.where(inputs[0].astype(bool), inputs[1], inputs[2])
        if op == "cmpi":
            predicate = operation.text.split(",")[0].strip().lstrip("us")
            return _COMPARISONS[predicate](inputs[0], inputs[1]).astype(np.int64)
        if op not in _BINARY:
            raise CannotEvaluateError(f"arith.{op}")
        return np.asarray(_BINARY[op](inputs[0], inputs[1]), dtype=np.int64)

    def _tt(self, op: str, operation: Operation) -> Array:
        text = operation.text
        if op == "get_program_id":
            axis, program = self._program
            return np.asarray(program if "xyz".index(text.split()[0]) == axis else 0, dtype=np.int64)
        if op == "get_num_programs":
            axis = "xyz".index(text.split()[0])
            return np.asarray(self.grid[axis] if axis < len(self.grid) else 1, dtype=np.int64)
        if op == "make_range":
            end, start = (int(_attribute(text, key)) for key in ("end", "start"))
            return np.arange(start, end, dtype=np.int64)
        if f"tt.{op}" not in POINTER_STEPS:
            raise CannotEvaluateError(operation.op)
        return self._rearranged(op, operation)

    def _rearranged(self, op: str, operation: Operation) -> Array:
        value = self.value(operation.operands[0])
        result_shape = shape_of(operation.text.split("->")[-1])
        if op == "addptr":
            value = value + self.value(operation.operands[1]) * element_bytes(operation.text)
        elif op == "expand_dims":
            value = np.expand_dims(value, int(_attribute(operation.text, "axis")))
        elif op in ("splat", "broadcast"):
            value = np.broadcast_to(value, result_shape)
        elif op == "reshape":
            value = value.reshape(result_shape)
        elif op == "trans":
            order = re.search(r"order = array<i32: ([\d, ]+)>", operation.text)
            assert order is not None
            value = value.transpose([int(axis) for axis in order[1].split(",")])
        return value  # bitcast: the address stays


def _quotient(a: Array, b: Array) -> Array:
    """Division as the IR defines it: toward zero."""
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1)), dtype=np.int64)


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "divsi": _quotient,
    "divui": _quotient,
    "remsi": lambda a, b: a - b * _quotient(a, b),
    "remui": lambda a, b: a - b * _quotient(a, b),
    "ceildivsi": lambda a, b: -(-a // b),
    "floordivsi": np.floor_divide,
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "shli": np.left_shift,
    "shrsi": np.right_shift,
    "shrui": np.right_shift,
    "minsi": np.minimum,
    "minui": np.minimum,
    "maxsi": np.maximum,
    "maxui": np.maximum,
}
_COMPARISONS: dict[str, Callable[[Array, Array], npt.NDArray[np.bool_]]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _constant(text: str) -> Array:
    match = re.match(r"\s*(?:\{[^}]*\}\s*)?(?:dense<)?(?P<value>-?\d+|true|false)>?(?:\s|$)", text)
    if match is None:
        raise CannotEvaluateError(f"the constant {text.split(' loc(', maxsplit=1)[0].strip()}")
    value = {"true": 1, "false": 0}.get(match["value"])
    scalar = np.asarray(int(match["value"]) if value is None else value, dtype=np.int64)
    return np.broadcast_to(scalar, shape_of(text)) if shape_of(text) else scalar


def _attribute(text: str, key: str) -> str:
    match = re.search(rf"\b{key} = (-?\d+)", text)
    if match is None:
        raise CannotEvaluateError(f"attribute {key} of {text.strip()[:60]}")
    return match[1]
