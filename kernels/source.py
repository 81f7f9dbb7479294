"""What a variant's kernels are made of, as one hash: a changed kernel makes its winners unvalidated."""

from __future__ import annotations

import ast
import hashlib
import inspect
from types import FunctionType
from typing import Any

from roofgap.kernels.variant import Variant


def kernel_functions(variant: Variant) -> list[FunctionType]:
    """Python functions of a variant's kernels and of every ``@triton.jit`` helper they call, in order of name."""
    found: dict[str, FunctionType] = {}
    waiting = [_function(kernel) for kernel in variant.kernels()]
    while waiting:
        function = waiting.pop()
        name = f"{function.__module__}.{function.__qualname__}"
        if name in found:
            continue
        found[name] = function
        used = {node.id for node in ast.walk(_tree(function)) if isinstance(node, ast.Name)}
        waiting += [
            _function(function.__globals__[name])
            for name in used
            if _is_kernel(function.__globals__.get(name))
        ]
    return [found[name] for name in sorted(found)]


def source_hash(variant: Variant) -> str:
    """Sixteen hex digits over the kernels' code; comments, docstrings and formatting do not count, nor does the Python
    version.
    """
    text = "\n".join(
        ast.unparse(_without_docstring(_tree(function))) for function in kernel_functions(variant)
    )
    # Which quotes f-strings get depends on the version (3.12 may nest the same ones).
    return hashlib.sha256(text.replace('"', "'").encode()).hexdigest()[:16]


def _is_kernel(value: Any) -> bool:
    """Compiled and interpreted kernels alike keep their Python function in ``fn``; other callables do not."""
    return isinstance(getattr(value, "fn", None), FunctionType)


def _function(kernel: Any) -> FunctionType:
    function = kernel.fn
    assert isinstance(function, FunctionType)
    return function


def _tree(function: FunctionType) -> ast.Module:
    return ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))


def _without_docstring(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return tree
