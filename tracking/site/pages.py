"""Writes our own pages: a template, its content as JSON inside it, and shared scripts and styles."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from roofgap.shapes.files import write_text
from roofgap.tracking.site.offline import ASSETS, FOLDER, PAGES

ASV_PAGES = {
    "index.html#/": "Grid",
    "index.html#/summarylist": "List",
    "index.html#/regressions": "Regressions",
}
DIGITS = 6


def write_page(html_dir: Path, name: str, data: dict[str, Any]) -> None:
    """Writes ``<name>.html``: ``page.html`` around ``<name>.html`` of the assets, with ``data`` embedded."""
    frame = (ASSETS / "page.html").read_text(encoding="utf-8")
    fields = {
        "title": f"{PAGES[name]} · roofgap",
        "name": name,
        "folder": FOLDER,
        "nav": navigation(name),
        "main": (ASSETS / f"{name}.html").read_text(encoding="utf-8"),
        "data": embedded(data),
    }
    for field, value in fields.items():
        frame = frame.replace(f"{{{{{field}}}}}", value)
    write_text(html_dir / f"{name}.html", frame)


def navigation(current: str) -> str:
    """Links to asv's pages and ours, the current one marked."""
    links = {**ASV_PAGES, **{f"{name}.html": label for name, label in PAGES.items()}}
    mark = {f"{current}.html": ' aria-current="page"'}
    return "\n".join(
        f'<a href="{address}"{mark.get(address, "")}>{label}</a>' for address, label in links.items()
    )


def embedded(data: dict[str, Any]) -> str:
    """JSON that no text inside it can break out of, numbers to six digits."""
    return json.dumps(rounded(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def rounded(value: Any) -> Any:
    """``value`` with every float cut to six significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float) and value and math.isfinite(value):
        return round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))
    return value
