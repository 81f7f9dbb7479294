"""Counts what must not happen while the clock runs: compilation, by inductor or by Triton."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class CompileWatch:
    """A context in which ``found`` says what was compiled; empty if nothing was."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __enter__(self) -> CompileWatch:
        from triton import knobs

        self._graphs = _dynamo_graphs()
        self._before = knobs.runtime.jit_post_compile_hook
        knobs.runtime.jit_post_compile_hook = self._note
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        from triton import knobs

        knobs.runtime.jit_post_compile_hook = self._before
        grown = _dynamo_graphs() - self._graphs
        if grown:
            self.found.append(f"{grown} graphs by torch.compile")

    def _note(self, *args: Any, **given: Any) -> None:
        self.found.append(f"kernel {given.get('repr', '?')}")


def _dynamo_graphs() -> int:
    import sys

    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0
