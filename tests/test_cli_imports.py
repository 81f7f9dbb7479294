"""Help is instant: no command imports a heavy library to explain itself, not even one that runs torch."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("torch", "triton", "transformers", "pandas", "scipy", "asv")

# Walks the tree of commands as the user sees it, asks each for its help, and says what that loaded.
WALK = f"""
import contextlib, io, json, sys
import typer
from roofgap.cli.main import app

def walk(command, path):
    yield path
    for name, child in getattr(command, "commands", {{}}).items():
        yield from walk(child, (*path, name))

root = typer.main.get_command(app)
loaded, failed = {{}}, {{}}
for path in walk(root, ()):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            root.main([*path, "--help"], prog_name="roofgap")
        except SystemExit as stop:
            if stop.code:
                failed[" ".join(path)] = stop.code
    if "Usage" not in out.getvalue():
        failed[" ".join(path)] = out.getvalue()
    loaded[" ".join(path)] = [name for name in {HEAVY!r} if name in sys.modules]
print(json.dumps([loaded, failed]))
"""


def run_python(code: str) -> str:
    """Stdout of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_of_every_command_imports_nothing_heavy() -> None:
    loaded, failed = json.loads(run_python(WALK))
    assert not failed
    assert {"", "doctor", "roofline", "device show"} <= set(loaded), "the walk no longer finds the commands"
    assert not {command: modules for command, modules in loaded.items() if modules}


def test_the_walk_would_notice() -> None:
    planted = WALK.replace("root = typer", "import pandas\nroot = typer", 1)
    loaded, _ = json.loads(run_python(planted))
    assert "pandas" in loaded["doctor"]
