"""What the SDK logs never disturbs it, whatever the program's logging does."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from jetstream_client._log import logger


class Recorder(logging.Handler):
    """Raises what it is told to, as a handler without `handleError` does."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._error = error

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if self._error is not None:
            raise self._error


@pytest.fixture
def handlers() -> Iterator[list[logging.Handler]]:
    sdk = logging.getLogger("jetstream_client")
    before = sdk.handlers[:]
    yield sdk.handlers
    sdk.handlers[:] = before


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("a bug"), RecursionError()])
def test_a_handler_that_raises_does_not_disturb(
    handlers: list[logging.Handler], error: Exception
) -> None:
    recorder = Recorder(error)
    handlers.append(recorder)
    logger.warning("lost %s", "it")
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("failed")
    assert [record.getMessage() for record in recorder.records] == ["lost it", "failed"]


def test_a_line_says_where_it_was_logged(handlers: list[logging.Handler]) -> None:
    recorder = Recorder(None)
    handlers.append(recorder)
    logger.warning("here")
    logger.log(logging.ERROR, "and here")
    assert {record.filename for record in recorder.records} == {"test_log.py"}
    assert {record.funcName for record in recorder.records} == {
        "test_a_line_says_where_it_was_logged"
    }
