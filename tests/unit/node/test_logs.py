"""What of the libraries' errors is logged as an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web import RequestPayloadError

from jetstream_server.node.logs import configure


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
