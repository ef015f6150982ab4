"""Why pyproject.toml keeps grpcio below a version: the installed one is asked whether it holds."""

from __future__ import annotations

import asyncio
import tomllib
from importlib.metadata import version
from pathlib import Path

from grpc import aio
from packaging.requirements import Requirement

from tests.fuzz import http2
from tests.fuzz.http2 import FrameType
from tests.support.loops import on_loop

PIN = "<1.84"
PROJECT = Path(__file__).parents[3] / "pyproject.toml"


async def _answered(reader: asyncio.StreamReader) -> None:
    """Return once headers have come: those of the only call."""
    kind = None
    while kind != FrameType.HEADERS:
        head = await reader.readexactly(9)
        kind = head[3]
        await reader.readexactly(int.from_bytes(head[:3], "big"))


@on_loop
async def test_one_request_of_a_stranger_does_not_end_a_server_of_this_grpcio() -> None:
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(http2.PREFACE + http2.settings() + http2.call(1, b"/a.B/\xff", b""))
    answered = asyncio.create_task(_answered(reader))
    ended_by = None
    while not answered.done() and ended_by is None:
        try:
            await server.wait_for_termination(0.05)
        except UnicodeDecodeError as crash:
            ended_by = crash
    answered.cancel()
    writer.close()
    await asyncio.wait([answered])
    await server.stop(None)
    assert ended_by is None, (
        f"grpcio {version('grpcio')} lets anybody end the server by one request ({ended_by}): "
        f"install one that is {PIN}"
    )


def test_the_pin_is_there_only_as_long_as_newer_versions_need_it() -> None:
    """Whoever has installed a newer grpcio to try it, and for whom the test above passes, is told
    what to remove."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    pinned = next(each for each in map(Requirement, extras["server"]) if each.name == "grpcio")
    assert str(pinned.specifier) == PIN
    assert version("grpcio") in pinned.specifier, (
        f"grpcio {version('grpcio')} is installed although the pin is {PIN}. If the test above "
        "passes with it, the pin has no reason any more: remove it from pyproject.toml (of "
        "grpcio-health-checking and grpcio-reflection, too), with its line in "
        "docs/adr/0002-dependencies.md; if not, install what the pin allows"
    )
