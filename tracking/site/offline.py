"""Makes what ``asv publish`` wrote work with no network and from disk.

asv's page loads ten libraries from CDNs and its data by XMLHttpRequest, which browsers refuse to pages opened
from disk. The libraries come from ``assets/vendor``; the data goes into one script, and ``offline.js`` answers
asv's requests from it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.files import write_text

ASSETS = Path(str(resources.files("roofgap.tracking.site") / "assets"))
FOLDER = "roofgap"  # of the site, for what asv did not write
ATOM = "http://www.w3.org/2005/Atom"
PAGES = {"history": "History", "roofline": "Roofline", "tuning": "Tuning"}

_TAG = re.compile(
    r'<script src="(?P<js>https://[^"]+)"[^>]*></script>|<link rel="stylesheet" href="(?P<css>https://[^"]+)"[^>]*>'
)
_OUTSIDE = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="((?:https?:)?//[^"]+)"')
_NAV_END = '<li id="nav-li-graphdisplay">'
FACTOR = ".text(factor.toFixed(2) + 'x')"
FACTOR_OR_ZERO = (
    ".text(isFinite(factor) ? factor.toFixed(2) + 'x' : 'from 0').attr('data-sort-value', factor + 'x')"
)
_CREDIT = re.compile(r'<a href="https://github.com/airspeed-velocity/asv/".*?of an unladen\s*', re.DOTALL)


def make_self_contained(html_dir: Path) -> None:
    """Rewrites asv's index page and adds the assets and the data it needs.

    Raises:
        RoofgapError: the page asks for a library that is not kept here, or is not the page this was written for.
    """
    index = html_dir / "index.html"
    target = html_dir / FOLDER
    copy_assets(target)
    leave_out_unmeasured(html_dir)
    say_from_zero(html_dir / "regressions.js")
    settle(html_dir)
    digest = write_data(html_dir, target / "data.js")
    write_text(index, offline_index(index.read_text(encoding="utf-8"), digest))


def copy_assets(target: Path) -> None:
    """Copies vendored libraries with their licences, and our own scripts and styles."""
    shutil.copytree(
        ASSETS, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.html", "__pycache__")
    )


def leave_out_unmeasured(html_dir: Path) -> None:
    """Takes benchmarks and cells that were never measured off asv's grid and lists, where they are blank."""
    index = html_dir / "index.json"
    stored = json.loads(index.read_text(encoding="utf-8"))
    measured = {path.stem for path in (html_dir / "graphs" / "summary").glob("*.json")}
    stored["benchmarks"] = {name: one for name, one in stored["benchmarks"].items() if name in measured}
    write_text(index, _canonical(stored))
    for path in (html_dir / "graphs").rglob("summary.json"):
        rows = json.loads(path.read_text(encoding="utf-8"))
        write_text(path, _canonical([row for row in rows if row["last_rev"] is not None]))


def say_from_zero(script: Path) -> None:
    """Lets asv's regressions page say so where a level rose from zero, instead of ``Infinityx``; sorted as before.

    Raises:
        RoofgapError: the script does not write factors as this was written for.
    """
    text = script.read_text(encoding="utf-8")
    if FACTOR not in text:
        raise RoofgapError("asv's regressions.js", f"does not hold {FACTOR!r}", "install asv>=0.6.6,<0.7")
    write_text(script, text.replace(FACTOR, FACTOR_OR_ZERO))


def settle(html_dir: Path) -> None:
    """Takes the time of publishing, which asv only appends to addresses, and the chance order of sets out of
    asv's files, so that equal results give equal sites.
    """
    changes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "info.json": lambda info: {**info, "timestamp": 0},
        "index.json": lambda index: {
            **index,
            "graph_param_list": sorted(index["graph_param_list"], key=_canonical),
        },
        "regressions.json": lambda data: {**data, "regressions": sorted(data["regressions"], key=_canonical)},
    }
    for name, change in changes.items():
        path = html_dir / name
        write_text(path, _canonical(change(json.loads(path.read_text(encoding="utf-8")))))
    settle_feed(html_dir / "regressions.xml")


def settle_feed(path: Path) -> None:
    """Puts the entries of asv's Atom feed into a fixed order: by time, then by their text."""
    ElementTree.register_namespace("", ATOM)
    feed = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    entries = feed.findall(f"{{{ATOM}}}entry")
    for entry in entries:
        feed.remove(entry)
    feed.extend(
        sorted(
            entries,
            key=lambda entry: (entry.findtext(f"{{{ATOM}}}updated", ""), ElementTree.tostring(entry)),
            reverse=True,
        )
    )
    write_text(path, ElementTree.tostring(feed, encoding="unicode", xml_declaration=True))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def write_data(html_dir: Path, path: Path) -> str:
    """Writes every JSON file of the site into one script, as text by address; returns a digest of it."""
    files = {
        file.relative_to(html_dir).as_posix(): file.read_text(encoding="utf-8")
        for file in sorted(html_dir.rglob("*.json"))
        if path.parent not in file.parents
    }
    text = f"window.ROOFGAP_FILES = {json.dumps(files, indent=0)};\n"
    write_text(path, text)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def offline_index(html: str, digest: str) -> str:
    """asv's index page with local libraries, the data, links to our pages and our name.

    Raises:
        RoofgapError: it asks for a library that is not kept here, or lacks the places that are rewritten.
    """
    remedy = "install asv>=0.6.6,<0.7"
    kept = {
        entry["replaces"]: f"{FOLDER}/vendor/{entry['file']}"
        for entry in json.loads((ASSETS / "vendor" / "manifest.json").read_text(encoding="utf-8"))
    }

    def local(match: re.Match[str]) -> str:
        url = match["js"] or match["css"]
        if url not in kept:
            raise RoofgapError(f"asv's page asks for {url}", "is not among the assets kept here", remedy)
        return (
            f'<script src="{kept[url]}" onerror="js_load_failure()"></script>'
            if match["js"]
            else f'<link rel="stylesheet" href="{kept[url]}">'
        )

    html = _TAG.sub(local, html)
    for place in (_NAV_END, '<link href="asv.css"', "</head>"):
        if html.count(place) != 1:
            raise RoofgapError("asv's index.html", f"does not hold {place!r} once", remedy)
    scripts = "".join(
        f'<script src="{FOLDER}/{name}"></script>\n    '
        for name in (f"data.js?{digest}", "offline.js", "asv-pages.js")
    )
    html = html.replace('<link href="asv.css"', scripts + '<link href="asv.css"')
    html = html.replace(
        "</head>",
        '  <meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'    <link href="{FOLDER}/asv-pages.css" rel="stylesheet">\n  </head>',
    )
    links = "".join(f'<li><a href="{name}.html">{label}</a></li>\n        ' for name, label in PAGES.items())
    html = html.replace(_NAV_END, links + _NAV_END)
    html, credits = _CREDIT.subn("", html)
    if credits != 1:
        raise RoofgapError("asv's index.html", "has another title than asv 0.6.6 gives it", remedy)
    if outside := _OUTSIDE.search(html):
        raise RoofgapError(f"asv's page asks for {outside[1]}", "is not among the assets kept here", remedy)
    return html
