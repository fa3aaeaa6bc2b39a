"""A headless Chromium, driven over its debugging pipe (Chrome DevTools Protocol), so that no driver is installed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LONGEST_S = 300.0
_FLAGS = (
    *("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb"),
)


def browser_path() -> str | None:
    """Return a Chromium of this machine."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Browser:
    """A page in the browser.

    Attributes:
        console: What the page has written to the console, errors and exceptions included.
        requested: The addresses that the page has requested.
    """

    def __init__(self, to: int, came: int) -> None:
        self._to, self._from = to, came
        self._buffer = b""
        self._number = 0
        self._loaded = False
        self.console: list[str] = []
        self.requested: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def open(self, file: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Open a file in a window of a width in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=file.as_uri())
        while not self._loaded:
            self._receive()

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript on the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """Write a picture of the page as PNG."""
        done = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png", **self._clip(whole))
        file.write_bytes(base64.b64decode(done["data"]))

    def printed(self) -> bytes:
        """Return the page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}}

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol on the page."""
        return self._call(method, session=self._session, **parameters)

    def _call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        number = self._number
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + _LONGEST_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            read = os.read(self._from, 1 << 20) if ready else b""
            if not read:
                raise RuntimeError("the browser ended, or does not answer")
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.consoleAPICalled":
            self.console.append(str([each.get("value") for each in told["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(told["exceptionDetails"]["text"]))
        elif method == "Log.entryAdded":
            self.console.append(str(told["entry"]["text"]))
        elif method == "Network.requestWillBeSent":
            self.requested.append(str(told["request"]["url"]))


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Run a browser."""
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser reads from descriptor 3 and writes to 4, wherever the pipes are here.
        script = f'exec "$0" "$@" 3<&{in_read} 4>&{out_write}'
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, path, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(in_read, out_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(in_read)
        os.close(out_write)
        try:
            yield Browser(in_write, out_read)
        finally:
            process.kill()
            process.wait()
            os.close(in_write)
            os.close(out_read)
