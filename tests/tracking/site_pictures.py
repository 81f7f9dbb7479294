"""Takes the pictures of docs/history-site.md: ``python tests/tracking/site_pictures.py HTML_DIR docs/images``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import Chromium

CHOOSE = """byId('p-variant').value = 'v3'; byId('p-variant').dispatchEvent(new Event('change'));
document.querySelector('#steps tbody tr:last-child button').click();
document.querySelector('#steps tbody tr.member button').click();"""
# Name -> page, width, height, dark, what is done to the page first.
PICTURES = {
    "history": ("history.html", 1180, 680, False, CHOOSE),
    "roofline": ("roofline.html", 1180, 640, True, "true"),
    "tuning": ("tuning.html", 1180, 640, False, "document.querySelector('#winners tbody button').click()"),
    "history-phone": ("history.html", 390, 760, True, "byId('steps').scrollIntoView()"),
}


def main(html_dir: Path, out: Path) -> None:
    """Opens each page from disk and writes a PNG."""
    with tempfile.TemporaryDirectory() as profile:
        browser = Chromium(Path(profile))
        try:
            for name, (page, width, height, dark, prepare) in PICTURES.items():
                browser.open(f"{html_dir.resolve().as_uri()}/{page}", width, height, dark)
                browser.wait_for("document.querySelectorAll('tbody tr, canvas').length > 1")
                browser.evaluate(prepare)
                browser.screenshot(out / f"{name}.png")
        finally:
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
