"""Imports run one way, heavy libraries load late, kernels never tune themselves, and no file has two jobs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOMS = ("shapes", "kernels", "tuning", "tracking", "asv_bench", "e2e", "cli")
# What each room may import from, besides itself.
BELOW: dict[str, set[str]] = {
    "shapes": set(),
    "kernels": {"shapes"},
    "tuning": {"shapes", "kernels"},
    "tracking": {"shapes", "kernels", "tuning"},
    "asv_bench": {"shapes", "kernels", "tuning", "tracking"},
    "e2e": {"shapes", "kernels", "tuning"},
    "cli": {"shapes", "kernels", "tuning", "tracking", "e2e"},
}
HEAVY = {"torch", "transformers", "triton", "pandas"}
LIGHT = ("shapes", "cli")
# Functions that import the module whose name they are given.
NAMED_IMPORTS = {"import_module", "need"}
LONGEST_FILE = 400
OLDEST_PYTHON = (3, 10)


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every absolute module name that a file imports, at any depth, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno
            if node.module == "roofgap":
                yield from ((f"roofgap.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            target = node.args[0]
            if name in NAMED_IMPORTS and isinstance(target, ast.Constant) and isinstance(target.value, str):
                yield target.value, node.lineno


def top_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported: none of functions and ``if TYPE_CHECKING`` blocks."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from top_level(node.orelse)
            continue
        yield node
        for part in ("body", "orelse", "finalbody"):
            yield from top_level(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from top_level(handler.body)


def wrong_direction(room: str, tree: ast.Module) -> Iterator[str]:
    """Imports of a room that is not below this one, or of any room by its folder's name."""
    for module, line in imports(tree):
        first, *rest = module.split(".")
        if first in ROOMS:
            yield f"line {line}: imports {module}; write roofgap.{module}"
        elif first == "roofgap" and rest and rest[0] != room and rest[0] not in BELOW[room]:
            yield f"line {line}: imports roofgap.{rest[0]}; {room} may not"


def heavy_at_import(room: str, tree: ast.Module) -> Iterator[str]:
    """Libraries that make a command slow, imported before a function needs them."""
    if room not in LIGHT:
        return
    for statement in top_level(tree.body):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for module, line in imports(statement):
                if module.split(".")[0] in HEAVY:
                    yield f"line {line}: imports {module} at module level; {room} only inside functions"


def self_tuning(room: str, tree: ast.Module) -> Iterator[str]:
    """Kernels that choose their own config."""
    if room != "kernels":
        return
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", []):
            if "autotune" in ast.dump(decorator):
                yield f"line {decorator.lineno}: @triton.autotune; a config is an argument"


def breaches(room: str, source: str, name: str = "planted") -> list[str]:
    """Rules that a file of ``room`` with this text breaks."""
    tree = ast.parse(source, filename=name, feature_version=OLDEST_PYTHON)
    return [found for rule in (wrong_direction, heavy_at_import, self_tuning) for found in rule(room, tree)]


@pytest.mark.parametrize("room", ROOMS)
def test_room_keeps_the_rules(root: Path, room: str) -> None:
    found = [
        f"{path.relative_to(root)} {breach}"
        for path in sorted((root / room).rglob("*.py"))
        for breach in breaches(room, path.read_text(), str(path))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("kernels", "from roofgap.tuning.space import candidates"),
        ("shapes", "def f():\n    import roofgap.kernels.config"),
        ("shapes", "def f():\n    from roofgap import kernels"),
        ("tuning", "import tracking"),
        ("tuning", "import kernels.config"),
        ("tuning", "from tuning.space import candidates"),
        ("e2e", "from roofgap.tracking.environment import Overlay"),
        ("tracking", "import importlib\nimportlib.import_module('roofgap.e2e.loop')"),
        ("asv_bench", "need('roofgap.cli.main', 'main')"),
        ("shapes", "import torch"),
        ("cli", "try:\n    import pandas as pd\nexcept ImportError:\n    pd = None"),
        ("cli", "class Command:\n    from transformers import AutoConfig"),
        (
            "kernels",
            "import triton\n\n@triton.autotune(configs=[], key=[])\n@triton.jit\ndef kernel():\n    pass",
        ),
    ],
)
def test_planted_breach_is_found(room: str, source: str) -> None:
    assert breaches(room, source)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("tuning", "from roofgap.kernels.config import KernelConfig"),
        ("shapes", "def extract():\n    import torch"),
        ("cli", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("kernels", "import triton"),
    ],
)
def test_what_is_allowed_is_not_reported(room: str, source: str) -> None:
    assert not breaches(room, source)


def test_no_file_is_too_long(root: Path) -> None:
    folders = (*ROOMS, "scripts", "tests")
    lengths = {
        path: len(path.read_text().splitlines())
        for folder in folders
        for path in (root / folder).rglob("*.py")
    }
    too_long = {str(path.relative_to(root)): lines for path, lines in lengths.items() if lines > LONGEST_FILE}
    assert not too_long, f"over {LONGEST_FILE} lines, so each of these has two jobs: {too_long}"


def test_kernels_and_roofgap_are_namespaces(root: Path) -> None:
    """An ``__init__.py`` here would make ``kernels`` look like the Hugging Face package of that name."""
    assert not (root / "kernels" / "__init__.py").exists()
    assert not (root / "__init__.py").exists()
    for room in set(ROOMS) - {"asv_bench"}:
        init = root / room / "__init__.py"
        assert not init.exists() or not init.read_text().strip(), f"{init} must stay empty"
        assert (root / room / "py.typed").exists()
        assert (root / ".typecheck" / "roofgap" / room).resolve() == (root / room).resolve()
