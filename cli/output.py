"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Writes one JSON document to stdout; refuses NaN and infinity, which JSON does not have."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def cell(value: Any) -> str:
    """A figure as people read it: four significant digits, thousands separated, a dash for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def print_table(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None, title: str | None = None
) -> None:
    """Prints rows as a rich table; numbers are right-aligned. Columns default to the first row's keys."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listed = list(rows)
    names = list(columns) if columns is not None else (list(listed[0]) if listed else [])
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in names:
        numeric = any(isinstance(row.get(name), int | float) for row in listed)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*(Text(cell(row.get(name))) for name in names))  # Text: brackets are no markup
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table)
