"""A headless Chromium for tests, told what to do over its DevTools protocol.

Chromium is a program of the system (Debian: `chromium`); without it the tests that need one are
skipped.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed (Debian: chromium)"
)
PATIENCE_SECONDS = 60.0


class Page:
    """One page. problems: what the browser complained of: exceptions, and what CSP refused."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self._socket = socket
        self._next = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(told["params"]["exceptionDetails"]))
            elif told["method"] == "Log.entryAdded":
                entry = told["params"]["entry"]
                if entry["level"] == "error" and entry["source"] != "network":
                    self.problems.append(entry["text"])

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        answer = self._answers[self._next] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._next, "method": method, "params": params})
        told = await asyncio.wait_for(answer, PATIENCE_SECONDS)
        assert "error" not in told, told
        return dict(told["result"])

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.do(f"{domain}.enable")
        await self.do("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression, perhaps a promise, comes to."""
        told = await self.do(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until it is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not await self.value(f"!!({expression})"):
            if time.monotonic() > deadline:
                text = await self.value("document.body.innerText")
                raise AssertionError(f"never: {expression}\n{text}\n{self.problems}")
            await asyncio.sleep(0.05)

    async def key(self, key: str) -> None:
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        code = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}.get(key, 0)
        await self.do(
            "Input.dispatchKeyEvent", type="keyDown", key=key, text=text,
            windowsVirtualKeyCode=code,
        )  # fmt: skip
        await self.do("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def look(
        self, width: int = 1280, height: int = 800, *, dark: bool = False, phone: bool = False
    ) -> None:
        """How large the window is, and what its user prefers."""
        await self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip
        scheme = "dark" if dark else "light"
        await self.do(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    async def screenshot(self, path: Path) -> None:
        shot = await self.do("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._listening.cancel()


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """A page of a Chromium with a profile of its own in `folder`."""
    # A path that is short enough for its socket, which it leaves behind when it is killed.
    with TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as temporary:
        async with _browser(folder, temporary) as page:
            yield page


@asynccontextmanager
async def _browser(folder: Path, temporary: str) -> AsyncIterator[Page]:
    assert CHROMIUM is not None
    process = subprocess.Popen(  # noqa: ASYNC220  it takes a millisecond
        [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-extensions", "--disable-background-networking",
            "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
        ],
        env={**os.environ, "TMPDIR": temporary},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        port = await _port_of(folder, process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                targets = await answer.json()
            url = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
            async with session.ws_connect(url, max_msg_size=0) as socket:
                page = Page(socket)
                yield page
                page.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # A session of its own: its children end as well.
        process.wait()


async def _port_of(folder: Path, process: subprocess.Popen[bytes]) -> int:
    path = folder / "DevToolsActivePort"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and (text := path.read_text()).count("\n"):
            return int(text.splitlines()[0])
        await asyncio.sleep(0.05)
    raise AssertionError("Chromium did not start")


Walk = Callable[[Callable[[Page], Awaitable[None]]], None]


def walker(url: str, folder: Path, *, is_checked: bool = False) -> Walk:
    """Runs a walk on a console's page that shows the cluster. is_checked: the window has its usual
    size, and nothing on the page may fail."""

    def run(walking: Callable[[Page], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with browser(folder) as page:
                if is_checked:
                    await page.look()
                await page.open(f"{url}/")
                await page.until("document.querySelector('table[aria-label=Nodes] tbody tr')")
                await walking(page)
                assert not is_checked or page.problems == []

        asyncio.run(whole())

    return run
