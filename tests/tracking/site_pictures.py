"""Takes the pictures of docs/history-site.md: ``python tests/tracking/site_pictures.py HTML_DIR docs/images``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from chromium import Chromium

CHOOSE = """byId('metric').value = 'device.Cold.sampled_latency_us'; byId('metric').dispatchEvent(new Event('change'));
document.querySelector('#steps tbody button').click();"""
LATENCY = "index.html#device.Cold.sampled_latency_us"
# Name -> page, width, height, dark, what is done to the page first.
PICTURES = {
    "history": ("history.html", 1180, 760, False, CHOOSE),
    "graph": (LATENCY, 1180, 640, False, "true"),
    "roofline": ("roofline.html", 1180, 640, True, "true"),
    "tuning": ("tuning.html", 1180, 640, False, "document.querySelector('#winners tbody button').click()"),
    "history-phone": ("history.html", 390, 760, True, CHOOSE + "byId('steps').scrollIntoView()"),
    "graph-phone": (LATENCY, 390, 760, True, "true"),
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
                time.sleep(1)  # asv draws when its data has come
                browser.screenshot(out / f"{name}.png")
        finally:
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
