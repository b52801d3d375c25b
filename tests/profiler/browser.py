"""A headless Chromium for tests, driven over a pipe (the DevTools protocol: JSON messages that end in a zero byte). No package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120.0  # seconds for an answer: the machine may be busy


def find_browser() -> str | None:
    """Path of a Chromium: `CHROMIUM`, or one on the search path."""
    chosen = os.environ.get("CHROMIUM")
    return chosen if chosen else next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One open page. `problems`: uncaught exceptions and errors of its console; `requests`: addresses that it asked for."""

    def __init__(self, write: int, read: int) -> None:
        self.pipes = write, read
        self.number = 0
        self.session: str | None = None
        self.buffer = b""
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.pipes[1]], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self.pipes[1], 1 << 16) if ready else b""
            if not part:
                raise TimeoutError("the browser did not answer")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        return message

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **({"sessionId": self.session} if self.session else {})}
        os.write(self.pipes[0], json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file in a window of this size and wait until it is drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + PATIENCE
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < deadline
        self.settle()

    def settle(self) -> None:
        """Wait until two frames have been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression: str) -> Any:
        """Value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`mousePressed`, `mouseMoved`, `mouseReleased`, `mouseWheel`."""
        button = "left" if kind in ("mousePressed", "mouseReleased") else "none"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **{"button": button, "clickCount": 1, **more})

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def opened(browser: str, profile: Path) -> Iterator[Page]:
    """A page of a fresh browser that ends with the block."""
    to_browser, from_browser = os.pipe(), os.pipe()

    def descriptors() -> None:  # the browser reads commands from 3 and writes answers to 4
        kept = os.dup(to_browser[0]), os.dup(from_browser[1])
        os.dup2(kept[0], 3)
        os.dup2(kept[1], 4)

    process = subprocess.Popen(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
         "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=descriptors, close_fds=False,
    )  # fmt: skip
    try:
        yield Page(to_browser[1], from_browser[0])
    finally:
        process.kill()
        process.wait()
        for end in (*to_browser, *from_browser):
            os.close(end)
