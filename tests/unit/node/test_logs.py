"""What is logged: of the libraries' errors, and when it cannot be."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web import RequestPayloadError

from jetstream_server.node.logs import RECENT, configure
from jetstream_server.node.output import LOST, LostLines, UnfailingOutput
from tests.support.loops import on_loop


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (BadHttpMessage("no HTTP"), False),
        (RequestPayloadError("no gzip"), False),
        (ConnectionResetError("Cannot write to closing transport"), False),
        (RuntimeError("ours"), True),
    ],
)
def test_what_a_stranger_sent_over_http_is_not_an_error_of_ours(
    error: Exception, is_told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert configure("info")
    logging.getLogger("aiohttp.server").error("Unhandled exception", exc_info=error)
    assert bool(capsys.readouterr().err) == is_told


class _Unshowable:
    def __repr__(self) -> str:
        raise ValueError("a bug in a value")


def test_a_line_that_cannot_be_shown_does_not_disturb_whoever_logs_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert configure("info")
    before = LOST.count
    logger = structlog.get_logger("jetstream.test")
    logger.info("lost", value=_Unshowable())
    logger.bind(a=1).warning("lost", value={(1, 2): 3})
    logger.info("shown")
    assert "shown" in capsys.readouterr().err
    assert LOST.count == before + 2


@pytest.mark.parametrize("on_terminal", [False, True])
def test_recent_lines_are_json_with_tracebacks_and_without_what_is_internal(
    on_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
    assert configure("info")
    structlog.get_logger("jetstream.test").info("ours", offset=7, of=Path("x"))
    try:
        raise RuntimeError("why")
    except RuntimeError:
        logging.getLogger("library").exception("theirs")
    ours, theirs = map(json.loads, RECENT.lines()[-2:])
    assert (ours["event"], ours["offset"], ours["logger"]) == ("ours", 7, "jetstream.test")
    assert ours["of"] == repr(Path("x"))
    assert theirs["event"] == "theirs"
    assert "RuntimeError: why" in theirs["exception"]
    assert not any(name.startswith("_") for name in theirs)
    if not on_terminal:
        assert capsys.readouterr().err.splitlines() == RECENT.lines()[-2:]


def test_a_cut_line_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    """The disk of the log was full in the middle of a line."""
    room = 10
    path = tmp_path / "log"

    class Filling(UnfailingOutput):
        def _is_ready(self) -> bool:
            return path.stat().st_size < room

    lost = LostLines()
    with path.open("wb", buffering=0) as file:
        output = Filling(file.fileno(), lost)
        output.write(b"first\n")
        output.write(b"x" * 5000 + b"\n")
        output.write(b"lost\n")
        room = 10_000
        output.write(b"after\n")
        output.write(b"last\n")
    assert path.read_bytes() == b"first\n" + b"x" * 4096 + b"\nafter\nlast\n"
    assert lost.count == 2


@on_loop
async def test_aiohttp_s_answer_to_an_expectation_that_is_no_text_is_not_an_error_of_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Strangers could fill the log with tracebacks. It is said for a path that is not served, where
    no code of ours is asked."""
    assert configure("info")
    runner = web.AppRunner(web.Application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\nExpect: \xff\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"500", "else this shows nothing"
    writer.close()
    await runner.cleanup()
    assert capsys.readouterr().err == ""
