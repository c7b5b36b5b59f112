"""Chromium without a window, driven over its debugging pipe: no driver, no port, no network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """A page in Chromium; `errors` and `requests` are what its console and network have seen."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        told, self._out = os.pipe()
        self._in, answers = os.pipe()
        inherited = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (told, answers)]  # not 3 or 4
        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe"
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" {flags} "$@" 3<&{inherited[0]} 4>&{inherited[1]}', PROGRAM,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=inherited, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (told, answers, *inherited):
            os.close(fd)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number, self._left, self._loaded = 0, b"", False
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = {"targetId": target, "flatten": True}
        self._session = self._send("Target.attachToTarget", attached)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def open(self, path: Path, width: int = 1280, height: int = 900) -> None:
        """Open a file in a window of a size, and wait until it is loaded."""
        self.resize(width, height)
        self._loaded = False
        self._send("Page.navigate", {"url": path.resolve().as_uri()})
        deadline = time.monotonic() + 60
        while not self._loaded:
            self._take(deadline)

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._send("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str) -> Any:
        """Return the value of an expression, as JSON has it."""
        wanted = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self._send("Runtime.evaluate", wanted)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click in the middle of the first element that a selector finds."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{found}.scrollIntoView({{block: 'center'}})")
        box = self.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({found}"
                       ".getBoundingClientRect())")  # fmt: skip
        for kind in ("mousePressed", "mouseReleased"):
            at = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self._send("Input.dispatchMouseEvent", {"type": kind, **at})

    def until(self, script: str, true: Callable[[Any], bool] = bool) -> Any:
        """Return the value of an expression once it is as it should be."""
        deadline = time.monotonic() + 20
        while not true(value := self.run(script)):
            assert time.monotonic() < deadline, f"{script} is {value!r}"
            time.sleep(0.05)
        return value

    def picture(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        whole = {"captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(self._send("Page.captureScreenshot", whole)["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _send(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {
            "id": self._number, "method": method, "params": parameters or {}
        }  # fmt: skip
        if not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._take(deadline)
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]

    def _take(self, deadline: float) -> dict[str, Any]:
        """Return the next message, and note what it tells."""
        while b"\0" not in self._left:
            ready = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready[0], "Chromium says nothing"
            got = os.read(self._in, 1 << 20)
            assert got, "Chromium has ended"
            self._left += got
        text, _, self._left = self._left.partition(b"\0")
        message = json.loads(text)
        told = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.errors.append(str(told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.errors.append(told["entry"]["text"])
        return message
