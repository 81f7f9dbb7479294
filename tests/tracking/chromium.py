"""A headless Chromium driven over its debugging pipe: what a page logs, asks for and shows."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
TIMEOUT_S = 30
# The browser reads commands from descriptor 3 and answers on 4.
LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Chromium:
    """One browser with one tab; ``console`` and ``requests`` collect what happened since ``open``."""

    def __init__(self, profile: Path) -> None:
        assert PATH
        to_browser, from_browser = os.pipe(), os.pipe()
        ends = (to_browser[0], from_browser[1])
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *map(str, ends), PATH, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        self._write, self._read = to_browser[1], from_browser[0]
        self._buffer, self._number, self._session = b"", 0, ""
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Shows a page and waits until it has loaded and drawn."""
        self.console.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.protocol !== 'about:'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Waits until a JavaScript expression is true."""
        end = time.monotonic() + TIMEOUT_S
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"still false: {expression}; console: {self.console}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Presses a key: ``Tab`` or ``Enter``."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **text,
            )

    def screenshot(self, path: Path) -> None:
        """Writes what is in the window as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """Ends the browser."""
        try:
            self._session = ""
            self.call("Browser.close")
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._write)
            os.close(self._read)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command of the DevTools protocol and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.consoleAPICalled":
                self.console.append(str([argument.get("value") for argument in params["args"]]))
            case "Runtime.exceptionThrown":
                self.console.append(
                    json.dumps(params["exceptionDetails"].get("exception", {}).get("description"))
                )
            case "Log.entryAdded":
                self.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], TIMEOUT_S)
            chunk = os.read(self._read, 1 << 16) if ready else b""
            assert chunk, "the browser went away or fell silent"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))
